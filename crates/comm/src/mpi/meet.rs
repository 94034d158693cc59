//! The beginning of a run.

use std::time::Instant;

use super::{
    engine::Comms,
    liveness::{self, Neighbours},
    session::Library,
};
use crate::{CommError, transport::Settings};

/// Meets all other processes: makes fresh communicators, so that nothing that an earlier run left
/// behind is mistaken for a message of this one, and learns which processes are neighbours.
pub(super) fn meet(
    library: &Library,
    settings: &Settings,
) -> Result<(Comms, Neighbours), CommError> {
    let began = Instant::now();
    let duplicate = || {
        let mut new = library.world.start_dup()?;
        let comm = poll(began, settings, || new.test());
        // MPI still writes to it if the others come after all.
        comm.inspect_err(|_| std::mem::forget(new))
    };
    let comms = Comms { data: duplicate()?, check: duplicate()?, control: duplicate()? };
    let own = Box::new(liveness::identity());
    let mut all = vec![0; own.len() * library.size].into_boxed_slice();
    // SAFETY: Both are on the heap, and are forgotten below if the request does not complete.
    let mut request = unsafe { comms.data.start_all_gather(&own[..], all.as_mut_ptr()) }?;
    match poll(began, settings, || Ok(request.test()?.then_some(()))) {
        Ok(()) => Ok((comms, Neighbours::new(&all, library.rank))),
        Err(error) => {
            std::mem::forget((own, all));
            Err(error)
        }
    }
}

/// Tests something of MPI's until it is complete or the deadline has passed.
fn poll<T>(
    began: Instant,
    settings: &Settings,
    mut test: impl FnMut() -> Result<Option<T>, CommError>,
) -> Result<T, CommError> {
    loop {
        if let Some(value) = test()? {
            return Ok(value);
        }
        if began.elapsed() > settings.deadline {
            let waited = settings.deadline;
            return Err(CommError::CannotRun(
                format!("waited {waited:.1?} for all processes to begin the run").into(),
            ));
        }
        std::thread::yield_now();
    }
}
