//! Waiting: test, now and then look around, now and then read the clock, never block.

use std::{
    mem, process,
    sync::MutexGuard,
    thread,
    time::{Duration, Instant},
};

use super::{
    engine::{Engine, Shared},
    flight::Flight,
    operation::Operation,
    transfer::Lane,
    withdraw::withdraw_borrowed,
};
use crate::CommError;

/// Tests between two looks at the control channel, the other pending calls and the clock. One test
/// takes well below 0.1 us per message waited for, so a failure is noticed within some 10 us.
const TESTS_PER_LOOK: u32 = 64;

/// Looks before the core is offered to others. A rank that shares its core with the one it waits for
/// would otherwise keep it from working.
const LOOKS_BEFORE_YIELDING: u32 = 4;

/// Waits until `poll` gives a value, at most `limit` long.
pub(super) fn wait<'a, R>(
    shared: &'a Shared,
    mut engine: MutexGuard<'a, Engine>,
    limit: Duration,
    mut poll: impl FnMut(&mut Engine) -> Option<R>,
) -> (MutexGuard<'a, Engine>, Option<R>) {
    // Most waits are over before the first look, and never read the clock.
    let mut began = None;
    let mut looks = 0_u32;
    loop {
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
        looks = looks.saturating_add(1);
        if looks > LOOKS_BEFORE_YIELDING {
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
    // MPI may be accessing the caller's memory, so this must not be left by unwinding.
    let guard = AbortOnUnwind;
    let (mut engine, end) =
        wait(shared, engine, shared.deadline, |engine| poll_operation(engine, &mut operation));
    let end = end.unwrap_or_else(|| Err(expire(shared, &mut engine, &operation)));
    let end = end.map_err(|error| withdraw_borrowed(shared, engine, operation, error));
    mem::forget(guard);
    end
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        process::abort();
    }
}

/// Progresses a call; its end, or the end of the world.
fn poll_operation(engine: &mut Engine, operation: &mut Operation) -> Option<Result<(), CommError>> {
    if engine.is_over() {
        // Another thread of this rank has ended it all.
        return engine.stop(operation).map(Err);
    }
    match operation.progress(engine) {
        Ok(true) => Some(Ok(())),
        Ok(false) => engine.stop(operation).map(Err),
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
