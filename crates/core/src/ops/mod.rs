//! The table of operations.
//!
//! One operation is one row or one file: its rule, kernel and samples stand together, and the method of
//! [`DTensor`](crate::DTensor) that users call beside them. [`TABLE`] lists them all; tests, documentation
//! and `dtensor ops` walk it.

mod elementwise;
mod fft;
mod indexing;
mod letters;
mod linalg;
mod movement;
pub mod nn;
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

/// All operations, with the rule of each for its first sample.
#[doc = include_str!("table.md")]
pub mod table {}

/// The text of [`table`](mod@table), made from [`TABLE`]: a test compares the two.
pub fn table_markdown() -> crate::Result<String> {
    let mut text = String::new();
    for family in TABLE {
        let n = family.records.iter().map(|records| records.len()).sum::<usize>();
        text += &format!(
            "\n# {} ({n})\n\n| name | rule | laws | gradient |\n|---|---|---|---|\n",
            family.name
        );
        for record in family.records.iter().copied().flatten() {
            let Some(rule) = record.rule()? else { continue };
            let laws: Vec<String> = rule.laws().iter().map(ToString::to_string).collect();
            let signature = rule.signature().to_string();
            let (laws, gradient) =
                (laws.join(", "), if record.has_gradient() { "yes" } else { "" });
            text += &format!("| {} | `{signature}` | {laws} | {gradient} |\n", record.name);
        }
    }
    Ok(text)
}

/// Every built-in operation.
pub fn ops() -> impl Iterator<Item = &'static OpRecord> {
    TABLE.iter().flat_map(|family| family.records).copied().flatten()
}
