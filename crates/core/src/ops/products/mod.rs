//! Products of matrices.

mod matmul;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[matmul::RECORDS];
