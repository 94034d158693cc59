//! The other direction: rows that are true although no rule has them.

use std::collections::BTreeSet;

use dtensor_layout::{Placement, ReduceOp, rule::Row};

use super::{N_DRAWS, OracleOp, Trial, samples};
use crate::dense::Dense;

/// The rows that are true for a sample of an op, on one mesh axis of `n_ranks` ranks, and that its
/// rule does not have for that sample: as lines `op: row`, sorted.
///
/// Left out, because they are true of everything: rows of replicated operands, cuts of dims of size
/// 1, and readings of equal results other than `R` (the mean of equal values is the value).
///
/// # Panics
/// If the op has no samples, or its rule or kernel refuses one.
#[track_caller]
pub fn undeclared(op: &dyn OracleOp, n_ranks: usize) -> Vec<String> {
    let mut found = BTreeSet::new();
    for sample in samples(op) {
        let shapes = sample.shapes();
        let declared = op.rule(&shapes).rows(&shapes, n_ranks);
        let declared = declared.unwrap_or_else(|error| panic!("{}: {error}", op.name()));
        let trials: Vec<Trial<'_>> =
            (0..N_DRAWS).map(|seed| Trial::new(op, &sample, seed)).collect();
        let candidates_of_operands: Vec<_> = shapes.iter().map(|shape| candidates(shape)).collect();
        for operands in product(&candidates_of_operands) {
            if operands.iter().all(|placement| *placement == Placement::Replicate) {
                continue;
            }
            // Per result the readings that no draw refutes.
            let readings = trials[0].want.iter().enumerate().map(|(result, want)| {
                let mut readings = candidates(want.shape());
                readings.retain(|reading| {
                    trials.iter().all(|trial| reads(trial, &operands, result, *reading, n_ranks))
                });
                readings
            });
            let rows = product(&readings.collect::<Vec<_>>())
                .into_iter()
                .map(|results| Row { operands: operands.clone(), results });
            found.extend(rows.filter(|row| !declared.contains(row)));
        }
    }
    found.into_iter().map(|row| format!("{}: {row}", op.name())).collect()
}

/// Whether one result of one trial may be read so.
fn reads(
    trial: &Trial<'_>,
    operands: &[Placement],
    result: usize,
    reading: Placement,
    n_ranks: usize,
) -> bool {
    let operands: Vec<Vec<Placement>> = operands.iter().map(|one| vec![*one]).collect();
    // Kernels that are told the shape of their result are told it by this reading.
    let results = vec![vec![reading]; trial.want.len()];
    let Ok(parts) = trial.run(&operands, &results, &[n_ranks]) else { return false };
    let idempotent =
        matches!(reading, Placement::Partial(ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min));
    if idempotent && equal(&parts[result]) {
        return false;
    }
    trial.compare(result, &parts[result], &[reading], &[n_ranks]).is_ok()
}

fn equal(parts: &[Dense]) -> bool {
    parts.iter().all(|part| part.is_close(&parts[0]))
}

/// The placements worth trying for a tensor, `R` first.
fn candidates(shape: &[usize]) -> Vec<Placement> {
    let cuts = (0..shape.len()).filter(|dim| shape[*dim] != 1).map(Placement::Shard);
    let pending = ReduceOp::ALL.map(Placement::Partial);
    [Placement::Replicate].into_iter().chain(cuts).chain(pending).collect()
}

/// Every way to pick one of each list.
fn product(lists: &[Vec<Placement>]) -> Vec<Vec<Placement>> {
    lists.iter().fold(vec![Vec::new()], |picked, list| {
        let extend = |picked: &Vec<Placement>| -> Vec<Vec<Placement>> {
            list.iter().map(|one| [picked.as_slice(), &[*one]].concat()).collect()
        };
        picked.iter().flat_map(extend).collect()
    })
}
