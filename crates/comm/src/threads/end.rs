//! One rank's end of one group of threads.

use std::{ptr, sync::Arc};

use crate::{
    CommError,
    call::Call,
    table::{CallRow, CallTable, Did},
    transport::{Buffers, FirstCause, InFlight, Transport},
};

use super::{
    mail,
    parking::Limit,
    round::{Entry, INLINE_BYTES, OwnedCall, Payload, Phase, Round},
    state::{GroupState, RING, ThreadsState},
    work,
};

/// A round with less data than this in all is finished by the last rank that arrives before it wakes
/// the sleepers: waking them to share the work would cost more than the work.
const ALONE_BYTES: usize = 128 * 1024;

#[derive(Clone)]
pub(super) struct RankEnd {
    pub(super) state: Arc<ThreadsState>,
    pub(super) group: Arc<GroupState>,
    /// This rank in the group, and in the world.
    pub(super) rank: usize,
    pub(super) world_rank: usize,
}

/// A collective call that this rank has arrived in.
#[derive(Clone, Copy)]
struct Arrival {
    sequence: u64,
    inline: bool,
}

impl RankEnd {
    pub(super) fn new(state: Arc<ThreadsState>, group: Arc<GroupState>, rank: usize) -> RankEnd {
        let world_rank = group.members[rank];
        RankEnd { state, group, rank, world_rank }
    }

    /// # Safety
    /// As [`Transport::start`]; the call is over when [`finish`](RankEnd::finish) says so.
    unsafe fn arrive(&self, call: &Call<'_>, buffers: &Buffers) -> Result<Arrival, CommError> {
        let sequence = call.sequence;
        let round = self.group.round(sequence);
        if self.state.news() != 0 {
            self.refuse_if_dead(call, Some(round))?;
        }
        match round.phase(sequence) {
            Phase::Gathering => {}
            _ => self.enter(round, call)?,
        }
        let inline = work::inline_bytes(call, self.group.members.len());
        let mut payload = Payload([0; INLINE_BYTES]);
        if let Some(bytes) = inline.filter(|&bytes| bytes > 0) {
            let in_place = buffers.send_bytes == 0;
            let from = if in_place { buffers.recv.cast_const() } else { buffers.send };
            // SAFETY: The checks above the transport made the buffer this long, and the caller
            // promises that it is valid and that nobody else accesses it.
            unsafe { ptr::copy_nonoverlapping(from, payload.0.as_mut_ptr(), bytes) };
        }
        let entry = Entry {
            fingerprint: call.fingerprint(self.rank),
            call: OwnedCall::new(call),
            buffers: *buffers,
            payload,
        };
        // SAFETY: `Gathering(sequence)` was seen, and sequence numbers are given out once. The
        // buffers are valid until `finish` returns, by the caller's promise.
        if unsafe { round.arrive(sequence, self.rank, entry) } {
            self.decide(round, sequence, buffers);
        }
        Ok(Arrival { sequence, inline: inline.is_some() })
    }

    /// The verdict, by the last rank that arrives.
    fn decide(&self, round: &Round, sequence: u64, buffers: &Buffers) {
        if !round.agree() {
            let mismatch = |table| CommError::Mismatch { table };
            self.fail(round, sequence, mismatch);
        } else if round.complete(sequence) && self.group.parking.has_sleepers() {
            let bytes = (buffers.send_bytes + buffers.recv_bytes) * round.size();
            if bytes <= ALONE_BYTES {
                self.help(round, sequence);
            }
            self.group.parking.wake();
        }
    }

    /// Brings the call to its end. With `all`, waits for the whole round even where this rank's own
    /// part would do.
    fn finish(&self, arrival: Arrival, all: bool) -> Result<(), CommError> {
        let Arrival { sequence, inline } = arrival;
        let round = self.group.round(sequence);
        if self.await_verdict(round, sequence)? == Phase::Over {
            return Ok(());
        }
        if round.claim(sequence, self.rank) {
            self.do_share(round, sequence, self.rank);
        }
        let mine_is_enough = inline && !all;
        if !mine_is_enough || self.group.parking.has_sleepers() {
            self.help(round, sequence);
        }
        // No deadline: nothing is left but copies that others are in the middle of.
        self.group.parking.wait(self.state.patience, None, || {
            let over = round.phase(sequence) == Phase::Over;
            (over || mine_is_enough && round.share_is_done(sequence, self.rank)).then_some(())
        });
        Ok(())
    }

