//! Elements at other places: views, and what moves along dims.
//!
//! Nothing here computes, so everything pending passes through, and dims that stay may be cut. Along a cut dim
//! that moves, the ranks exchange what they lack of the result, in one call; see `exchange`.

mod assign;
mod diagonal;
mod dims;
mod join;
mod meshgrid;
mod pad;
mod repeat;
mod reshape;
mod runs;
mod slice;
mod split;
mod stretches;
mod triangle;
mod turn;
mod unfold;

use dtensor_layout::Layout;
use dtensor_local::{PadMode, Scalar};

use super::letters::{letter, letters, rule};
use crate::{DTensor, Result, op::OpRecord};

pub(super) const RECORDS: &[&[OpRecord]] = &[
    reshape::RECORDS,
    dims::RECORDS,
    slice::RECORDS,
    unfold::RECORDS,
    turn::RECORDS,
    join::RECORDS,
    split::RECORDS,
    pad::RECORDS,
    repeat::RECORDS,
    assign::RECORDS,
    diagonal::RECORDS,
    triangle::RECORDS,
    meshgrid::RECORDS,
];

/// With so many zeros before and after a dim, or elements of it taken away. That is the gradient of a part of a dim: zero
/// elsewhere.
pub(super) fn grown(x: &DTensor, dim: usize, before: isize, after: isize) -> Result<DTensor> {
    let mut pads = vec![0; 2 * (x.n_dims() - dim)];
    let last = pads.len() - 2;
    pads[last..].copy_from_slice(&[before, after]);
    padded(x, &pads)
}

/// With zeros at the end of dims, or elements taken away there, such that it has this shape.
pub(super) fn resized(x: &DTensor, shape: &[usize]) -> Result<DTensor> {
    let dims = x.shape().iter().zip(shape).rev();
    let pads = dims.flat_map(|(own, size)| [0, size.cast_signed() - own.cast_signed()]);
    padded(x, &pads.collect::<Vec<_>>())
}

fn padded(x: &DTensor, pads: &[isize]) -> Result<DTensor> {
    match pads.iter().all(|pad| *pad == 0) {
        true => Ok(x.clone()),
        false => x.pad(pads, PadMode::Constant(Scalar::Float(0.0))),
    }
}

/// Whether an axis cuts a dim.
fn cuts(layout: &Layout, dim: usize) -> bool {
    !layout.order().cuts(dim).is_empty()
}
