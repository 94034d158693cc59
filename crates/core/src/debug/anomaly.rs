//! The first value that is no number.

use std::cell::Cell;

use dtensor_layout::ReduceOp;

use super::module::{module, phase};
use crate::{DTensor, Error, Result, op::Op, scope::with};

thread_local! {
    static DETECTS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, in which every operation looks at its results, and fails with [`Error::NotFinite`] on every rank if one is NaN
/// or infinite while its operands are not. Slow: the ranks tell each other after every operation.
///
/// ```
/// use dtensor::{DeviceMesh, Error, Placement::Shard, Runner, detect_anomaly, full};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = full(&[4], -1.0_f32, &mesh, &[Shard(0)])?;
///     assert!(matches!(detect_anomaly(|| x.sqrt()), Err(Error::NotFinite { op: "sqrt", .. })));
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn detect_anomaly<T>(body: impl FnOnce() -> T) -> T {
    struct Scope;
    impl Drop for Scope {
        fn drop(&mut self) {
            super::watch();
        }
    }
    let _scope = Scope;
    with(&DETECTS, true, || {
        super::watch();
        body()
    })
}

pub(super) fn is_detecting() -> bool {
    DETECTS.get()
}

/// Looks at the results of an operation.
pub(super) fn check(op: &dyn Op, operands: &[&DTensor], results: &[DTensor]) -> Result<()> {
    let Some(first) = operands.first().filter(|first| !first.mesh().is_fake()) else {
        return Ok(());
    };
    if first.mesh().coord().is_none() {
        return Ok(());
    }
    let bad = |tensor: &DTensor| -> Result<bool> {
        if !tensor.dtype().is_float() || tensor.local().numel() == 0 {
            return Ok(false);
        }
        Ok(!tensor.local().isfinite()?.all(&[], false)?.item::<bool>()?)
    };
    // Infinite operands are on purpose, as in a mask.
    let mut found = [0_i64, 0];
    for operand in operands {
        found[0] |= i64::from(bad(operand)?);
    }
    for result in results {
        found[1] |= i64::from(bad(result)?);
    }
    let axes: Vec<usize> = (0..first.mesh().n_axes()).collect();
    let everybody = first.mesh().group_of("detect_anomaly", &axes)?.tag("detect_anomaly");
    everybody.all_reduce(&mut found, ReduceOp::Max).map_err(Error::comm("detect_anomaly"))?;
    match found {
        [0, 1] => Err(Error::NotFinite { op: op.name(), module: module(), phase: phase() }),
        _ => Ok(()),
    }
}
