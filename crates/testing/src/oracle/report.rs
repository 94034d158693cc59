//! What the oracle has to say, in lines that can be read and kept.

use std::{collections::BTreeMap, fmt};

use dtensor_layout::rule::MeshRow;

/// A row that a rule claims and that is not true.
#[derive(Clone, Debug)]
pub struct FalseRow {
    /// The op.
    pub op: String,
    /// Global shapes of the operands.
    pub shapes: Vec<Vec<usize>>,
    /// Sizes of the mesh axes.
    pub mesh: Vec<usize>,
    /// The row.
    pub row: MeshRow,
    /// What showed it.
    pub why: String,
}

impl fmt::Display for FalseRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FalseRow { op, shapes, mesh, row, why } = self;
        write!(f, "{op} {shapes:?} on {mesh:?} ranks: {row}: {why}")
    }
}

/// Holds true but undeclared rows (lines `op: row`) against a list of known ones, each with its
/// reason: `op: row  # reason`, or `op: *  # reason` for all rows of an op. Other lines of the list may be empty or begin with `#`.
///
/// # Panics
/// If a row is not on the list, a line of the list is no longer found, or a line has no reason.
#[track_caller]
pub fn assert_known(found: &[String], known: &str) {
    let mut reasons: BTreeMap<&str, &str> = BTreeMap::new();
    for line in known.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (row, reason) = line.split_once('#').unwrap_or((line, ""));
        assert!(!reason.trim().is_empty(), "`{line}` needs a reason: `op: row  # reason`");
        reasons.insert(row.trim(), reason.trim());
    }
    let covers = |line: &str, row: &str| match line.strip_suffix('*') {
        Some(op) => row.starts_with(op),
        None => line == row,
    };
    let found = || found.iter().map(String::as_str);
    let new: Vec<&str> =
        found().filter(|row| !reasons.keys().any(|line| covers(line, row))).collect();
    let gone: Vec<&str> =
        reasons.keys().copied().filter(|line| !found().any(|row| covers(line, row))).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "true rows that no rule declares have changed\n\
         new (declare them, or add them with a reason):\n{}\n\
         gone (declared by now, or no longer true; remove them):\n{}",
        new.join("\n"),
        gone.join("\n"),
    );
}
