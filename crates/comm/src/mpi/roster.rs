//! What this rank knows about the others outside of any call.

use std::{collections::HashMap, time::Instant};

use super::{
    liveness::{self, Neighbours},
    stream::Key,
};
use crate::table::Did;

/// All ranks of the world.
pub(super) struct Roster {
    rank: usize,
    size: usize,
    /// Ranks whose part of the program is over.
    left: HashMap<usize, Departure>,
    /// Ranks that have said that their world has ended.
    ended: Vec<bool>,
    /// Ranks whose processes are gone.
    gone: Vec<bool>,
    neighbours: Neighbours,
    /// When to look for those next.
    next_look: Instant,
}

/// What a rank says when it leaves.
pub(super) struct Departure {
    /// Whether its part of the program failed.
    pub(super) failed: bool,
    /// The calls that it has begun on each stream.
    pub(super) begun: HashMap<Key, u64>,
}

impl Roster {
    pub(super) fn new(rank: usize, size: usize, neighbours: Neighbours) -> Roster {
        Roster {
            rank,
            size,
            left: HashMap::new(),
            ended: vec![false; size],
            gone: vec![false; size],
            neighbours,
            next_look: Instant::now() + liveness::INTERVAL,
        }
    }

    /// All ranks but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.size).filter(move |&rank| rank != own)
    }

    /// Notes that a rank has left.
    pub(super) fn note_departure(&mut self, rank: usize, departure: Departure) {
        self.left.insert(rank, departure);
    }

    /// Notes that the world of a rank has ended.
    pub(super) fn note_end(&mut self, rank: usize) {
        self.ended[rank] = true;
    }

    /// Looks, from time to time, for processes that are gone; a rank whose process went without a
    /// good-bye.
    pub(super) fn look_for_the_gone(&mut self, now: Instant) -> Option<usize> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + liveness::INTERVAL;
        for rank in self.neighbours.gone() {
            self.gone[rank] = true;
        }
        let vanished =
            |&rank: &usize| self.gone[rank] && !self.ended[rank] && !self.left.contains_key(&rank);
        self.others().find(vanished)
    }

    /// Whether the process of a rank is known to be gone.
    pub(super) fn is_gone(&self, rank: usize) -> bool {
        self.gone[rank]
    }

    /// How many ranks have left.
    pub(super) fn departures(&self) -> usize {
        self.left.len()
    }

    /// Whether a rank has left without having begun the call at `position` of a stream.
    pub(super) fn has_left_before(&self, rank: usize, key: Key, position: u64) -> bool {
        let begun = |departure: &Departure| departure.begun.get(&key).copied().unwrap_or(0);
        self.left.get(&rank).is_some_and(|departure| begun(departure) <= position)
    }

    /// Why a rank that has not failed is not in a call.
    pub(super) fn absence(&self, rank: usize) -> Did {
        if self.left.contains_key(&rank) { Did::Left } else { Did::NotHere }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(size: usize) -> Roster {
        Roster::new(0, size, Neighbours::new(&[], 0))
    }

    fn departure(failed: bool, begun: &[(Key, u64)]) -> Departure {
        Departure { failed, begun: begun.iter().copied().collect() }
    }

    #[test]
    fn a_rank_that_left_is_missed_only_in_calls_that_it_has_not_begun() {
        let mut roster = roster(3);
        let group = Key::group(&[0, 1]);
        assert!(!roster.has_left_before(1, group, 0));
        roster.note_departure(1, departure(false, &[(group, 2)]));
        assert!(!roster.has_left_before(1, group, 1));
        assert!(roster.has_left_before(1, group, 2));
        assert!(roster.has_left_before(1, Key::WORLD, 0));
        assert!(!roster.has_left_before(2, Key::WORLD, 0));
    }

    #[test]
    fn a_run_has_succeeded_when_all_have_left_without_failing() {
        let mut roster = roster(3);
        roster.note_departure(1, departure(false, &[]));
        assert!(!roster.all_have_succeeded());
        roster.note_departure(2, departure(true, &[]));
        assert!(roster.all_have_left() && !roster.all_have_succeeded());
        roster.note_departure(2, departure(false, &[]));
        assert!(roster.all_have_succeeded());
    }

    #[test]
    fn survivors_are_those_that_acknowledge() {
        let mut roster = roster(3);
        roster.note_end(1);
        assert!(!roster.survivors_have_ended() && !roster.survivors_have_left());
        roster.note_departure(1, departure(false, &[]));
        // Rank 2 has not said anything: nobody waits for its good-bye, but it was not together.
        assert!(roster.survivors_have_left() && !roster.ended_together());
        roster.gone[2] = true;
        assert!(roster.survivors_have_ended() && !roster.ended_together());
    }
}
