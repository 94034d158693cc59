//! Reductions over dims, and scans along one.

mod sum;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[sum::RECORDS];
