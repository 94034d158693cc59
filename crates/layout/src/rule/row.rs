//! One legal way to run an op: a placement for every operand and every result.

use std::{fmt, str::FromStr};

use super::RuleError;
use crate::{Placement, ReduceOp};

/// One legal way to run an op on one mesh axis: `S(1) S(0) -> P(sum)`.
///
/// Prints so and parses back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// One placement per operand.
    pub operands: Vec<Placement>,
    /// One placement per result.
    pub results: Vec<Placement>,
}

/// One legal way to run an op on a mesh: one [`Row`] per mesh axis, outermost first.
///
/// Where several axes cut one tensor dim, they cut it from left to right.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeshRow(pub Vec<Row>);

impl Row {
    /// Every tensor whole on every rank: right for every op.
    pub fn replicated(n_operands: usize, n_results: usize) -> Row {
        Row {
            operands: vec![Placement::Replicate; n_operands],
            results: vec![Placement::Replicate; n_results],
        }
    }
}

impl MeshRow {
    /// The placements of one operand, one per mesh axis.
    pub fn operand(&self, operand: usize) -> Vec<Placement> {
        self.0.iter().map(|row| row.operands[operand]).collect()
    }

    /// The placements of one result, one per mesh axis.
    pub fn result(&self, result: usize) -> Vec<Placement> {
        self.0.iter().map(|row| row.results[result]).collect()
    }
}

/// Whether no tensor has two pending reductions that do not commute: such a value depends on which
/// axis is reduced first, so no layout describes it.
pub(super) fn partials_commute(rows: &[&Row]) -> bool {
    let Some(first) = rows.first() else { return true };
    let commute = |placement: &dyn Fn(&Row) -> Placement| {
        let mut pending = rows.iter().filter_map(|row| placement(row).reduce_op());
        let linear = |op| matches!(op, ReduceOp::Sum | ReduceOp::Avg);
        let Some(one) = pending.next() else { return true };
        pending.all(|other| other == one || (linear(one) && linear(other)))
    };
    (0..first.operands.len()).all(|i| commute(&|row| row.operands[i]))
        && (0..first.results.len()).all(|i| commute(&|row| row.results[i]))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for placement in &self.operands {
            write!(f, "{placement} ")?;
        }
        f.write_str("->")?;
        for placement in &self.results {
            write!(f, " {placement}")?;
        }
        Ok(())
    }
}

impl FromStr for Row {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Row, RuleError> {
        let bad = |why: String| RuleError::Parse { text: text.trim().to_string(), why };
        let side = |side: &str| {
            let words = side.split_whitespace();
            let placements = words
                .map(|word| word.parse().map_err(|error| bad(format!("{error}"))))
                .collect::<Result<Vec<Placement>, RuleError>>()?;
            match placements.is_empty() {
                true => Err(bad("a row has a placement on both sides of `->`".to_string())),
                false => Ok(placements),
            }
        };
        let (operands, results) =
            text.split_once("->").ok_or_else(|| bad("there is no `->`".to_string()))?;
        Ok(Row { operands: side(operands)?, results: side(results)? })
    }
}

impl fmt::Display for MeshRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (axis, row) in self.0.iter().enumerate() {
            let times = if axis == 0 { "" } else { " x " };
            write!(f, "{times}({row})")?;
        }
        Ok(())
    }
}
