//! Operations on every element alone.

mod binary;
mod bounded;
mod cast;
mod close;
mod logic;
mod ternary;
mod unary;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    binary::RECORDS,
    unary::RECORDS,
    bounded::RECORDS,
    ternary::RECORDS,
    logic::RECORDS,
    cast::RECORDS,
    close::RECORDS,
];