    /// As far as [`finish`](RankEnd::finish) gets without waiting.
    fn try_finish(&self, arrival: Arrival, news: &mut u64) -> Result<bool, CommError> {
        let Arrival { sequence, inline } = arrival;
        let round = self.group.round(sequence);
        self.heed_news(round, sequence, news);
        match round.phase(sequence) {
            Phase::Complete => self.help(round, sequence),
            Phase::Failed => return Err(self.failure(round)),
            _ => {}
        }
        let over = round.phase(sequence) == Phase::Over;
        Ok(over || inline && round.share_is_done(sequence, self.rank))
    }

    /// Waits until the round is `Complete` or `Over`.
    fn await_verdict(&self, round: &Round, sequence: u64) -> Result<Phase, CommError> {
        let mut news = 0;
        let mut limit = Limit::new(self.state.deadline);
        loop {
            match round.phase(sequence) {
                phase @ (Phase::Complete | Phase::Over) => return Ok(phase),
                Phase::Failed => return Err(self.failure(round)),
                Phase::Earlier | Phase::Gathering | Phase::Failing => {}
            }
            self.heed_news(round, sequence, &mut news);
            let seen = self.group.parking.wait(self.state.patience, Some(&mut limit), || {
                let decided = !matches!(round.phase(sequence), Phase::Gathering | Phase::Failing);
                (decided || self.state.news() != news).then_some(())
            });
            if seen.is_none() {
                let waited = self.state.deadline;
                self.fail(round, sequence, |table| CommError::Deadline { waited, table });
            }
        }
    }

    /// Waits until the round is ready for `call`: the call before it in this round must be over.
    #[cold]
    fn enter(&self, round: &Round, call: &Call<'_>) -> Result<(), CommError> {
        let sequence = call.sequence;
        if round.phase(sequence) == Phase::Earlier {
            let earlier = Arrival { sequence: sequence - RING as u64, inline: false };
            self.finish(earlier, true).map_err(|cause| CommError::dead(call, &cause))?;
        }
        match self.await_gathering(round, sequence) {
            Phase::Gathering => Ok(()),
            _ => Err(self.failure(round)),
        }
    }

    /// Where a round is that this rank has not arrived in yet: `Gathering` or `Failed`.
    fn await_gathering(&self, round: &Round, sequence: u64) -> Phase {
        // No deadline: somebody is putting an error together.
        let phase = self.group.parking.wait(self.state.patience, None, || {
            Some(round.phase(sequence)).filter(|&phase| phase != Phase::Failing)
        });
        phase.unwrap_or(Phase::Failed)
    }

    /// Does the shares that nobody has claimed, this rank's own first.
    fn help(&self, round: &Round, sequence: u64) {
        let size = round.size();
        let mut helped = false;
        for rank in (self.rank..size).chain(0..self.rank) {
            if round.claim(sequence, rank) {
                self.do_share(round, sequence, rank);
                helped |= rank != self.rank;
            }
        }
        if helped {
            self.group.parking.wake();
        }
    }

    /// Does a claimed share.
    fn do_share(&self, round: &Round, sequence: u64, rank: usize) {
        // SAFETY: The callers have seen `Complete(sequence)` and claimed the share since.
        unsafe { work::do_share(round, rank) };
        if round.finish_share(sequence, rank) {
            self.group.parking.wake();
        }
    }

    /// If somebody has left or failed since `news`: lets the round fail if it waits for that rank, or
    /// if the world has ended.
    fn heed_news(&self, round: &Round, sequence: u64, news: &mut u64) {
        let latest = self.state.news();
        if latest == *news {
            return;
        }
        *news = latest;
        if let Some(first) = self.state.first_cause() {
            self.fail(round, sequence, |table| because_of(&first.error, table));
            return;
        }
        let missing = self.group.members.iter().enumerate().find(|&(member, &rank)| {
            self.state.absence(rank) != Did::NotHere && !round.has_published(sequence, member)
        });
        if let Some((_, &rank)) = missing {
            self.fail(round, sequence, |table| CommError::RankLeft { rank, table });
        }
    }

    /// Lets the round fail, unless it has completed or failed already.
    fn fail(&self, round: &Round, sequence: u64, error: impl FnOnce(Arc<CallTable>) -> CommError) {
        if round.fail(sequence, || error(self.table(round, sequence))) {
            self.state.fail(self.world_rank, self.failure(round));
        }
    }

    fn failure(&self, round: &Round) -> CommError {
        match (round.failure(), self.state.first_cause()) {
            (Some(error), _) => error.clone(),
            (None, Some(first)) => CommError::dead("a call", &first.error),
            (None, None) => CommError::CannotRun("a round failed without a reason".into()),
        }
    }

