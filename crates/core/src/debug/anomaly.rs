//! The first value that is no number.

use std::cell::Cell;

use dtensor_layout::ReduceOp;

use super::module::{module, phase};
use crate::{DTensor, DeviceMesh, Error, Result, op::Op, scope::with};

thread_local! {
    static DETECTS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, in which every operation and every redistribution looks at its results, and fails with [`Error::NotFinite`] on
/// every rank if one has NaN, or infinities, that its operands have nowhere. Infinite operands are on purpose, as in a mask,
/// and so are infinite results of them; a NaN of them is not. Slow: the ranks tell each other after every operation.
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
    let Some(first) = operands.first() else { return Ok(()) };
    compare(op.name(), first.mesh(), operands.iter().copied(), results.iter())
}

/// Looks at what was brought elsewhere: sums of numbers may be none, and so may numbers in another dtype.
pub(super) fn check_brought(op: &'static str, from: &DTensor, there: &DTensor) -> Result<()> {
    // Of two meshes, no rank may know everything.
    match from.mesh() == there.mesh() {
        true => compare(op, from.mesh(), [from].into_iter(), [there].into_iter()),
        false => Ok(()),
    }
}

/// How bad numbers are: NaN is worse than an infinity, which is worse than none of either.
const INFINITE: i64 = 1;
const NAN: i64 = 2;

/// Fails if the results are worse than the operands, on all ranks together.
fn compare<'a>(
    op: &'static str,
    mesh: &DeviceMesh,
    operands: impl Iterator<Item = &'a DTensor>,
    results: impl Iterator<Item = &'a DTensor>,
) -> Result<()> {
    if mesh.is_fake() || mesh.coord().is_none() {
        return Ok(());
    }
    let mut found = [0, 0];
    for operand in operands {
        found[0] = found[0].max(badness(operand)?);
    }
    for result in results {
        found[1] = found[1].max(badness(result)?);
    }
    let axes: Vec<usize> = (0..mesh.n_axes()).collect();
    let everybody = mesh.group_of("detect_anomaly", &axes)?.tag("detect_anomaly");
    everybody.all_reduce(&mut found, ReduceOp::Max).map_err(Error::comm("detect_anomaly"))?;
    match found[1] > found[0] {
        true => Err(Error::NotFinite { op, module: module(), phase: phase() }),
        false => Ok(()),
    }
}

/// Of what this rank holds.
fn badness(tensor: &DTensor) -> Result<i64> {
    let local = tensor.local();
    if !local.dtype().is_float() || local.numel() == 0 {
        return Ok(0);
    }
    if local.isfinite()?.all(&[], false)?.item::<bool>()? {
        return Ok(0);
    }
    Ok(if local.isnan()?.any(&[], false)?.item::<bool>()? { NAN } else { INFINITE })
}
