//! The state of this rank's end of the world: one value behind one lock.
//!
//! MPI is initialised for one thread at a time, so everything that calls it does so under the lock of
//! [`Shared`]. Whoever waits for one call progresses all pending calls of the process: a peer may be
//! waiting for one that nobody here is waiting for yet.

use std::{
    os::raw::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    blame::is_about,
    control::{Control, Notice},
    ending::Ending,
    flight::Flights,
    group::GroupInfo,
    result::Comm,
    roster::{Departure, Roster},
    scratch::ScratchPool,
    stream::{Key, Streams},
    transfer::Lane,
};
use crate::{CommError, call::Call, transport::Settings};

/// What the groups of one world share.
pub(super) struct Shared {
    engine: Mutex<Engine>,
    pub(super) deadline: Duration,
}

impl Shared {
    pub(super) fn new(engine: Engine, settings: &Settings) -> Shared {
        Shared { engine: Mutex::new(engine), deadline: settings.deadline }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        // The engine is only changed by code that does not panic on the way.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`mod@self`]. What belongs to its end is in [`ending`](super::ending).
pub(super) struct Engine {
    pub(super) rank: usize,
    pub(super) checks: bool,
    pub(super) native_reductions: bool,
    pub(super) max_message_bytes: usize,
    /// Carries the data, and nothing else, so that it is never mistaken for a check.
    pub(super) data_comm: Comm,
    pub(super) check_comm: Comm,
    pub(super) control: Control,
    pub(super) streams: Streams,
    pub(super) scratch: ScratchPool,
    pub(super) roster: Roster,
    pub(super) flights: Flights,
    pub(super) ending: Ending,
    /// The groups that this rank has used.
    groups: Vec<Arc<GroupInfo>>,
}

/// The communicators of a world.
pub(super) struct Comms {
    pub(super) data: Comm,
    pub(super) check: Comm,
    pub(super) control: Comm,
}

impl Engine {
    pub(super) fn new(
        settings: &Settings,
        rank: usize,
        tag_bound: c_int,
        comms: Comms,
        roster: Roster,
    ) -> Engine {
        Engine {
            rank,
            checks: settings.checks,
            native_reductions: settings.native_reductions,
            max_message_bytes: settings.max_message_bytes.clamp(1, c_int::MAX as usize),
            data_comm: comms.data,
            check_comm: comms.check,
            control: Control::new(comms.control),
            streams: Streams::new(tag_bound),
            scratch: ScratchPool::default(),
            roster,
            flights: Flights::new(),
            ending: Ending::default(),
            groups: Vec::new(),
        }
    }

    /// Notes a group, so that its calls are counted when this rank leaves.
    pub(super) fn add_group(&mut self, group: Arc<GroupInfo>) {
        self.groups.push(group);
    }

    /// How many calls this rank has begun on each stream.
    pub(super) fn begun(&self) -> impl Iterator<Item = (Key, u64)> {
        let collectives = self.groups.iter().map(|group| (group.key, group.begun()));
        collectives.chain(self.streams.begun())
    }

    /// An error if no call can be made any more. Reads the control channel first: a rank that has
    /// said that its world has ended relies on it (see [`mod@super`], "Giving up").
    pub(super) fn refuse(&mut self, group: &GroupInfo, call: &Call<'_>) -> Result<(), CommError> {
        if self.first_cause().is_none() && !self.is_over() {
            self.hear();
        }
        match self.first_cause() {
            // The very call that failed, made by a rank that comes late.
            Some(first) if is_about(&first.error, group, call) => Err(first.error.clone()),
            Some(first) => Err(CommError::dead(call, &first.error)),
            None if self.is_over() => Err(self.has_left(*call)),
            None => Ok(()),
        }
    }

    /// What is to be done now and then while waiting.
    pub(super) fn background(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        self.hear();
        if let Some(rank) = self.roster.look_for_the_gone(now) {
            let cause = "died: its process is gone".into();
            self.fail(CommError::RankFailed { rank, cause, table: None });
        }
        if self.flights.is_empty() {
            return;
        }
        let mut flights = std::mem::take(&mut self.flights);
        for flight in flights.values_mut() {
            flight.progress(self);
        }
        self.flights = flights;
    }

    /// Brings one pending call forward.
    pub(super) fn progress_flight(&mut self, id: u64) {
        if let Some((id, mut flight)) = self.flights.remove_entry(&id) {
            flight.progress(self);
            self.flights.insert(id, flight);
        }
    }

    /// Reads the control channel.
    pub(super) fn hear(&mut self) {
        loop {
            match self.control.poll() {
                Ok(None) => return,
                Ok(Some((from, notice))) => self.heed(from, notice),
                Err(error) => return self.fail(error),
            }
        }
    }

    fn heed(&mut self, from: usize, notice: Notice) {
        match notice {
            Notice::Stream { key, number } => self.streams.hear(key, from, number),
            Notice::Left { failed, begun } => {
                let begun = begun.into_iter().collect();
                self.roster.note_departure(from, Departure { failed, begun });
            }
            Notice::Ended { cause } => {
                self.roster.note_end(from);
                self.end_world(cause);
            }
        }
    }

    /// Says which number this rank's messages of a stream have.
    pub(super) fn announce_stream(
        &mut self,
        to: usize,
        key: Key,
        number: u32,
    ) -> Result<(), CommError> {
        self.control.send(to, Notice::Stream { key, number }.to_bytes())
    }

    /// The tag of messages that come from a world rank, once it is known.
    pub(super) fn incoming_tag(&mut self, lane: Lane, from: usize) -> Option<c_int> {
        let mut number = self.streams.heard(lane.receives, from);
        if number.is_none() {
            self.hear();
            number = self.streams.heard(lane.receives, from);
        }
        number.map(|number| self.streams.tag(number, lane.position))
    }

    /// Whether nothing is left to be sent on the control channel, or nothing can be.
    pub(super) fn control_is_idle(&mut self) -> bool {
        self.control.is_idle().unwrap_or(true)
    }
}
