//! Pending calls.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard},
    time::Instant,
};

use super::{
    engine::{Engine, Shared},
    operation::Operation,
    wait::{expire, wait},
    withdraw::{final_error, withdraw},
};
use crate::{CommError, transport::InFlight};

/// The pending calls, in the order in which they were begun.
pub(super) type Flights = BTreeMap<u64, Flight>;

/// A pending call, as the engine holds it.
pub(super) struct Flight {
    pub(super) operation: Operation,
    /// How it ended, until its owner asks.
    pub(super) end: Option<Result<(), CommError>>,
}

impl Flight {
    /// Brings it forward.
    pub(super) fn progress(&mut self, engine: &mut Engine) {
        if self.end.is_some() || engine.first_cause().is_some() || engine.is_over() {
            return;
        }
        match self.operation.progress(engine) {
            Ok(false) => {}
            Ok(true) => self.end = Some(Ok(())),
            Err(error) => {
                engine.fail(error.clone());
                self.end = Some(Err(error));
            }
        }
    }
}

/// A pending call, as its owner holds it. The call itself is in the engine, where whoever waits progresses it. It stays there if the handle
/// is leaked, and the peers get their data.
pub(super) struct FlightHandle {
    shared: Arc<Shared>,
    id: u64,
    in_use: bool,
}

impl FlightHandle {
    /// Hands a call over to the engine.
    pub(super) fn new(
        shared: &Arc<Shared>,
        engine: &mut Engine,
        operation: Operation,
    ) -> FlightHandle {
        let id = engine.flights.last_key_value().map_or(0, |(last, _)| last + 1);
        engine.flights.insert(id, Flight { operation, end: None });
        FlightHandle { shared: Arc::clone(shared), id, in_use: true }
    }

    /// Takes the result out of the engine. An error comes with the withdrawal of the buffers.
    fn take(
        &mut self,
        mut engine: MutexGuard<'_, Engine>,
        end: Result<(), CommError>,
    ) -> Result<(), CommError> {
        let Some(Flight { mut operation, .. }) = engine.flights.remove(&self.id) else {
            return end;
        };
        let Err(error) = end else {
            self.in_use = false;
            return Ok(());
        };
        let shared = Arc::clone(&self.shared);
        let (engine, _) = withdraw(&shared, engine, &mut operation);
        // Messages that nobody takes any more may still be on their way out. Owned buffers are
        // simply never freed then.
        self.in_use = operation.is_busy();
        Err(final_error(engine, &operation, error))
    }
}

impl InFlight for FlightHandle {
    fn test(&mut self) -> Result<bool, CommError> {
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.lock();
        engine.background(Instant::now());
        match end(&mut engine, self.id) {
            None => Ok(false),
            Some(end) => self.take(engine, end).map(|()| true),
        }
    }

    fn wait(&mut self) -> Result<(), CommError> {
        let shared = Arc::clone(&self.shared);
        let id = self.id;
        let mut engine = shared.lock();
        // The first look at once: the call may be over since long.
        engine.background(Instant::now());
        let (mut engine, ended) = wait(&shared, engine, shared.deadline, |engine| {
            engine.progress_flight(id);
            end(engine, id)
        });
        let ended = ended.unwrap_or_else(|| {
            let Some(flight) = engine.flights.remove(&id) else { return Ok(()) };
            let error = expire(&shared, &mut engine, &flight.operation);
            engine.flights.insert(id, flight);
            Err(error)
        });
        self.take(engine, ended)
    }

    fn abandon(&mut self) {
        // The call stays in the engine, and its buffers are leaked: the peers may be sending.
    }

    fn buffers_in_use(&self) -> bool {
        self.in_use
    }
}

/// How a pending call ended, if it did.
fn end(engine: &mut Engine, id: u64) -> Option<Result<(), CommError>> {
    let flight = engine.flights.get_mut(&id)?;
    if let Some(end) = flight.end.take() {
        return Some(end);
    }
    engine.flights.get(&id).and_then(|flight| engine.stop(&flight.operation)).map(Err)
}
