//! The loop under every elementwise operation: it brings operands of any dtype, stride and shape to
//! kernels that only know consecutive values of one type.
//!
//! If all operands are such values already, a kernel gets them as they are. Otherwise the result is
//! computed in blocks that stay in the first-level cache: an operand that is consecutive within the
//! block is borrowed, any other is converted, gathered or repeated into a buffer first. So there is
//! one kernel per operation and type, whatever the operands look like, and no operand is copied in
//! memory.

use std::ops::Range;

use super::{
    cast::{CastTo, convert},
    layout::{Operand, broadcast, n_inner},
    promote::Arg,
    values::{Compute, Values},
};
use crate::{
    DType, Element, Result, Tensor, by_dtype::by_dtype, dims::Dims, threads::for_pieces_of,
};

/// Elements of one piece of work for a thread: less is not worth a hand-over.
pub(super) const GRAIN: usize = 1 << 15;

/// Elements of a block.
const BLOCK: usize = 1024;

/// Computes values of type `K` from `N` slices of type `C` that are as long.
pub(super) type Kernel<'a, C, K, const N: usize> = &'a (dyn Fn([&[C]; N], &mut [K]) + Sync);

/// The result of a kernel on operands that are broadcast to one shape and converted to `C`. The
/// values of the kernel are converted to `dtype`, where that is not their own.
pub(super) fn apply<C: Compute, K: Compute, const N: usize>(
    op: &'static str,
    args: [Arg; N],
    dtype: DType,
    kernel: Kernel<C, K, N>,
) -> Result<Tensor> {
    if dtype == K::DTYPE
        && let Some((values, shape)) = plain_operands::<C, N>(&args)
    {
        return Tensor::write::<K>(op, shape, |out| {
            for_pieces_of(out, 1, GRAIN, |piece, part| {
                kernel(values.map(|values| &values[piece.clone()]), part);
            });
        });
    }
    let shape = broadcast(op, &args)?;
    if args.iter().any(|arg| matches!(arg, Arg::Tensor(tensor) if tensor.is_meta())) {
        return Tensor::meta(&shape, dtype);
    }
    let sources = Sources::new(&args, &shape);
    let blocks = sources.blocks::<C>(&shape)?;
    if dtype == K::DTYPE {
        Tensor::write::<K>(op, &shape, |out| blocks.write(out, kernel))
    } else {
        by_dtype!(dtype, To => {
            Tensor::write::<To>(op, &shape, |out| blocks.write_as::<K, To>(out, kernel))
        })
    }
}

/// As [`apply`], but the kernel changes the values of a tensor in place. The operands must have no
/// dims that `to` has not, and `to` must be of type `C`.
pub(super) fn update<C: Compute, const N: usize>(
    to: &mut Tensor,
    args: [Arg; N],
    kernel: Kernel<C, C, N>,
) -> Result<()> {
    let shape: Dims = to.shape().into();
    let out = to.as_mut_slice::<C>()?;
    if let Some((values, found)) = plain_operands::<C, N>(&args)
        && found == &shape[..]
    {
        for_pieces_of(out, 1, GRAIN, |piece, part| {
            kernel(values.map(|values| &values[piece.clone()]), part);
        });
        return Ok(());
    }
    let sources = Sources::new(&args, &shape);
    sources.blocks::<C>(&shape)?.write(out, kernel);
    Ok(())
}

/// The values of operands that are all consecutive, of type `C` and of one shape.
#[inline]
fn plain_operands<'a, C: Compute, const N: usize>(
    args: &[Arg<'a>; N],
) -> Option<([&'a [C]; N], &'a [usize])> {
    let Arg::Tensor(first) = args.first()? else { return None };
    let mut values: [&[C]; N] = [&[]; N];
    for (values, arg) in values.iter_mut().zip(args) {
        let Arg::Tensor(tensor) = arg else { return None };
        if tensor.shape() != first.shape() {
            return None;
        }
        *values = tensor.plain()?;
    }
    Some((values, first.shape()))
}

/// The operands as [`Operand`]s, which own what the blocks borrow.
struct Sources<const N: usize> {
    operands: [Operand; N],
    /// Sizes of the dims that are left after merging.
    sizes: Dims,
}

impl<const N: usize> Sources<N> {
    fn new(args: &[Arg; N], shape: &[usize]) -> Sources<N> {
        let mut operands = args.map(|arg| Operand::new(arg, shape));
        let sizes = super::layout::merge(&mut operands, shape);
        Sources { operands, sizes }
    }

    fn blocks<C: Compute>(&self, shape: &[usize]) -> Result<Blocks<'_, C, N>> {
        let mut inputs = [const { Input::Same(None) }; N];
        for (input, operand) in inputs.iter_mut().zip(&self.operands) {
            *input = match operand {
                Operand::Scalar(scalar) => Input::Same(Some(C::of_scalar(*scalar))),
                // Nothing will be read.
                Operand::View { .. } if shape.contains(&0) => Input::Same(None),
                Operand::View { memory, start, strides } => {
                    let values = Values::of(memory)?;
                    Input::Strided { values, start: *start, strides }
                }
            };
        }
        Ok(Blocks { inputs, sizes: &self.sizes, row: n_inner(&self.sizes) })
    }
}

