//! Fourier transforms.

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[];
