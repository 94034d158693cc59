//! Operands of several shapes laid over one.

use super::promote::{Arg, Scalar};
use crate::{
    Result, Tensor,
    dims::{self, Dims},
};

/// The shape of the result.
pub(super) fn broadcast(op: &'static str, args: &[Arg]) -> Result<Dims> {
    let shapes = args.iter().filter_map(|arg| match arg {
        Arg::Tensor(tensor) => Some(tensor.shape()),
        Arg::Scalar(_) => None,
    });
    dims::broadcast(op, shapes)
}

/// An operand with one stride per dim of the result.
pub(super) enum Operand {
    /// The same value everywhere.
    Scalar(Scalar),
    /// A tensor.
    View {
        /// All of the memory between its first and its last element, without dims of its own.
        memory: Tensor,
        /// Where in it index zero is.
        start: usize,
        /// Zero in dims along which it is repeated.
        strides: Dims<isize>,
    },
}

impl Operand {
    /// The operand under a shape that it can be broadcast to.
    pub(super) fn new(arg: Arg, shape: &[usize]) -> Operand {
        let tensor = match arg {
            Arg::Scalar(scalar) => return Operand::Scalar(scalar),
            Arg::Tensor(tensor) => readable_by_rows(tensor),
        };
        let n_added = shape.len() - tensor.n_dims();
        let mut strides: Dims<isize> = std::iter::repeat_n(0, shape.len()).collect();
        for (dim, (size, stride)) in tensor.shape().iter().zip(tensor.strides()).enumerate() {
            if *size > 1 {
                strides[n_added + dim] = *stride;
            }
        }
        let (memory, start) = tensor.span();
        Operand::View { memory, start, strides }
    }
}

/// The tensor; or a consecutive copy if it is large and neighbours in its last dim are not neighbours
/// in memory. Copying goes tile by tile, while reading such a tensor row by row would fetch every
/// cache line many times.
fn readable_by_rows(tensor: &Tensor) -> Tensor {
    const LARGE: usize = 1 << 14;
    let last = tensor.shape().iter().zip(tensor.strides()).rev().find(|(size, _)| **size > 1);
    let scattered = last.is_some_and(|(_, stride)| stride.unsigned_abs() > 8);
    if scattered && tensor.numel() > LARGE { tensor.contiguous() } else { tensor.clone() }
}

/// Merges neighbouring dims that are one run in every operand, and drops those of size 1. Returns
/// the sizes of the dims that are left, at least one.
pub(super) fn merge<const N: usize>(operands: &mut [Operand; N], shape: &[usize]) -> Dims {
    let mut sizes = Dims::new();
    // The dims that are left are written over the first ones.
    for (dim, size) in shape.iter().copied().enumerate() {
        if size == 1 {
            continue;
        }
        let mergeable = sizes.last().is_some()
            && operands.iter().all(|operand| match operand {
                Operand::Scalar(_) => true,
                Operand::View { strides, .. } => {
                    strides[sizes.len() - 1] == strides[dim] * size as isize
                }
            });
        let to = if mergeable { sizes.len() - 1 } else { sizes.len() };
        for operand in operands.iter_mut() {
            if let Operand::View { strides, .. } = operand {
                strides[to] = strides[dim];
            }
        }
        match sizes.last_mut() {
            Some(last) if mergeable => *last *= size,
            _ => sizes.push(size),
        }
    }
    let n_left = sizes.len().max(1);
    for operand in operands.iter_mut() {
        if let Operand::View { strides, .. } = operand {
            strides.resize(n_left, 0);
            if sizes.is_empty() {
                strides[0] = 0;
            }
        }
    }
    if sizes.is_empty() {
        sizes.push(1);
    }
    sizes
}

/// Size of the innermost dim, for counting: never zero.
pub(super) fn n_inner(sizes: &[usize]) -> usize {
    sizes.last().copied().unwrap_or(1).max(1)
}
