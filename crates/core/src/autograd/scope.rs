//! Whether operations are remembered.

use std::cell::Cell;

use crate::scope::with;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Runs `body` without remembering its operations: nothing is kept for a gradient.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, no_grad, ones};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = ones(&[4], DType::F32, &mesh, &[Shard(0)])?.requires_grad()?;
///     assert!(x.exp()?.needs_grad());
///     assert!(!no_grad(|| x.exp())?.needs_grad());
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn no_grad<T>(body: impl FnOnce() -> T) -> T {
    with(&ENABLED, false, body)
}

/// Runs `body` with its operations remembered, within [`no_grad`].
pub fn enable_grad<T>(body: impl FnOnce() -> T) -> T {
    with(&ENABLED, true, body)
}

/// Whether operations are remembered at present.
#[inline]
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}
