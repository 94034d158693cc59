//! Which rank reads a span, and in which round it is passed on.

use super::grid::Needers;

/// Bytes that a rank reads in a round: what it passes on should still be in a cache.
const READ_IN_ROUND: u64 = 4 << 20;

/// Bytes that a rank sends in a round, and receives, about: its buffers.
const PASSED_IN_ROUND: u64 = 16 << 20;

/// A span of which more ranks need the same is sent to all ranks, each of which takes what it needs: copies for so many would
/// need more memory than a round has.
const MOST_COPIES: usize = 16;

/// Where more ranks need something of a span they are not looked at one by one, but taken to read and to receive in turn.
const MOST_LISTED: usize = 16;

/// After so many bytes that a rank reads for itself it meets the others, who would else wait for it until a deadline.
const OWN_IN_ROUND: u64 = 512 << 20;

/// Who reads a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The only rank that needs it.
    Own(usize),
    /// One rank for those who need it, who get what they need of it.
    Shared { round: usize, reader: usize },
    /// One rank for so many that all ranks get all of it.
    ToAll { round: usize, reader: usize },
}

/// The decisions so far. They follow from the spans alone, and so are the same on every rank.
pub(super) struct Schedule {
    /// Bytes that each rank reads, sends and receives in the round that has begun.
    read: Vec<u64>,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Bytes that a rank receives in this round beside that, of spans that are for many.
    for_many: u64,
    /// Bytes that each rank reads for itself.
    own: Vec<u64>,
    /// Who read last. It goes on as long as a round allows: long stretches of a file are read faster.
    last: usize,
    rounds: usize,
    /// Bytes of spans for many, which decide whose turn it is to read one.
    of_many: u64,
}

impl Schedule {
    pub(super) fn new(size: usize) -> Schedule {
        let none = || vec![0; size];
        let (read, sent, received, own) = (none(), none(), none(), none());
        let (for_many, last, rounds, of_many) = (0, usize::MAX, 0, 0);
        Schedule { read, sent, received, for_many, own, last, rounds, of_many }
    }

    /// Who reads the next span, of so many bytes in its file and as they are passed on. `only` is the number of the one
    /// among those who need it that may read it, if that is not left open.
    pub(super) fn next(
        &mut self,
        bytes: u64,
        passed: u64,
        needers: &Needers<'_>,
        only: Option<usize>,
    ) -> Turn {
        let count = needers.count();
        if count == 1 {
            let rank = needers.nth(0);
            self.own[rank] += bytes;
            return Turn::Own(rank);
        }
        if self.rounds == 0 {
            self.begin_round();
        }
        let to_all = needers.copies() > MOST_COPIES;
        // What one of them gets, if all get as much.
        let each = match to_all {
            true => passed,
            false => passed / (count / needers.copies()).max(1) as u64,
        };
        let sent = if to_all { passed } else { each * (count as u64 - 1) };
        let share = Share { bytes, each, sent };
        let reader = match self.reader(&share, needers, only) {
            Some(reader) => reader,
            None => {
                self.begin_round();
                self.reader(&share, needers, only).unwrap_or(needers.nth(0))
            }
        };
        let round = self.rounds - 1;
        self.last = reader;
        self.read[reader] += bytes;
        self.sent[reader] += sent;
        if count > MOST_LISTED {
            self.for_many += each;
            self.of_many += bytes;
        } else {
            let others =
                (0..count).map(|number| needers.nth(number)).filter(|rank| *rank != reader);
            others.for_each(|rank| self.received[rank] += each);
        }
        match to_all {
            true => Turn::ToAll { round, reader },
            false => Turn::Shared { round, reader },
        }
    }

    /// How many rounds there are, after the last span.
    pub(super) fn rounds(&self) -> usize {
        let most = self.own.iter().max().copied().unwrap_or_default();
        match self.own.len() {
            1 => 0,
            _ => self.rounds.max((most / OWN_IN_ROUND) as usize),
        }
    }

    /// Who can read a span in this round; `None` if nobody can. In a round that has just begun, somebody can.
    fn reader(&self, share: &Share, needers: &Needers<'_>, only: Option<usize>) -> Option<usize> {
        let fits = |begun: u64, more: u64, most: u64| begun == 0 || begun + more <= most;
        let can_read = |rank: &usize| {
            fits(self.read[*rank], share.bytes, READ_IN_ROUND)
                && fits(self.sent[*rank], share.sent, PASSED_IN_ROUND)
        };
        let can_receive =
            |received: u64| fits(received + self.for_many, share.each, PASSED_IN_ROUND);
        let count = needers.count();
        if count > MOST_LISTED {
            let most = self.received.iter().max().copied().unwrap_or_default();
            let turn = only.unwrap_or((self.of_many / READ_IN_ROUND) as usize);
            return Some(needers.nth(turn % count)).filter(can_read).filter(|_| can_receive(most));
        }
        let ranks = || (0..count).map(|number| needers.nth(number));
        if !ranks().all(|rank| can_receive(self.received[rank])) {
            return None;
        }
        if let Some(number) = only {
            return Some(needers.nth(number % count)).filter(can_read);
        }
        match ranks().find(|rank| *rank == self.last).filter(can_read) {
            Some(last) => Some(last),
            None => ranks().filter(can_read).min_by_key(|rank| (self.read[*rank], *rank)),
        }
    }

    fn begin_round(&mut self) {
        for of_round in [&mut self.read, &mut self.sent, &mut self.received] {
            of_round.fill(0);
        }
        self.for_many = 0;
        // In every round ranks read one after the other, so that what comes from them is in the order of the file.
        self.last = usize::MAX;
        self.rounds += 1;
    }
}

/// What a span is for a round.
struct Share {
    /// Bytes that its reader reads.
    bytes: u64,
    /// Bytes that each of those who need it receives, about.
    each: u64,
    /// Bytes that the reader sends.
    sent: u64,
}
