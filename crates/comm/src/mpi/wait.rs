//! Waiting: test, now and then look around, now and then read the clock, never block.

use std::{
    sync::MutexGuard,
    thread,
    time::{Duration, Instant},
};

use super::{
    engine::{Engine, Shared},
    flight::Flight,
    operation::Operation,
    transfer::Lane,
};
use crate::CommError;

/// Tests between two looks at the control channel, the other pending calls and the clock. One test
/// takes well below 0.1 us per message waited for, so a failure is noticed within some 10 us.
const TESTS_PER_LOOK: u32 = 64;

/// Looks before the core is offered to others. A rank that shares its core with the one it waits for
/// would otherwise keep it from working.
const LOOKS_BEFORE_YIELDING: u32 = 4;

/// How long a failing rank waits for the others to acknowledge. Those that wait in a call do so in
/// microseconds; those that compute may take longer, and those that are dead never do.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Waits until `poll` gives a value, at most `limit` long.
pub(super) fn wait<'a, R>(
    shared: &'a Shared,
    mut engine: MutexGuard<'a, Engine>,
    limit: Duration,
    mut poll: impl FnMut(&mut Engine) -> Option<R>,
) -> (MutexGuard<'a, Engine>, Option<R>) {
    // Most waits are over before the first look, and never read the clock.
    let mut began = None;
    for look in 0_u32.. {
        for _ in 0..TESTS_PER_LOOK {
            if let Some(value) = poll(&mut engine) {
                return (engine, Some(value));
            }
        }
        let now = Instant::now();
        engine.background(now);
        if now - *began.get_or_insert(now) > limit {
            break;
        }
        if look >= LOOKS_BEFORE_YIELDING {
            drop(engine);
            thread::yield_now();
            engine = shared.lock();
        }
    }
    let last = poll(&mut engine);
    (engine, last)
}

/// Waits until no pending call has the tags of one that is about to begin: only when as many calls of
/// one group are in flight as there are tags for.
pub(super) fn make_way<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    lane: Lane,
) -> Result<MutexGuard<'a, Engine>, CommError> {
    let window = engine.streams.window();
    if lane.position < window {
        return Ok(engine);
    }
    let blocking = |engine: &Engine| {
        let mut flights = engine.flights.iter();
        let blocks = |flight: &Flight| {
            flight.end.is_none() && flight.operation.is_in_the_way_of(lane, window)
        };
        flights.find(|(_, flight)| blocks(flight)).map(|(&id, _)| id)
    };
    let Some(id) = blocking(&engine) else { return Ok(engine) };
    let (mut engine, _) = wait(shared, engine, shared.deadline, |engine| {
        engine.progress_flight(id);
        (engine.first_cause().is_some() || blocking(engine).is_none()).then_some(())
    });
    if engine.first_cause().is_none()
        && blocking(&engine).is_some()
        && let Some(flight) = engine.flights.remove(&id)
    {
        expire(shared, &mut engine, &flight.operation);
        engine.flights.insert(id, flight);
    }
    match engine.first_cause() {
        Some(first) => Err(first.error.clone()),
        None => Ok(engine),
    }
}

/// Waits for the end of a call whose buffers are the caller's, and are free to be reused when this
/// returns, with or without an error.
pub(super) fn finish_borrowed<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    mut operation: Operation,
) -> Result<(), CommError> {
    let (engine, end) =
        wait(shared, engine, shared.deadline, |engine| poll_operation(engine, &mut operation));
    match end {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(withdraw_borrowed(shared, engine, operation, error)),
        None => {
            let mut engine = engine;
            let error = expire(shared, &mut engine, &operation);
            Err(withdraw_borrowed(shared, engine, operation, error))
        }
    }
}

/// Progresses a call; its end, or the end of the world.
pub(super) fn poll_operation(
    engine: &mut Engine,
    operation: &mut Operation,
) -> Option<Result<(), CommError>> {
    match operation.progress(engine) {
        Ok(true) => Some(Ok(())),
        Ok(false) => {
            let first = engine.first_cause()?;
            Some(Err(operation.because_of(engine, &first.error)))
        }
        Err(error) => {
            engine.fail(error.clone());
            Some(Err(error))
        }
    }
}

/// The error of a call that has waited for too long; ends the world.
pub(super) fn expire(shared: &Shared, engine: &mut Engine, operation: &Operation) -> CommError {
    let (waited, table) = (shared.deadline, operation.table(engine));
    let error = CommError::Deadline { waited, table };
    engine.fail(error.clone());
    error
}

/// Gives everybody the chance to learn that the world has ended, and to stop taking messages.
pub(super) fn settle<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
) -> MutexGuard<'a, Engine> {
    let settled = |engine: &mut Engine| {
        let over = engine.is_over() || engine.has_settled();
        (over || engine.roster.survivors_have_ended()).then_some(())
    };
    let (mut engine, _) = wait(shared, engine, GRACE, settled);
    engine.set_settled();
    engine
}

/// Lets go of the buffers of a call that has failed; true if MPI has let go of them as well.
pub(super) fn withdraw<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    operation: &mut Operation,
) -> (MutexGuard<'a, Engine>, bool) {
    let engine = settle(shared, engine);
    let (engine, quiet) =
        wait(shared, engine, GRACE, |engine| operation.give_up(engine).then_some(()));
    (engine, quiet.is_some())
}

/// The same for buffers that the caller gets back in any case.
fn withdraw_borrowed<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    mut operation: Operation,
    error: CommError,
) -> CommError {
    let (mut engine, quiet) = withdraw(shared, engine, &mut operation);
    if operation.is_busy() && !engine.roster.survivors_have_ended() {
        // Something is still being sent, and a rank that might take it has not answered. Data moves
        // only while MPI is called, so it is not called any more.
        engine.close();
    }
    if !quiet {
        // A message was half received when its sender vanished, and MPI may go on writing. There is
        // no way to take the buffer back, and none to keep it.
        tracing::error!(%error, "MPI still writes to a buffer of a call that failed: aborting");
        engine.data_comm.abort();
    }
    final_error(engine, &operation, error)
}

/// The error of a call that has been withdrawn. When several causes were found at once, the one that
/// all have agreed upon in the meantime counts.
pub(super) fn final_error(
    mut engine: MutexGuard<'_, Engine>,
    operation: &Operation,
    error: CommError,
) -> CommError {
    let table = operation.table(&engine);
    engine.add_table(table);
    match engine.first_cause() {
        Some(first) => operation.because_of(&engine, &first.error),
        None => error,
    }
}
