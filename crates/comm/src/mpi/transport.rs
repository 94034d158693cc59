//! One rank's end of one group: what the rest of the crate sees.

use std::sync::{Arc, MutexGuard};

use super::{
    engine::{Engine, Shared},
    flight::FlightHandle,
    group::GroupInfo,
    operation::{self, Operation},
    session::{self, End},
    stream::Key,
    wait, withdraw,
};
use crate::{
    CommError,
    call::Call,
    transport::{Buffers, FirstCause, InFlight, Transport},
};

/// This rank's end of one group.
pub(super) struct MpiGroup {
    pub(super) shared: Arc<Shared>,
    pub(super) group: Arc<GroupInfo>,
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
        let operation = unsafe { Operation::begin(&mut engine, &self.group, call, lane, buffers) };
        Ok((engine, operation))
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
        if engine.is_over() {
            session::end(End::Apart);
            return engine.first_cause().cloned();
        }
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
        if succeeded && engine.roster.all_have_succeeded() {
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
            let left = engine.roster.all_have_left() && engine.control_is_idle();
            (left || engine.first_cause().is_some()).then_some(())
        };
        let (mut engine, met) = wait::wait(&self.shared, engine, self.shared.deadline, over);
        if engine.first_cause().is_none() {
            if met.is_none() {
                // Not an error: they may have good reasons, and this rank has done its part.
                let deadline = self.shared.deadline;
                tracing::warn!(?deadline, "ended the run without waiting longer for other ranks");
            }
            engine.close();
            if met.is_some() {
                engine.free();
            }
            session::end(End::Together);
        }
        engine
    }

    /// Waits, not for long, until all ranks have left a world that has ended.
    fn await_survivors<'a>(&'a self, engine: MutexGuard<'a, Engine>) -> MutexGuard<'a, Engine> {
        let engine = withdraw::settle(&self.shared, engine);
        let over = |engine: &mut Engine| engine.roster.survivors_have_left().then_some(());
        let (mut engine, _) = wait::wait(&self.shared, engine, withdraw::GRACE, over);
        let together = engine.roster.ended_together() && engine.control_is_idle();
        engine.close();
        session::end(if together { End::Together } else { End::Apart });
        engine
    }
}
