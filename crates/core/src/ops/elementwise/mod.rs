//! Operations on every element alone.

mod activation_backward;
mod binary;
mod bounded;
mod cast;
mod close;
mod logic;
mod ternary;
mod unary;

use crate::{DTensor, Result, op::OpRecord};

pub(super) const RECORDS: &[&[OpRecord]] = &[
    binary::RECORDS,
    unary::RECORDS,
    activation_backward::RECORDS,
    bounded::RECORDS,
    ternary::RECORDS,
    logic::RECORDS,
    cast::RECORDS,
    close::RECORDS,
];

/// The gradient of what has steps and is level between them.
fn zero() -> Result<Option<DTensor>> {
    Ok(None)
}
