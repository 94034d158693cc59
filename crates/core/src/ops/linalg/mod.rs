//! Linear algebra.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
