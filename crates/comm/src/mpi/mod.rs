//! Ranks as processes, on the system's MPI.

mod blame;
mod cause;
mod check;
mod control;
mod engine;
mod exchange;
mod flight;
mod group;
mod liveness;
mod native;
mod operation;
mod owned_call;
mod pieces;
mod plan;
mod reduce;
mod result;
mod scratch;
mod session;
mod stream;
mod transfer;
mod tree;
mod wait;
mod wire;

use std::{
    sync::{Arc, MutexGuard},
    time::Instant,
};

use self::{
    engine::{Comms, Engine, Shared},
    flight::FlightHandle,
    group::GroupInfo,
    liveness::Neighbours,
    operation::Operation,
    session::{End, Library},
    stream::Key,
};
use crate::{
    CommError,
    call::Call,
    transport::{Buffers, Connection, FirstCause, InFlight, Settings, Transport},
};

/// Begins a run of this process: initialises MPI the first time, meets all other processes, and
/// gives this one's end of the group of all ranks.
///
/// # Errors
/// If MPI cannot be used, or not all processes begin a run within the deadline.
pub(crate) fn connect(settings: &Settings) -> Result<Connection, CommError> {
    let library = session::begin()?;
    let (rank, size) = (library.rank, library.size);
    let met = meet(&library, settings);
    let (comms, neighbours) = met.inspect_err(|_| session::end(End::Apart))?;
    let members: Arc<[usize]> = (0..size).collect();
    let group = Arc::new(GroupInfo::new(Key::WORLD, members, rank));
    let mut engine = Engine::new(settings, (rank, size), library.tag_bound, comms, neighbours);
    engine.add_group(Arc::clone(&group));
    let shared = Arc::new(Shared::new(engine, settings));
    Ok(Connection { transport: Arc::new(MpiGroup { shared, group }), rank, size })
}

/// Meets all other processes: makes fresh communicators, so that nothing that an earlier run left
/// behind is mistaken for a message of this one, and learns which processes are neighbours.
fn meet(library: &Library, settings: &Settings) -> Result<(Comms, Neighbours), CommError> {
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

/// This rank's end of one group.
struct MpiGroup {
    shared: Arc<Shared>,
    group: Arc<GroupInfo>,
}

impl MpiGroup {
    /// Begins a call.
    ///
    /// # Safety
    /// As [`Operation::begin`].
    unsafe fn begin(
        &self,
        call: &Call<'_>,
        buffers: &Buffers,
    ) -> Result<(MutexGuard<'_, Engine>, Operation), CommError> {
        let mut engine = self.shared.lock();
        engine.refuse(&self.group, call)?;
        if !call.kind.is_message() {
            self.group.begin(call.sequence);
        }
        let lane = operation::lane(&mut engine, &self.group, call);
        let mut engine = wait::make_way(&self.shared, engine, lane)
            .map_err(|cause| CommError::dead(call, &cause))?;
        // SAFETY: Handed on.
        match unsafe { Operation::begin(&mut engine, &self.group, call, lane, buffers) } {
            Ok(operation) => Ok((engine, operation)),
            Err(error) => {
                engine.fail(error.clone());
                Err(error)
            }
        }
    }
}

impl Transport for MpiGroup {
    unsafe fn execute(&self, call: &Call<'_>, buffers: &Buffers) -> Result<(), CommError> {
        // SAFETY: The caller's promise, until `finish_borrowed` has returned.
        let (engine, operation) = unsafe { self.begin(call, buffers) }?;
        wait::finish_borrowed(&self.shared, engine, operation)
    }

    unsafe fn start(
        &self,
        call: &Call<'_>,
        buffers: &Buffers,
    ) -> Result<Box<dyn InFlight>, CommError> {
        // SAFETY: The caller's promise, until the handle has reported the end.
        let (mut engine, operation) = unsafe { self.begin(call, buffers) }?;
        Ok(Box::new(FlightHandle::new(&self.shared, &mut engine, operation)))
    }

    fn subgroup(&self, members: &Arc<[usize]>) -> Result<Arc<dyn Transport>, CommError> {
        let mut engine = self.shared.lock();
        let rank = members.iter().position(|&rank| rank == engine.rank).unwrap_or(0);
        let group = Arc::new(GroupInfo::new(Key::group(members), Arc::clone(members), rank));
        engine.add_group(Arc::clone(&group));
        Ok(Arc::new(MpiGroup { shared: Arc::clone(&self.shared), group }))
    }

    fn leave(&self, outcome: Result<(), CommError>) -> Option<FirstCause> {
        let mut engine = self.shared.lock();
        let succeeded = outcome.is_ok();
        if let Err(error) = outcome {
            engine.fail(error);
        }
        engine.say_goodbye(!succeeded);
        if engine.first_cause().is_none() {
            engine = self.await_others(engine);
        }
        if engine.first_cause().is_some() {
            engine = self.await_survivors(engine);
        }
        // As on threads, the run has failed if a rank has failed. If all have coped with the end of
        // the world it has not.
        if succeeded && engine.all_have_succeeded() {
            return None;
        }
        engine.first_cause().cloned()
    }

    fn first_cause(&self) -> Option<FirstCause> {
        self.shared.lock().first_cause().cloned()
    }
}

impl MpiGroup {
    /// Waits until all ranks have left, or the world has ended. A rank that has nothing to do any more
    /// still progresses its leaked calls here, and learns whether the run as a whole succeeded.
    fn await_others<'a>(&'a self, engine: MutexGuard<'a, Engine>) -> MutexGuard<'a, Engine> {
        let over = |engine: &mut Engine| {
            let left = engine.all_have_left() && engine.control_is_idle();
            (left || engine.first_cause().is_some()).then_some(())
        };
        let (mut engine, met) = wait::wait(&self.shared, engine, self.shared.deadline, over);
        if engine.first_cause().is_none() {
            if met.is_none() {
                // Not an error: they may have good reasons, and this rank has done its part.
                let deadline = self.shared.deadline;
                tracing::warn!(?deadline, "ended the run without waiting longer for other ranks");
            }
            engine.close(met.is_some());
            session::end(End::Together);
        }
        engine
    }

    /// Waits, not for long, until all ranks have left a world that has ended.
    fn await_survivors<'a>(&'a self, engine: MutexGuard<'a, Engine>) -> MutexGuard<'a, Engine> {
        let engine = wait::settle(&self.shared, engine);
        let over = |engine: &mut Engine| engine.survivors_have_left().then_some(());
        let (mut engine, _) = wait::wait(&self.shared, engine, wait::GRACE, over);
        let together = engine.ended_together() && engine.control_is_idle();
        engine.close(false);
        session::end(if together { End::Together } else { End::Apart });
        engine
    }
}
