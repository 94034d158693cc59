//! Messages between two ranks of a group.
//!
//! Whoever comes first, sender or receiver, posts a letter; who comes second finds it, copies the
//! data straight between the two buffers and marks the letter. A letter is `Waiting` until it is
//! either matched by its other side or withdrawn by its owner, which is one compare-and-swap:
//!
//! 1. The owner returns with an error only after it has withdrawn its letter (nobody has accessed or
//!    will access its buffer), or after the other side has marked it `Failed`, without access.
//! 2. The owner returns without an error only after the letter is `Done`: the copy is over.
//! 3. The other side accesses the owner's buffer only between `Matched` and `Done`.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use crate::{
    CommError,
    call::{Call, CallKind},
    table::{CallRow, CallTable, Did},
    transport::{Buffers, InFlight},
};

use super::{
    copy::copy,
    end::{RankEnd, because_of},
    parking::Limit,
    round::OwnedCall,
};

/// Letters that wait for their other side, per sender, receiver (group ranks) and tag. In one lane
/// there are senders or receivers, never both.
#[derive(Default)]
pub(super) struct Mail {
    lanes: HashMap<(usize, usize, &'static str), VecDeque<Arc<Letter>>>,
}

struct Letter {
    state: AtomicU8,
    call: OwnedCall,
    buffers: Buffers,
    /// Set before `Failed`.
    failure: OnceLock<CommError>,
}

const WAITING: u8 = 0;
const MATCHED: u8 = 1;
const DONE: u8 = 2;
const FAILED: u8 = 3;
const WITHDRAWN: u8 = 4;

/// One side of a message, from its call to its end.
pub(super) struct Posted {
    end: RankEnd,
    peer: usize,
    /// `None`: the other side was there already, and the message is over.
    letter: Option<Arc<Letter>>,
    news: u64,
    over: bool,
}

/// Carries out a message if its other side is there, else leaves a letter.
///
/// # Safety
/// As [`Transport::start`](crate::transport::Transport::start); over when [`Posted`] says so.
pub(super) unsafe fn post(
    end: &RankEnd,
    call: &Call<'_>,
    buffers: &Buffers,
) -> Result<Posted, CommError> {
    if end.state.news() != 0 {
        end.refuse_if_dead(call, None)?;
    }
    let peer = call.root.unwrap_or(0);
    let key = match call.kind {
        CallKind::Send => (end.rank, peer, call.tag.text),
        _ => (peer, end.rank, call.tag.text),
    };
    let posted = |letter| Posted { end: end.clone(), peer, letter, news: 0, over: false };
    let other = {
        let mut mail = end.group.mail.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = mail.lanes.entry(key).or_default();
        match take_other_side(lane, call.kind) {
            Some(other) => other,
            None => {
                let letter = Arc::new(Letter {
                    state: AtomicU8::new(WAITING),
                    call: OwnedCall::new(call),
                    buffers: *buffers,
                    failure: OnceLock::new(),
                });
                lane.push_back(Arc::clone(&letter));
                return Ok(posted(Some(letter)));
            }
        }
    };
    let (theirs, ours) = (&other.call, OwnedCall::new(call));
    let same = theirs.dtype == ours.dtype
        && other.buffers.send_bytes + other.buffers.recv_bytes
            == buffers.send_bytes + buffers.recv_bytes;
    if !same {
        let their_row = Did::Call(theirs.text());
        let table = table(end, peer, Did::Call(ours.text()), their_row);
        let error = CommError::Mismatch { table };
        let _ = other.failure.set(error.clone());
        other.state.store(FAILED, Ordering::Release);
        end.state.fail(end.world_rank, error.clone());
        return Err(error);
    }
    let (from, to) = match call.kind {
        CallKind::Send => (buffers.send, other.buffers.recv),
        _ => (other.buffers.send, buffers.recv),
    };
    // SAFETY: Cases 1 to 3: the other side's buffer is valid until the letter is done, ours by the
    // caller's promise; both have this many bytes. A send and a receive buffer are not the same
    // memory: the receiver has exclusive access to his.
    unsafe { copy(from, 0, to, 0, buffers.send_bytes + buffers.recv_bytes) };
    other.state.store(DONE, Ordering::Release);
    end.group.parking.wake();
    Ok(posted(None))
}

/// The oldest letter of the other kind that has not been withdrawn, now `Matched`.
fn take_other_side(lane: &mut VecDeque<Arc<Letter>>, kind: CallKind) -> Option<Arc<Letter>> {
    while let Some(front) = lane.front() {
        if front.state.load(Ordering::Relaxed) != WITHDRAWN && front.call.kind == kind {
            return None;
        }
        let letter = lane.pop_front()?;
        if letter.step(MATCHED) {
            return Some(letter);
        }
    }
    None
}

impl Letter {
    /// Leaves `Waiting`; true for one caller only.
    fn step(&self, to: u8) -> bool {
        self.state.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The end of the message, if it has come.
    fn outcome(&self) -> Option<Result<(), CommError>> {
        match self.state.load(Ordering::Acquire) {
            DONE => Some(Ok(())),
            FAILED => self.failure.get().map(|error| Err(error.clone())),
            _ => None,
        }
    }
}

impl Posted {
    /// If somebody has left or failed: withdraws the letter if its other side will not come.
    fn heed_news(&mut self, letter: &Letter) -> Result<(), CommError> {
        let state = &self.end.state;
        let news = state.news();
        if news == self.news {
            return Ok(());
        }
        self.news = news;
        if let Some(first) = state.first_cause() {
            return self.withdraw(letter, |table| because_of(&first.error, table));
        }
        let rank = self.end.group.members[self.peer];
        if state.absence(rank) != Did::NotHere {
            return self.withdraw(letter, |table| CommError::RankLeft { rank, table });
        }
        Ok(())
    }

