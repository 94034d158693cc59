//! The rows of a rule for given shapes, and which of them go together on a mesh.

use std::collections::BTreeSet;

use super::{
    MeshRow, Row, Rule, RuleError,
    expand::{Expanded, FactorDims, expand},
    row::partials_commute,
};
use crate::{Placement, ReduceOp};

/// Every way to run an op on operands of given shapes, before any mesh is known.
///
/// Each mesh axis takes one of the [`rows`](Choices::rows); [`allows`](Choices::allows) says
/// whether what they took holds together. The number of combinations grows with the power of the
/// number of axes, so a search does better to pick per axis and ask than to list
/// [`on_mesh`](Choices::on_mesh).
#[derive(Clone, Debug)]
pub struct Choices {
    rows: Vec<Row>,
    /// For every row the factor that it cuts, if it cuts one.
    cuts: Vec<Option<usize>>,
    factors: Vec<Demands>,
}

/// What a factor demands of the axes that cut it.
#[derive(Clone, Debug, Default)]
struct Demands {
    size: usize,
    /// A result is the mean over it, so its shards must be of equal size.
    even: bool,
    /// Where it is a letter of a group, and has to be a plain cut of that dim.
    groups: Vec<InGroup>,
}

#[derive(Clone, Debug)]
struct InGroup {
    /// The factors before it.
    before: Vec<usize>,
    /// Product of the sizes of the factors after it.
    after: usize,
}

impl Choices {
    pub(super) fn of(rule: &Rule, shapes: &[&[usize]]) -> Result<Choices, RuleError> {
        let (n_operands, n_results) = (rule.n_operands(), rule.n_results());
        if shapes.len() != n_operands {
            return Err(RuleError::WrongNumberOfOperands {
                rule: rule.signature().to_string(),
                got: shapes.len(),
                want: n_operands,
            });
        }
        let mut choices = Choices { rows: Vec::new(), cuts: Vec::new(), factors: Vec::new() };
        choices.push(Row::replicated(n_operands, n_results), None);
        if let Some(letters) = &rule.letters {
            let expanded = expand(rule, letters, shapes)?;
            let reduce: Vec<ReduceOp> =
                letters.results.iter().map(|result| result.reduce).collect();
            choices.factors = demands(&expanded, &reduce);
            for (number, factor) in expanded.factors.iter().enumerate() {
                if !factor.whole {
                    choices.push(cut(&expanded, &reduce, number), Some(number));
                }
            }
        }
        for row in &rule.rows {
            for (operand, placement) in row.operands.iter().enumerate() {
                if placement.shard_dim().is_some_and(|dim| dim >= shapes[operand].len()) {
                    return Err(RuleError::DoesNotFit {
                        rule: rule.signature().to_string(),
                        operand,
                        shape: shapes[operand].to_vec(),
                        why: format!("there is no dim to cut as {placement}"),
                    });
                }
            }
            choices.push(row.clone(), None);
        }
        for law in &rule.laws {
            for row in law.rows(n_operands, n_results) {
                choices.push(row, None);
            }
        }
        Ok(choices)
    }

    /// What one axis may take, the replicated row first. Which of them it really may take depends
    /// on its size and on the other axes: see [`allows`](Choices::allows).
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether a row cuts a letter that is a dim of its own in every tensor that has it: then axes may cut it
    /// in any order, if they cut it in the same order everywhere. No for a row that cuts nothing.
    pub fn cuts_whole_dims(&self, row: usize) -> bool {
        let cut = self.cuts.get(row).copied().flatten();
        cut.is_some_and(|factor| self.factors[factor].groups.is_empty())
    }

    /// Whether mesh axes of these sizes, outermost first, may take these rows: `taken` has for each
    /// axis a position in [`rows`](Choices::rows). No, if the lists are not of one length.
    pub fn allows(&self, taken: &[usize], axis_sizes: &[usize]) -> bool {
        if taken.len() != axis_sizes.len() || taken.iter().any(|row| *row >= self.rows.len()) {
            return false;
        }
        let rows: Vec<&Row> = taken.iter().map(|row| &self.rows[*row]).collect();
        let cuts: Vec<Option<usize>> = taken.iter().map(|row| self.cuts[*row]).collect();
        partials_commute(&rows)
            && cuts.iter().flatten().all(|factor| self.allows_cuts(*factor, &cuts, axis_sizes))
    }

