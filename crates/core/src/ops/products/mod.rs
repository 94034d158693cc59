//! Products of matrices.

mod addend;
mod addmm;
mod einsum;
mod kron;
mod linear;
mod matmul;
mod pairs;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    matmul::RECORDS,
    pairs::RECORDS,
    addmm::RECORDS,
    linear::RECORDS,
    einsum::RECORDS,
    kron::RECORDS,
];
