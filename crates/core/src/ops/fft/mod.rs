//! Fourier transforms.

mod kind;
mod many;
mod one;
mod shift;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[one::RECORDS, many::RECORDS, shift::RECORDS];