    /// Every way to run the op on a mesh of these axis sizes, outermost first. Lazy, since there may
    /// be many.
    pub fn on_mesh<'a>(&'a self, axis_sizes: &'a [usize]) -> impl Iterator<Item = MeshRow> + 'a {
        let n_axes = u32::try_from(axis_sizes.len()).unwrap_or(u32::MAX);
        let n_combinations = self.rows.len().checked_pow(n_axes).unwrap_or(usize::MAX);
        let taken = (0..n_combinations).map(move |mut number| {
            let mut taken = vec![0; axis_sizes.len()];
            for row in taken.iter_mut().rev() {
                *row = number % self.rows.len();
                number /= self.rows.len();
            }
            taken
        });
        // Two letters may give the same row under different demands; it is listed once.
        let mut seen = BTreeSet::new();
        taken
            .filter(move |taken| self.allows(taken, axis_sizes))
            .map(|taken| MeshRow(taken.iter().map(|row| self.rows[*row].clone()).collect()))
            .filter(move |row| seen.insert(row.clone()))
    }

    fn push(&mut self, row: Row, cut: Option<usize>) {
        let known = self.rows.iter().zip(&self.cuts).any(|known| known == (&row, &cut));
        // A row that demands nothing need not be there twice.
        if !known {
            self.rows.push(row);
            self.cuts.push(cut);
        }
    }

    /// See the numbered conditions in the documentation of the module.
    fn allows_cuts(&self, factor: usize, cuts: &[Option<usize>], axis_sizes: &[usize]) -> bool {
        let demands = &self.factors[factor];
        let axes_of = |factor: usize| {
            cuts.iter()
                .enumerate()
                .filter(move |(_, cut)| **cut == Some(factor))
                .map(|(axis, _)| axis)
        };
        let n_ranks = |axes: &mut dyn Iterator<Item = usize>| {
            axes.fold(1usize, |n_ranks, axis| n_ranks.saturating_mul(axis_sizes[axis]))
        };
        let n_parts = n_ranks(&mut axes_of(factor));
        if n_parts == 1 {
            return true;
        }
        // Condition 1.
        if demands.even && !demands.size.is_multiple_of(n_parts) {
            return false;
        }
        // Condition 2. Several axes could cut in any order, of which only even cuts are independent.
        let first_axis = axes_of(factor).next().unwrap_or(0);
        let one_axis = axes_of(factor).nth(1).is_none();
        demands.groups.iter().all(|group| {
            let used_up = group.before.iter().all(|before| {
                let mut outer = axes_of(*before).filter(|axis| *axis < first_axis);
                n_ranks(&mut outer) == self.factors[*before].size || self.factors[*before].size == 1
            });
            let lines_up = demands.size.is_multiple_of(n_parts)
                || (one_axis && lines_up(demands.size, group.after, n_parts));
            used_up && (group.after <= 1 || lines_up)
        })
    }
}

/// The row of the axis that cuts this factor.
fn cut(expanded: &Expanded, reduce: &[ReduceOp], factor: usize) -> Row {
    let position = |dims: &FactorDims| dims.iter().position(|dim| dim.contains(&factor));
    let operands = expanded
        .operands
        .iter()
        .map(|dims| position(dims).map_or(Placement::Replicate, Placement::Shard));
    let results = expanded
        .results
        .iter()
        .zip(reduce)
        .map(|(dims, op)| position(dims).map_or(Placement::Partial(*op), Placement::Shard));
    Row { operands: operands.collect(), results: results.collect() }
}

fn demands(expanded: &Expanded, reduce: &[ReduceOp]) -> Vec<Demands> {
    let mut all: Vec<Demands> = expanded
        .factors
        .iter()
        // Sizes are unknown only where nothing is cut.
        .map(|factor| Demands { size: factor.size.unwrap_or(1), ..Demands::default() })
        .collect();
    for (dims, _) in expanded.results.iter().zip(reduce).filter(|(_, op)| **op == ReduceOp::Avg) {
        for (factor, demands) in all.iter_mut().enumerate() {
            demands.even |= !dims.iter().any(|dim| dim.contains(&factor));
        }
    }
    for dim in expanded.operands.iter().chain(&expanded.results).flatten() {
        for (position, factor) in dim.iter().enumerate().filter(|_| dim.len() > 1) {
            let after = dim[position + 1..].iter().map(|after| all[*after].size);
            let after = after.fold(1usize, usize::saturating_mul);
            all[*factor].groups.push(InGroup { before: dim[..position].to_vec(), after });
        }
    }
    all
}

/// Whether the chunks of `size * after` elements are the chunks of `size`, each `after` times as
/// long. All chunks but the last have one length, so comparing that length is enough.
fn lines_up(size: usize, after: usize, n_parts: usize) -> bool {
    let (length, chunk) = (size.saturating_mul(after), size.div_ceil(n_parts.max(1)));
    length.div_ceil(n_parts.max(1)) == chunk.saturating_mul(after)
}
