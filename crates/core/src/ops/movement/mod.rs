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

use super::letters::{letter, letters, rule};
use crate::op::OpRecord;

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

/// Whether an axis cuts a dim.
fn cuts(layout: &Layout, dim: usize) -> bool {
    !layout.order().cuts(dim).is_empty()
}
