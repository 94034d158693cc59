//! Sorting, searching, counting.

mod along;
mod count;
mod merge;
mod quantile;
mod search;
mod sort;
mod topk;
mod unique;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    sort::RECORDS,
    topk::RECORDS,
    quantile::RECORDS,
    unique::RECORDS,
    count::RECORDS,
    search::RECORDS,
];
