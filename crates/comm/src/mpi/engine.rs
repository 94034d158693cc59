//! The state of this rank's end of the world: one value behind one lock.
//!
//! MPI is initialised for one thread at a time, so everything that calls it does so under the lock of
//! [`Shared`]. Whoever waits for one call progresses all pending calls of the process: a peer may be
//! waiting for one that nobody here is waiting for yet.

use std::{
    collections::{BTreeMap, HashMap},
    os::raw::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    blame::is_about,
    control::{Control, Notice},
    group::GroupInfo,
    liveness::{self, Neighbours},
    operation::Operation,
    result::Comm,
    scratch::ScratchPool,
    stream::{Key, Streams},
    transfer::Lane,
};
use crate::{
    CommError,
    call::Call,
    table::{CallTable, Did},
    transport::{FirstCause, Settings},
};

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

/// See [`mod@self`].
pub(super) struct Engine {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) checks: bool,
    pub(super) native_reductions: bool,
    pub(super) max_message_bytes: usize,
    /// Carries the data, and nothing else, so that it is never mistaken for a check.
    pub(super) data_comm: Comm,
    pub(super) check_comm: Comm,
    pub(super) control: Control,
    pub(super) streams: Streams,
    pub(super) scratch: ScratchPool,
    pub(super) flights: Flights,
    /// The groups that this rank has used.
    groups: Vec<Arc<GroupInfo>>,
    /// Ranks whose part of the program is over.
    left: HashMap<usize, Departure>,
    /// Ranks that have said that their world has ended.
    ended: Vec<bool>,
    /// Ranks whose processes are gone.
    gone: Vec<bool>,
    neighbours: Neighbours,
    /// When to look for them next.
    next_look: Instant,
    first: Option<FirstCause>,
    settled: bool,
    /// Set when this rank has left: no more calls, and no more MPI.
    over: bool,
}

/// What a rank said when it left.
struct Departure {
    /// Whether its part of the program failed.
    failed: bool,
    /// The calls that it had begun on each stream.
    begun: HashMap<Key, u64>,
}

/// The pending calls, in the order in which they were begun.
pub(super) type Flights = BTreeMap<u64, Flight>;

/// A pending call.
pub(super) struct Flight {
    pub(super) operation: Operation,
    /// How it ended, until its owner asks.
    pub(super) end: Option<Result<(), CommError>>,
}

