//! What all ranks of a world of threads share: the first failure, who is gone, the groups.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{CommError, launch::cores, table::Did, transport::FirstCause};

use super::{
    mail::Mail,
    parking::{Parking, Patience},
    round::Round,
};

/// Calls of one group that may be in flight at once. One more waits for the oldest to end.
pub(super) const RING: usize = 64;

pub(crate) struct ThreadsState {
    /// Longest wait.
    pub(super) deadline: Duration,
    pub(super) patience: Patience,
    first: OnceLock<FirstCause>,
    /// Raised whenever a rank leaves or fails. Waiters watch this one number.
    news: AtomicU64,
    /// Per rank: `HERE`, `LEFT` or `FAILED`.
    gone: Box<[AtomicU8]>,
    whole: Arc<GroupState>,
    /// Sub-groups by their members. Kept for as long as the world, because a rank that is done with
    /// a group may have calls in flight there.
    groups: Mutex<HashMap<Arc<[usize]>, Arc<GroupState>>>,
}

/// What the members of one group share.
pub(super) struct GroupState {
    /// World ranks in group-rank order.
    pub(super) members: Arc<[usize]>,
    /// The calls in flight: call `s` is in round `s % RING`, made when it is first used.
    rounds: Box<[OnceLock<Round>]>,
    pub(super) mail: Mutex<Mail>,
    pub(super) parking: Parking,
}

const HERE: u8 = 0;
const LEFT: u8 = 1;
const FAILED: u8 = 2;

impl ThreadsState {
    pub(super) fn new(ranks: usize, deadline: Duration) -> ThreadsState {
        ThreadsState {
            deadline,
            patience: Patience::new(ranks, cores()),
            first: OnceLock::new(),
            news: AtomicU64::new(0),
            gone: (0..ranks).map(|_| AtomicU8::new(HERE)).collect(),
            whole: Arc::new(GroupState::new((0..ranks).collect())),
            groups: Mutex::default(),
        }
    }

    pub(super) fn whole(&self) -> &Arc<GroupState> {
        &self.whole
    }

    pub(super) fn group(&self, members: &Arc<[usize]>) -> Arc<GroupState> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups
            .entry(Arc::clone(members))
            .or_insert_with(|| Arc::new(GroupState::new(Arc::clone(members))));
        Arc::clone(group)
    }

    pub(super) fn first_cause(&self) -> Option<&FirstCause> {
        self.first.get()
    }

    /// 0 as long as every rank is here and well.
    pub(super) fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// What a rank that has not made a call is doing instead. Look here *before* looking for its
    /// call: who calls and then leaves is seen to have called by whoever sees it gone.
    pub(super) fn absence(&self, rank: usize) -> Did {
        match self.gone[rank].load(Ordering::Acquire) {
            HERE => Did::NotHere,
            LEFT => Did::Left,
            _ => Did::Failed,
        }
    }

    /// Keeps the first failure and wakes everybody.
    pub(super) fn fail(&self, rank: usize, error: CommError) {
        // Later ones are consequences, or would have been.
        let _ = self.first.set(FirstCause { rank, error });
        self.spread_news();
    }

    pub(super) fn leave(&self, rank: usize, outcome: Result<(), CommError>) {
        let how = if outcome.is_ok() { LEFT } else { FAILED };
        self.gone[rank].store(how, Ordering::Release);
        match outcome {
            Ok(()) => self.spread_news(),
            Err(error) => self.fail(rank, error),
        }
    }

    fn spread_news(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.whole.parking.wake();
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups.values() {
            group.parking.wake();
        }
    }
}

impl GroupState {
    fn new(members: Arc<[usize]>) -> GroupState {
        GroupState {
            members,
            rounds: (0..RING).map(|_| OnceLock::new()).collect(),
            mail: Mutex::default(),
            parking: Parking::default(),
        }
    }

    /// The round of call `sequence`.
    pub(super) fn round(&self, sequence: u64) -> &Round {
        let index = sequence as usize % RING;
        self.rounds[index].get_or_init(|| Round::new(self.members.len(), index as u64))
    }
}