    /// Ends the message with an error, unless its other side has come.
    fn withdraw(
        &self,
        letter: &Letter,
        error: impl FnOnce(Arc<CallTable>) -> CommError,
    ) -> Result<(), CommError> {
        if !letter.step(WITHDRAWN) {
            return Ok(());
        }
        let absence = self.end.state.absence(self.end.group.members[self.peer]);
        let table = table(&self.end, self.peer, Did::Call(letter.call.text()), absence);
        let error = error(table);
        self.end.state.fail(self.end.world_rank, error.clone());
        Err(error)
    }

    fn advance(&mut self, wait: bool) -> Result<bool, CommError> {
        let Some(letter) = self.letter.clone() else { return Ok(true) };
        let mut limit = Limit::new(self.end.state.deadline);
        loop {
            if let Some(outcome) = letter.outcome() {
                return outcome.map(|()| true);
            }
            self.heed_news(&letter)?;
            if !wait {
                return Ok(false);
            }
            let (state, parking) = (&self.end.state, &self.end.group.parking);
            let seen = parking.wait(state.patience, Some(&mut limit), || {
                (letter.outcome().is_some() || state.news() != self.news).then_some(())
            });
            if seen.is_none() {
                let waited = state.deadline;
                self.withdraw(&letter, |table| CommError::Deadline { waited, table })?;
            }
        }
    }
}

impl InFlight for Posted {
    fn test(&mut self) -> Result<bool, CommError> {
        let result = self.advance(false);
        self.over = !matches!(result, Ok(false));
        result
    }

    fn wait(&mut self) -> Result<(), CommError> {
        let result = self.advance(true);
        self.over = true;
        result.map(|_| ())
    }

    fn abandon(&mut self) {
        if self.letter.as_ref().is_none_or(|letter| letter.step(WITHDRAWN)) {
            self.over = true;
        }
    }

    fn buffers_in_use(&self) -> bool {
        !self.over
    }
}

/// The two ends of a message.
fn table(end: &RankEnd, peer: usize, mine: Did, theirs: Did) -> Arc<CallTable> {
    let members = Arc::clone(&end.group.members);
    let mut rows = vec![
        CallRow { rank: end.world_rank, did: mine },
        CallRow { rank: members[peer], did: theirs },
    ];
    rows.sort_by_key(|row| row.rank);
    Arc::new(CallTable { sequence: None, members, rows })
}