impl Flight {
    fn progress(&mut self, engine: &mut Engine) {
        if self.end.is_some() || engine.first.is_some() {
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

/// The communicators of a world.
pub(super) struct Comms {
    pub(super) data: Comm,
    pub(super) check: Comm,
    pub(super) control: Comm,
}

impl Engine {
    pub(super) fn new(
        settings: &Settings,
        (rank, size): (usize, usize),
        tag_bound: c_int,
        comms: Comms,
        neighbours: Neighbours,
    ) -> Engine {
        Engine {
            rank,
            size,
            checks: settings.checks,
            native_reductions: settings.native_reductions,
            max_message_bytes: settings.max_message_bytes.clamp(1, c_int::MAX as usize),
            data_comm: comms.data,
            check_comm: comms.check,
            control: Control::new(comms.control),
            streams: Streams::new(tag_bound),
            scratch: ScratchPool::default(),
            flights: Flights::new(),
            groups: Vec::new(),
            left: HashMap::new(),
            ended: vec![false; size],
            gone: vec![false; size],
            neighbours,
            next_look: Instant::now() + liveness::INTERVAL,
            first: None,
            settled: false,
            over: false,
        }
    }

    /// Notes a group, so that its calls are counted when this rank leaves.
    pub(super) fn add_group(&mut self, group: Arc<GroupInfo>) {
        self.groups.push(group);
    }

    /// An error if no call can be made any more. Reads the control channel first: a rank that has
    /// said that its world has ended relies on it (see [`mod@super`], "Giving up").
    pub(super) fn refuse(&mut self, group: &GroupInfo, call: &Call<'_>) -> Result<(), CommError> {
        if self.over {
            let cause = "has left the run: it makes no more calls".into();
            let left = CommError::RankFailed { rank: self.rank, cause, table: None };
            return Err(CommError::dead(call, &left));
        }
        if self.first.is_none() {
            self.hear();
        }
        match &self.first {
            // The very call that failed, made by a rank that comes late.
            Some(first) if is_about(&first.error, group, call) => Err(first.error.clone()),
            Some(first) => Err(CommError::dead(call, &first.error)),
            None => Ok(()),
        }
    }

    /// What is to be done now and then while waiting.
    pub(super) fn background(&mut self, now: Instant) {
        if self.over {
            return;
        }
        self.hear();
        self.look_for_the_gone(now);
        if self.first.is_some() || self.flights.is_empty() {
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

    /// Finds out whether a process has died, from time to time.
    fn look_for_the_gone(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + liveness::INTERVAL;
        let gone: Vec<usize> = self.neighbours.gone().collect();
        for rank in gone {
            self.gone[rank] = true;
            // A rank that has said good-bye may go.
            if !self.left.contains_key(&rank) && !self.ended[rank] {
                let cause = "died: its process is gone".into();
                self.fail(CommError::RankFailed { rank, cause, table: None });
            }
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
                self.left.insert(from, Departure { failed, begun: begun.into_iter().collect() });
            }
            Notice::Ended { cause } => {
                self.ended[from] = true;
                self.end_world(cause);
            }
        }
    }

    /// Ends the world because of something that this rank has found, unless it has ended already:
    /// what is found then is a consequence.
    pub(super) fn fail(&mut self, error: CommError) {
        if self.first.is_none() {
            let error = error.first_cause().clone();
            self.end_world(FirstCause { rank: self.rank, error });
        }
    }

    /// Ends the world, and says so to everybody, once. When several ranks have found something at the
    /// same time all of them settle for the same cause in the end.
    fn end_world(&mut self, cause: FirstCause) {
        match &mut self.first {
            Some(first) => {
                if precedence(&cause) < precedence(first) {
                    *first = cause;
                }
            }
            None => {
                let notice = Notice::Ended { cause: cause.clone() }.to_bytes();
                self.first = Some(cause);
                self.tell_all(&notice);
            }
        }
    }

    /// Says to everybody that this rank's part is over.
    pub(super) fn say_goodbye(&mut self, failed: bool) {
        let collectives = self.groups.iter().map(|group| (group.key, group.begun()));
        let begun = collectives.chain(self.streams.begun()).collect();
        self.tell_all(&Notice::Left { failed, begun }.to_bytes());
    }

    fn tell_all(&mut self, notice: &[u8]) {
        for to in (0..self.size).filter(|&to| to != self.rank) {
            // If even the control channel fails the others find out by their deadlines.
            if let Err(error) = self.control.send(to, notice.into()) {
                tracing::error!(%error, to, "could not notify a rank");
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

    pub(super) fn first_cause(&self) -> Option<&FirstCause> {
        self.first.as_ref()
    }

    /// Completes the first cause: whoever found out that a rank failed did so while it waited for
    /// nobody, and now it is known who waited.
    pub(super) fn add_table(&mut self, waiting: Arc<CallTable>) {
        if let Some(CommError::RankFailed { table: table @ None, .. }) =
            self.first.as_mut().map(|first| &mut first.error)
        {
            *table = Some(waiting);
        }
    }

    /// How many ranks have left.
    pub(super) fn departures(&self) -> usize {
        self.left.len()
    }

    /// Whether a rank has left without having begun the call at `position` of a stream.
    pub(super) fn has_left_before(&self, rank: usize, key: Key, position: u64) -> bool {
        self.left
            .get(&rank)
            .is_some_and(|departure| departure.begun.get(&key).copied().unwrap_or(0) <= position)
    }

    /// Why a rank is not in a call.
    pub(super) fn absence(&self, rank: usize) -> Did {
        let failed = self.first.as_ref().is_some_and(|first| {
            matches!(first.error, CommError::RankFailed { rank: failed, .. } if failed == rank)
        });
        match failed {
            true => Did::Failed,
            false if self.left.contains_key(&rank) => Did::Left,
            false => Did::NotHere,
        }
    }

    /// Whether all others have left.
    pub(super) fn all_have_left(&self) -> bool {
        self.left.len() + 1 == self.size
    }

    /// Whether all others have left and said that nothing failed.
    pub(super) fn all_have_succeeded(&self) -> bool {
        self.all_have_left() && self.left.values().all(|departure| !departure.failed)
    }

    /// Whether all others know that the world has ended, but for those that are gone.
    pub(super) fn survivors_have_ended(&self) -> bool {
        self.others().all(|rank| self.ended[rank] || self.gone[rank])
    }

    /// Whether all others that know that the world has ended have left as well.
    pub(super) fn survivors_have_left(&self) -> bool {
        let left = |rank| self.left.contains_key(&rank) || self.gone[rank];
        self.others().all(|rank| left(rank) || !self.ended[rank])
    }

    /// Whether all others are there, know that the world has ended, and have left.
    pub(super) fn ended_together(&self) -> bool {
        self.all_have_left() && self.others().all(|rank| self.ended[rank] && !self.gone[rank])
    }

    /// Whether the process of a rank is known to be gone.
    pub(super) fn is_gone(&self, rank: usize) -> bool {
        self.gone[rank]
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.size).filter(|&rank| rank != self.rank)
    }

    /// Whether nothing is left to be sent on the control channel, or nothing can be.
    pub(super) fn control_is_idle(&mut self) -> bool {
        self.control.is_idle().unwrap_or(true)
    }

    /// Whether this rank has waited for the others to learn of the end.
    pub(super) fn has_settled(&self) -> bool {
        self.settled
    }

    pub(super) fn set_settled(&mut self) {
        self.settled = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Ends this rank's part. With `free` all others have done so as well, and the communicators go.
    pub(super) fn close(&mut self, free: bool) {
        self.over = true;
        if !free {
            return;
        }
        for freed in [self.data_comm.free(), self.check_comm.free(), self.control.free()] {
            if let Err(error) = freed {
                tracing::warn!(%error, "a communicator was not freed");
            }
        }
    }
}

/// Which of several causes found at the same time counts: the one that is least likely to follow
/// from another, then the one of the first rank.
fn precedence(cause: &FirstCause) -> (u8, usize) {
    let kind = match cause.error {
        CommError::RankFailed { .. } => 0,
        CommError::Mismatch { .. } => 1,
        CommError::RankLeft { .. } => 3,
        CommError::Deadline { .. } => 4,
        _ => 2,
    };
    (kind, cause.rank)
}
