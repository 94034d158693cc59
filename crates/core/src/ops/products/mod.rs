//! Products of matrices.

mod addmm;
mod einsum;
mod kron;
mod matmul;
mod pairs;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] =
    &[matmul::RECORDS, pairs::RECORDS, addmm::RECORDS, einsum::RECORDS, kron::RECORDS];
