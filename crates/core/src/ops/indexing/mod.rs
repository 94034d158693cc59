//! Elements picked or written by index.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
