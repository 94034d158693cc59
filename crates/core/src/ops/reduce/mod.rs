//! Reductions over dims, and scans along one.

mod carry;
mod folds;
mod logsumexp;
mod mean;
mod moments;
mod norm;
mod over;
mod places;
mod scan;
mod scan_extremes;

use crate::op::OpRecord;

pub(super) use norm::{reduction_of_norms, root};
pub(super) use over::normal_dims;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    folds::RECORDS,
    mean::RECORDS,
    places::RECORDS,
    moments::RECORDS,
    norm::RECORDS,
    logsumexp::RECORDS,
    scan::RECORDS,
    scan_extremes::RECORDS,
];
