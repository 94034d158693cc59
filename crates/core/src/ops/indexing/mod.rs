//! Elements picked or written by index.

mod advanced;
pub(super) mod held;
mod last;
mod mask;
pub(super) mod pick;
pub(super) mod ragged;
mod repeat;
mod scatter;
mod slices;
pub(super) mod zeros;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    pick::RECORDS,
    scatter::RECORDS,
    slices::RECORDS,
    advanced::RECORDS,
    mask::RECORDS,
    repeat::RECORDS,
];
