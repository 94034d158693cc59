//! Which part of a program is running.

use std::{
    cell::{Cell, RefCell},
    fmt,
    sync::Arc,
};

use crate::scope::with;

/// Whether a program computes, or walks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// It computes.
    Forward,
    /// It computes gradients.
    Backward,
}

thread_local! {
    static PHASE: Cell<Phase> = const { Cell::new(Phase::Forward) };
    static MODULE: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `body` as a part of a program that has a name: what is communicated in it, and in the gradients of what it
/// computes, is counted under the name. Names nest, joined by dots.
///
/// ```
/// use dtensor::{CommDebug, DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, module_scope, ones};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = ones(&[4], DType::F32, &mesh, &[Shard(0)])?;
///     let (_, comm) = CommDebug::record(|| {
///         module_scope("layers", || module_scope("0", || x.redistribute(&[Replicate])))
///     });
///     assert_eq!(comm.events[0].module.as_deref(), Some("layers.0"));
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn module_scope<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let path = MODULE.with_borrow(|outer| match outer {
        Some(outer) => format!("{outer}.{name}").into(),
        None => name.into(),
    });
    in_module(Some(path), body)
}

/// The module that is running.
pub(crate) fn module() -> Option<Arc<str>> {
    MODULE.with_borrow(Clone::clone)
}

/// Runs `body` as a part of a module; afterwards, also after a panic, the one from before runs.
pub(crate) fn in_module<T>(module: Option<Arc<str>>, body: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<str>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODULE.set(self.0.take());
        }
    }
    let watched = module.as_ref().filter(|_| super::WATCHED.get());
    let _running = watched.and_then(super::comm::entered);
    let _restore = Restore(MODULE.replace(module));
    body()
}

/// Whether the program computes at present, or walks back. What is computed again on the way back belongs to the way back.
pub fn phase() -> Phase {
    PHASE.get()
}

pub(crate) fn in_backward<T>(body: impl FnOnce() -> T) -> T {
    with(&PHASE, Phase::Backward, body)
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
        })
    }
}
