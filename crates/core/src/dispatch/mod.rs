//! From operands to results: decide once, remember, run.
//!
//! What an operation does is decided from its attributes and the layouts of its operands alone. The
//! decision (what is redistributed, where the results lie, what the kernel is told) is kept per rank
//! thread. When the same operation meets the same layouts again, it is found by a hash of a few pointers,
//! without a lock, and what is left is the kernel.

mod agree;
mod cache;
pub(crate) mod choose;
mod decision;

use std::{rc::Rc, sync::Arc};

use dtensor_layout::Layout;
use smallvec::SmallVec;

use crate::{
    DTensor, DeviceMesh, Error, Result, autograd, debug,
    op::{Keep, Op, Outputs},
    redistribute::Route,
};

pub(crate) use agree::Agreement;
pub use cache::{CacheStats, RuleReplacement, cache_stats, clear_cache, replace_rule};
pub(crate) use decision::Decision;
use decision::Reduced;

/// Runs an operation: brings the operands to where its cheapest row needs them, runs the kernel on every
/// rank, and gives the results with their layouts.
///
/// Every rank of the mesh must call the same operations in the same order. Mistakes that follow from shapes,
/// dtypes, layouts or attributes are found before anything is sent.
pub fn call(op: &dyn Op, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
    debug::called(op, operands);
    let decision = decide(op, operands)?;
    let results = match autograd::is_recorded(operands) {
        false => decision.run(op, operands),
        true => remembered(op, operands, &decision),
    }?;
    debug::finished(op, operands, &results)?;
    Ok(results)
}

/// Runs an operation, and remembers it for gradients.
#[cold]
fn remembered(op: &dyn Op, operands: &[&DTensor], decision: &Decision) -> Result<Outputs<DTensor>> {
    let keep = op.keeps().unwrap_or(Keep::NOTHING);
    let is_reduced = |number: usize| {
        keep.keeps_operand_of(number, operands).then(|| decision.reduced(number)).flatten()
    };
    if !(0..operands.len()).any(|number| is_reduced(number).is_some()) {
        return autograd::recorded(op, operands, || decision.run(op, operands));
    }
    // What is reduced for the kernel and kept for the gradient is reduced once: the gradient sees the sum.
    decision.check_moves(op)?;
    let mut settled: SmallVec<[DTensor; 2]> = SmallVec::new();
    for (number, operand) in operands.iter().enumerate() {
        settled.push(match is_reduced(number) {
            Some(Reduced::To(layout)) => operand.redistribute_as(op.name(), layout)?,
            Some(Reduced::InSteps) => operand.settled_as(op.name())?,
            None => (*operand).clone(),
        });
    }
    let operands: SmallVec<[&DTensor; 2]> = settled.iter().collect();
    let decision = decide(op, &operands)?;
    autograd::recorded(op, &operands, || decision.run(op, &operands))
}

/// As [`call`], for operations of one result.
#[inline]
pub(crate) fn call_one(op: &dyn Op, operands: &[&DTensor]) -> Result<DTensor> {
    let mut results = call(op, operands)?;
    results.pop().ok_or_else(|| wrong_number(op, 0, 1))
}

/// As [`call`], for operations of two results.
pub(crate) fn call_two(op: &dyn Op, operands: &[&DTensor]) -> Result<(DTensor, DTensor)> {
    let mut results = call(op, operands)?;
    let n = results.len();
    match (results.pop(), results.pop()) {
        (Some(second), Some(first)) => Ok((first, second)),
        _ => Err(wrong_number(op, n, 2)),
    }
}

/// As [`call`], for operations of three results.
pub(crate) fn call_three(
    op: &dyn Op,
    operands: &[&DTensor],
) -> Result<(DTensor, DTensor, DTensor)> {
    let mut results = call(op, operands)?;
    let n = results.len();
    match (results.pop(), results.pop(), results.pop()) {
        (Some(third), Some(second), Some(first)) => Ok((first, second, third)),
        _ => Err(wrong_number(op, n, 3)),
    }
}

/// The way from one layout to another, remembered.
pub(crate) fn route(
    op: &'static str,
    from: (&Layout, &DeviceMesh),
    to: (&Layout, &DeviceMesh),
) -> Result<Arc<Route>> {
    cache::route(op, from, to)
}

#[inline]
fn decide(op: &dyn Op, operands: &[&DTensor]) -> Result<Rc<Decision>> {
    let Some(first) = operands.first() else {
        return Err(Error::Unsupported {
            op: op.name(),
            what: "it has no operand to take a mesh from".into(),
            way_out: "use a factory such as zeros",
        });
    };
    for (number, operand) in operands.iter().enumerate().skip(1) {
        if !operand.mesh().is_same(first.mesh()) && operand.mesh() != first.mesh() {
            return Err(Error::MixedMeshes {
                op: op.name(),
                first: first.mesh().to_string().into(),
                operand: number,
                other: operand.mesh().to_string().into(),
            });
        }
    }
    cache::decision(op, operands)
}

fn wrong_number(op: &dyn Op, got: usize, want: usize) -> Error {
    Error::Unsupported {
        op: op.name(),
        what: format!("it gave {got} results where {want} were expected").into(),
        way_out: "its kernel must give as many as its rule has",
    }
}
