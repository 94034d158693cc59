//! Seeing what happens.

mod anomaly;
mod comm;
mod explain;
mod module;
mod trace;
mod visualize;

use std::cell::Cell;

pub use anomaly::detect_anomaly;
pub use comm::{CommDebug, CommEvent, ModuleSpan};
pub(crate) use comm::{Sending, saw, sent};
pub use explain::{AxisRows, Explanation, RowCost, explain, explain_calls};
pub use module::{Phase, module_scope, phase};
pub(crate) use module::{in_backward, in_module, module};
pub use visualize::{visualize_sharding, visualize_sharding_svg};

use crate::{DTensor, Result, op::Op};

thread_local! {
    /// Whether anybody listens: what the fast path asks.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// An operation was called.
#[inline]
pub(crate) fn called(op: &dyn Op, operands: &[&DTensor]) {
    if WATCHED.get() {
        comm::called(op);
        explain::called(op, operands);
    }
}

/// An operation gave results.
#[inline]
pub(crate) fn finished(op: &dyn Op, operands: &[&DTensor], results: &[DTensor]) -> Result<()> {
    match WATCHED.get() && anomaly::is_detecting() {
        true => anomaly::check(op, operands, results),
        false => Ok(()),
    }
}

/// A tensor was brought to another layout, or cast where it lies.
#[inline]
pub(crate) fn brought(op: &'static str, from: &DTensor, there: &DTensor) -> Result<()> {
    match WATCHED.get() && anomaly::is_detecting() {
        true => anomaly::check_brought(op, from, there),
        false => Ok(()),
    }
}

/// Somebody began or ceased to listen.
fn watch() {
    WATCHED.set(comm::is_listening() || explain::is_listening() || anomaly::is_detecting());
}
