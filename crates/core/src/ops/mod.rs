//! The table of operations.
//!
//! One operation is one row or one file: its rule, kernel and samples stand together, and the method of
//! [`DTensor`](crate::DTensor) that users call beside them. [`TABLE`] lists them all; tests, documentation
//! and `dtensor ops` walk it.

mod elementwise;
mod fft;
mod indexing;
mod linalg;
mod movement;
mod nn;
mod order;
mod products;
mod reduce;

use crate::op::OpRecord;

/// Every built-in operation, by family, in the order of the documentation.
pub const TABLE: &[Family] = &[
    Family { name: "elementwise", records: elementwise::RECORDS },
    Family { name: "reductions and scans", records: reduce::RECORDS },
    Family { name: "products", records: products::RECORDS },
    Family { name: "views and movement", records: movement::RECORDS },
    Family { name: "indexing", records: indexing::RECORDS },
    Family { name: "order and search", records: order::RECORDS },
    Family { name: "neural networks", records: nn::RECORDS },
    Family { name: "linear algebra", records: linalg::RECORDS },
    Family { name: "Fourier transforms", records: fft::RECORDS },
];

/// Operations that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// What they have in common.
    pub name: &'static str,
    /// A list per file.
    pub records: &'static [&'static [OpRecord]],
}

/// Every built-in operation.
pub fn ops() -> impl Iterator<Item = &'static OpRecord> {
    TABLE.iter().flat_map(|family| family.records).copied().flatten()
}