    /// Who called what in a round that fails.
    fn table(&self, round: &Round, sequence: u64) -> Arc<CallTable> {
        let members = &self.group.members;
        let row = |(member, &rank): (usize, &usize)| {
            let absence = self.state.absence(rank);
            let did = match round.published(sequence, member) {
                Some(call) => Did::Call(call.text()),
                None => absence,
            };
            CallRow { rank, did }
        };
        let rows = members.iter().enumerate().map(row).collect();
        Arc::new(CallTable { sequence: Some(sequence), members: Arc::clone(members), rows })
    }

    /// The error of a call that is made after the end of the world, or of this rank's part in it.
    pub(super) fn refuse_if_dead(
        &self,
        call: &Call<'_>,
        round: Option<&Round>,
    ) -> Result<(), CommError> {
        // The very call that failed, made by a rank that came late, has an error of its own.
        if let Some(round) = round
            && matches!(round.phase(call.sequence), Phase::Failing | Phase::Failed)
        {
            self.await_gathering(round, call.sequence);
            return Err(self.failure(round));
        }
        if let Some(first) = self.state.first_cause() {
            return Err(CommError::dead(call, &first.error));
        }
        if self.state.absence(self.world_rank) != Did::NotHere {
            let (rank, cause) =
                (self.world_rank, "has left the run: it makes no more calls".into());
            let left = CommError::RankFailed { rank, cause, table: None };
            return Err(CommError::dead(call, &left));
        }
        Ok(())
    }
}

/// The error of a call in flight when the world ends because of `first`.
pub(super) fn because_of(first: &CommError, table: Arc<CallTable>) -> CommError {
    match first {
        CommError::RankFailed { rank, cause, .. } => {
            CommError::RankFailed { rank: *rank, cause: Arc::clone(cause), table: Some(table) }
        }
        other => CommError::dead(table, other),
    }
}

impl Transport for RankEnd {
    unsafe fn execute(&self, call: &Call<'_>, buffers: &Buffers) -> Result<(), CommError> {
        // Peers may be accessing the caller's memory: returning early is not possible, and unwinding
        // is returning early.
        let guard = AbortOnUnwind;
        let result = if call.kind.is_message() {
            // SAFETY: The caller's promise; `wait` returns when the message is over.
            unsafe { mail::post(self, call, buffers) }.and_then(|mut letter| letter.wait())
        } else {
            // SAFETY: The caller's promise; `finish` returns when the call is over.
            unsafe { self.arrive(call, buffers) }.and_then(|arrival| self.finish(arrival, false))
        };
        std::mem::forget(guard);
        result
    }

    unsafe fn start(
        &self,
        call: &Call<'_>,
        buffers: &Buffers,
    ) -> Result<Box<dyn InFlight>, CommError> {
        if call.kind.is_message() {
            // SAFETY: The caller's promise.
            return Ok(Box::new(unsafe { mail::post(self, call, buffers) }?));
        }
        // SAFETY: The caller's promise.
        let arrival = unsafe { self.arrive(call, buffers) }?;
        Ok(Box::new(Flight { end: self.clone(), arrival, news: 0, over: false }))
    }

    fn subgroup(&self, members: &Arc<[usize]>) -> Result<Arc<dyn Transport>, CommError> {
        let rank = members.iter().position(|&rank| rank == self.world_rank).unwrap_or(0);
        let group = self.state.group(members);
        Ok(Arc::new(RankEnd::new(Arc::clone(&self.state), group, rank)))
    }

    fn leave(&self, outcome: Result<(), CommError>) -> Option<FirstCause> {
        self.state.leave(self.world_rank, outcome);
        self.first_cause()
    }

    fn first_cause(&self) -> Option<FirstCause> {
        self.state.first_cause().cloned()
    }
}

/// A pending collective call.
struct Flight {
    end: RankEnd,
    arrival: Arrival,
    /// The news that have been heeded.
    news: u64,
    /// Whether the world has let go of the buffers.
    over: bool,
}

impl InFlight for Flight {
    fn test(&mut self) -> Result<bool, CommError> {
        let result = self.end.try_finish(self.arrival, &mut self.news);
        self.over = !matches!(result, Ok(false));
        result
    }

    fn wait(&mut self) -> Result<(), CommError> {
        let result = self.end.finish(self.arrival, false);
        self.over = true;
        result
    }

    fn abandon(&mut self) {
        // Nothing is withdrawn: the peers may complete the call, with buffers that are leaked.
    }

    fn buffers_in_use(&self) -> bool {
        !self.over
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
