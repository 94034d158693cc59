//! Operations on every element alone.

mod binary;
mod unary;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[binary::RECORDS, unary::RECORDS];
