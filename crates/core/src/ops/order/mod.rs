//! Sorting, searching, counting.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
