//! Elements at other places: views, and what moves along dims.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
