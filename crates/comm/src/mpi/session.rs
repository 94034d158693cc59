//! The MPI library of this process: begun once, ended once, used by one run at a time.

use std::{
    os::raw::c_int,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mpi::{Threading, ffi};

use super::result::Comm;
use crate::CommError;

/// What MPI says about this process.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) world: Comm,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) tag_bound: c_int,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All ranks have met at the end, or know that they will not: another run may begin.
    Together,
    /// Some rank does not know, and may still be sending.
    Apart,
}

static STATE: Mutex<State> = Mutex::new(State { library: None, run: Run::None });

/// Whether the process ends MPI when it exits. Not while a run is in progress or after one that
/// ended [apart](End::Apart): `MPI_Finalize` waits for all processes. The launcher notices a
/// process that exits without it and ends the others.
static FINALIZE: AtomicBool = AtomicBool::new(false);

struct State {
    library: Option<Library>,
    run: Run,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    None,
    InProgress,
    Broken,
}

/// Begins a run; initialises MPI the first time.
pub(super) fn begin() -> Result<Library, CommError> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let refuse = |why: &str| Err(CommError::CannotRun(why.into()));
    match state.run {
        Run::InProgress => {
            return refuse(
                "under mpirun a process is one rank, and a run is in progress in this one: end it \
                 before the next begins, or use Runner::threads",
            );
        }
        Run::Broken => {
            return refuse(
                "an earlier run in this process failed, and not all ranks have acknowledged it: \
                 start the program again",
            );
        }
        Run::None => {}
    }
    let library = match state.library {
        Some(library) => library,
        None => initialize()?,
    };
    state.library = Some(library);
    state.run = Run::InProgress;
    FINALIZE.store(false, Ordering::Relaxed);
    Ok(library)
}

/// Ends a run.
pub(super) fn end(end: End) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.run = if end == End::Together { Run::None } else { Run::Broken };
    FINALIZE.store(end == End::Together, Ordering::Relaxed);
}

fn initialize() -> Result<Library, CommError> {
    let provided = match mpi::initialize_with_threading(Threading::Serialized) {
        Some((universe, provided)) => {
            // Its destructor would end MPI with this function. It is ended at exit instead, because
            // it cannot be begun again for the next run.
            std::mem::forget(universe);
            // SAFETY: A function of the C library, with a handler that does not unwind.
            unsafe { atexit(finalize_at_exit) };
            provided
        }
        // The program has begun it, and will end it.
        None if mpi::environment::is_finalized() => {
            return Err(CommError::CannotRun("MPI has been finalized already".into()));
        }
        None => mpi::environment::threading_support(),
    };
    if provided < Threading::Serialized {
        return Err(CommError::CannotRun(
            format!("MPI allows {provided:?} use by threads only, needed is Serialized").into(),
        ));
    }
    let world = Comm::world()?;
    let (rank, size) = (world.rank()?, world.size()?);
    Ok(Library { world, rank, size, tag_bound: world.tag_bound()? })
}

extern "C" fn finalize_at_exit() {
    if FINALIZE.load(Ordering::Relaxed) {
        // SAFETY: MPI was initialised by `initialize`, and no run is in progress that could call it.
        unsafe { ffi::MPI_Finalize() };
    }
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}