/// How blocks of one operand are had.
enum Input<'a, C> {
    /// One value everywhere; none if there is nothing to read.
    Same(Option<C>),
    /// Values in memory, with one stride per merged dim.
    Strided { values: Values<'a>, start: usize, strides: &'a [isize] },
}

struct Blocks<'a, C, const N: usize> {
    inputs: [Input<'a, C>; N],
    sizes: &'a [usize],
    /// Size of the last merged dim.
    row: usize,
}

impl<C: Compute, const N: usize> Blocks<'_, C, N> {
    fn write<K: Compute>(&self, out: &mut [K], kernel: Kernel<C, K, N>) {
        for_pieces_of(out, 1, GRAIN, |piece, part| {
            let mut buffers = self.buffers();
            self.compute(piece, part, &mut buffers, kernel);
        });
    }

    fn write_as<K: Compute + CastTo<To>, To: Element>(
        &self,
        out: &mut [To],
        kernel: Kernel<C, K, N>,
    ) {
        for_pieces_of(out, 1, GRAIN, |piece, part| {
            let mut buffers = self.buffers();
            let mut computed = [K::default(); BLOCK];
            for (index, part) in part.chunks_mut(BLOCK).enumerate() {
                let start = piece.start + index * BLOCK;
                let computed = &mut computed[..part.len()];
                self.compute(start..start + part.len(), computed, &mut buffers, kernel);
                convert(computed, part);
            }
        });
    }

    /// Buffers in which the values that are the same everywhere stand already.
    fn buffers(&self) -> [[C; BLOCK]; N] {
        std::array::from_fn(|i| match self.inputs[i] {
            Input::Same(Some(value)) => [value; BLOCK],
            _ => [C::default(); BLOCK],
        })
    }

    /// Computes the elements of a range of the result.
    fn compute<K>(
        &self,
        range: Range<usize>,
        out: &mut [K],
        buffers: &mut [[C; BLOCK]; N],
        kernel: Kernel<C, K, N>,
    ) {
        let mut at = range.start;
        let mut rest = out;
        while !rest.is_empty() {
            // A block that ends with its row can often be borrowed; short rows are put together.
            let left_in_row = self.row - at % self.row;
            let limit = if self.row >= BLOCK / 8 { left_in_row.min(BLOCK) } else { BLOCK };
            let n = limit.min(rest.len());
            let (block, later) = std::mem::take(&mut rest).split_at_mut(n);
            let mut filled = buffers
                .each_mut()
                .into_iter()
                .zip(&self.inputs)
                .map(|(buffer, input)| self.block(input, at, &mut buffer[..block.len()]));
            let values: [&[C]; N] = std::array::from_fn(|_| filled.next().unwrap_or_default());
            kernel(values, block);
            at += block.len();
            rest = later;
        }
    }

    /// The values of one operand from `at` on, as many as the buffer is long.
    fn block<'b>(&'b self, input: &'b Input<C>, at: usize, buffer: &'b mut [C]) -> &'b [C] {
        let Input::Strided { values, start, strides } = input else { return buffer };
        let stride = strides.last().copied().unwrap_or(0);
        // All of a run of consecutive values of the right type: no need to copy them.
        let one_run = at % self.row + buffer.len() <= self.row;
        if one_run
            && stride == 1
            && let Some(values) = C::of(*values)
        {
            let first = self.position(*start, strides, at);
            return &values[first..first + buffer.len()];
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = at + done;
            let n = (self.row - at % self.row).min(buffer.len() - done);
            let first = self.position(*start, strides, at);
            C::load(*values, first, stride, &mut buffer[done..done + n]);
            done += n;
        }
        buffer
    }

    /// Where the element with number `at` of the result is in an operand's memory.
    fn position(&self, start: usize, strides: &[isize], mut at: usize) -> usize {
        let mut position = start;
        for (size, stride) in self.sizes.iter().zip(strides).rev() {
            position = position.wrapping_add_signed((at % size) as isize * stride);
            at /= size;
        }
        position
    }
}
