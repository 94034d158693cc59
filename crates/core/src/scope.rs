//! Scopes: what operations may do without being asked.

use std::cell::Cell;

use crate::{Error, Result, redistribute::Route};

/// What happens in an [`explicit`] scope when an operation needs an operand elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnImplicit {
    /// The operation fails with [`Error::Implicit`], on every rank.
    Refuse,
    /// It is done, and logged as a warning.
    Log,
}

thread_local! {
    static EXPLICIT: Cell<Option<OnImplicit>> = const { Cell::new(None) };
    static REPLICATION: Cell<bool> = const { Cell::new(false) };
    /// Operations that communicate by their definition are being run.
    static WITHIN_OP: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` in a scope in which operations may not redistribute their operands on their own if that
/// communicates. What is asked for ([`redistribute`](crate::DTensor::redistribute),
/// [`full_tensor`](crate::DTensor::full_tensor)) is allowed, and so is what an operation sends by its
/// definition (the two small reductions of a softmax along a cut dim).
///
/// ```
/// use dtensor::{DType, DeviceMesh, Error, OnImplicit, Placement::{Replicate, Shard}, Runner, explicit, ones};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let rows = ones(&[4, 4], DType::F32, &mesh, &[Shard(0)])?;
///     let columns = ones(&[4, 4], DType::F32, &mesh, &[Shard(1)])?;
///     let refused = explicit(OnImplicit::Refuse, || rows.add(&columns));
///     assert!(matches!(refused, Err(Error::Implicit { op: "add", .. })));
///     rows.add(&columns)?;                                  // outside of the scope it is done
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn explicit<T>(on_implicit: OnImplicit, body: impl FnOnce() -> T) -> T {
    with(&EXPLICIT, Some(on_implicit), body)
}

/// Runs `body` in a scope in which plain local tensors may stand beside distributed ones: they are taken to
/// be the same on every rank.
pub fn implicit_replication<T>(body: impl FnOnce() -> T) -> T {
    with(&REPLICATION, true, body)
}

pub(crate) fn replicates_plain() -> bool {
    REPLICATION.get()
}

/// Runs the steps of one operation.
pub(crate) fn within_op<T>(body: impl FnOnce() -> T) -> T {
    with(&WITHIN_OP, true, body)
}

/// Whether an operand may be redistributed without being asked to.
pub(crate) fn check_implicit(
    rank: usize,
    op: &'static str,
    operand: usize,
    route: &Route,
) -> Result<()> {
    let (from, to, bytes) = (route.plan.from(), route.plan.to(), route.bytes_sent);
    tracing::debug!(rank, op, operand, %from, %to, bytes, "implicit redistribution");
    match EXPLICIT.get().filter(|_| !WITHIN_OP.get()) {
        None => Ok(()),
        Some(OnImplicit::Log) => {
            tracing::warn!(rank, op, operand, %from, %to, bytes, "implicit redistribution");
            Ok(())
        }
        Some(OnImplicit::Refuse) => Err(Error::Implicit {
            op,
            operand,
            from: from.to_string().into(),
            to: to.to_string().into(),
            bytes,
        }),
    }
}

/// With another value in a cell; afterwards, also after a panic, the one from before.
pub(crate) fn with<T: Copy, U>(
    cell: &'static std::thread::LocalKey<Cell<T>>,
    value: T,
    body: impl FnOnce() -> U,
) -> U {
    struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);
    impl<T: Copy> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(cell, cell.replace(value));
    body()
}
