//! Elements picked or written by index.

mod advanced;
pub(super) mod held;
mod mask;
mod pick;
pub(super) mod ragged;
mod repeat;
mod scatter;
mod slices;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    pick::RECORDS,
    scatter::RECORDS,
    slices::RECORDS,
    advanced::RECORDS,
    mask::RECORDS,
    repeat::RECORDS,
];
