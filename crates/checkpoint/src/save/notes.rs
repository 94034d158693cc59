//! Meeting by notes beside the checkpoint.

use std::{
    collections::HashSet,
    thread,
    time::{Duration, Instant},
};

use super::{
    alongside::alongside,
    meeting::{DONE, Meeting},
};
use crate::{Error, NewCheckpoint, Result};

/// What rank 0 decided.
const OUTCOME: &str = "outcome";

/// How long to sleep between the first two looks; then twice as long each time.
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// How often a rank that is busy writing says so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// How long rank 0 keeps the outcome for ranks that have not read it, and may be dead. Longer than shared file systems take to
/// show a new file; whoever comes later looks whether the checkpoint is in its place.
const LINGER: Duration = Duration::from_secs(60);

/// Meets by notes that ranks leave beside the new checkpoint: each its message, and rank 0 the outcome. A rank that has read the
/// outcome takes its own note away, so that rank 0 knows when nobody needs any of them.
///
/// Whoever waits, waits as long as notes keep changing, and `patience` longer.
pub(crate) struct ByNotes<'a> {
    new: &'a dyn NewCheckpoint,
    rank: usize,
    n_ranks: usize,
    patience: Duration,
    /// Of rank 0: how long it waits for others to read the outcome.
    pub(super) linger: Duration,
    /// Of rank 0: the ranks that wait for the outcome.
    waiting: Vec<usize>,
}

impl<'a> ByNotes<'a> {
    pub(crate) fn new(
        new: &'a dyn NewCheckpoint,
        rank: usize,
        n_ranks: usize,
        patience: Duration,
    ) -> ByNotes<'a> {
        let linger = patience.min(LINGER);
        ByNotes { new, rank, n_ranks, patience, linger, waiting: Vec::new() }
    }

    /// Looks at the notes again and again, until `seen` says that it is over. [`Error::Silent`] if nothing changes any more for as
    /// long as `patience`.
    fn wait(
        &self,
        patience: Duration,
        mut seen: impl FnMut(&HashSet<String>) -> Result<bool>,
    ) -> Result<()> {
        let mut known = HashSet::new();
        let mut changed = Instant::now();
        let mut nap = SHORTEST_NAP;
        loop {
            let Some(notes) = self.new.notes()? else { return Err(given_up()) };
            let notes: HashSet<String> = notes.into_iter().collect();
            if seen(&notes)? {
                return Ok(());
            }
            if notes != known {
                (known, changed) = (notes, Instant::now());
            }
            if changed.elapsed() > patience {
                return Err(self.silent(0));
            }
            thread::sleep(nap);
            nap = (nap * 2).min(self.new.longest_nap());
        }
    }

    /// Leaves a note that others wait for: if there is no room for it, there may be soon, when others have given up.
    fn post(&self, note: &str, message: &[u8]) -> Result<()> {
        let begun = Instant::now();
        let mut nap = SHORTEST_NAP;
        while let Err(error) = self.new.post(note, message) {
            match self.new.notes() {
                Ok(None) => return Err(given_up()),
                _ if begun.elapsed() > self.patience => return Err(error),
                _ => thread::sleep(nap),
            }
            nap = (nap * 2).min(self.new.longest_nap());
        }
        Ok(())
    }

    /// What rank 0 has said. If it has not waited for this rank, or could not say it, the checkpoint itself does.
    fn told(&self) -> Result<Vec<u8>> {
        let read = || {
            self.wait(self.patience, |notes| Ok(notes.contains(OUTCOME)))?;
            self.new.read(OUTCOME)
        };
        match read() {
            Err(_) if self.new.is_committed() => Ok(vec![DONE]),
            outcome => {
                self.new.remove(&done(self.rank));
                outcome
            }
        }
    }

    fn silent(&self, rank: usize) -> Error {
        Error::Silent { rank, seconds: self.patience.as_secs(), path: self.new.place() }
    }
}

impl Meeting for ByNotes<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn gather(&mut self, message: &[u8]) -> Result<Option<Vec<Result<Vec<u8>>>>> {
        if self.rank > 0 {
            self.post(&done(self.rank), message)?;
            return Ok(None);
        }
        let mut messages: Vec<Option<Vec<u8>>> = vec![None; self.n_ranks];
        messages[0] = Some(message.to_vec());
        let outcome = self.wait(self.patience, |notes| {
            for (rank, message) in messages.iter_mut().enumerate() {
                let note = done(rank);
                if message.is_none() && notes.contains(&note) {
                    *message = Some(self.new.read(&note)?);
                }
            }
            Ok(messages.iter().all(Option::is_some))
        });
        let heard = |rank: &usize| *rank > 0 && messages[*rank].is_some();
        self.waiting = (0..self.n_ranks).filter(heard).collect();
        let message =
            |(rank, message): (usize, Option<Vec<u8>>)| message.ok_or_else(|| self.silent(rank));
        let mut messages: Vec<_> = messages.into_iter().enumerate().map(message).collect();
        match outcome {
            Ok(()) | Err(Error::Silent { .. }) => {}
            // Rank 0 has failed, then, and the others are told as of any failure.
            Err(error) => messages[0] = Err(error),
        }
        Ok(Some(messages))
    }

    fn take_step(&mut self, step: Option<&mut (dyn FnMut() + Send)>) -> Result<()> {
        let Some(step) = step else { return Ok(()) };
        let mut signs = SignsOfLife::new(self.new, self.rank);
        alongside(SIGN_OF_LIFE, step, |is_done| {
            signs.give();
            Ok(is_done)
        })
    }

    fn announce(&mut self, message: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let Some(message) = message else { return self.told() };
        if let Err(error) = self.post(OUTCOME, &message) {
            // Others see that nothing will be said any more.
            self.new.remove_notes();
            return Err(error);
        }
        // The checkpoint is there or not, whoever has read it: an error here would be wrong.
        let _ = self.wait(self.linger, |notes| {
            Ok(!self.waiting.iter().any(|&rank| notes.contains(&done(rank))))
        });
        self.new.remove_notes();
        Ok(message)
    }
}

/// Leaves a sign of life every few seconds, for those who wait for this rank.
pub(crate) struct SignsOfLife<'a> {
    new: &'a dyn NewCheckpoint,
    rank: usize,
    last: Instant,
    count: u64,
}

impl<'a> SignsOfLife<'a> {
    pub(crate) fn new(new: &'a dyn NewCheckpoint, rank: usize) -> SignsOfLife<'a> {
        SignsOfLife { new, rank, last: Instant::now(), count: 0 }
    }

    /// To be called often.
    pub(crate) fn give(&mut self) {
        if self.last.elapsed() > SIGN_OF_LIFE {
            // If it cannot be left, the others wait for the message itself, as they do without it.
            let _ = self.new.post(&self.name(self.count + 1), &[]);
            self.new.remove(&self.name(self.count));
            (self.last, self.count) = (Instant::now(), self.count + 1);
        }
    }

    fn name(&self, count: u64) -> String {
        format!("{:05}-alive-{count}", self.rank)
    }
}

fn given_up() -> Error {
    let message = "it gave the save up, because it had not heard of this rank".into();
    Error::OnRank { rank: 0, message }
}

fn done(rank: usize) -> String {
    format!("{rank:05}-done")
}
