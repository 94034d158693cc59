//! Linear algebra.

mod cdist;
mod checked;
mod gradients;
mod matrices;
mod norms;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[matrices::RECORDS, cdist::RECORDS];
