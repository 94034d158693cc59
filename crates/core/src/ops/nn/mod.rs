//! Operations of neural networks.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
