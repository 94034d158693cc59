//! How ranks agree on the end of something that each of them did alone.
//!
//! Every rank brings what it did, or why it failed. Rank 0 gets all of it and takes the one step that only it takes, if
//! nobody failed; then everybody is told how that went. So all ranks succeed, or all fail, for the same reason. There are
//! two ways to meet: [`ByCalls`] of the world, and by notes beside the checkpoint (`ByNotes`), for those who work while
//! the program is using the world.
//!
//! Whoever waits for the others in a call of the world waits no longer than its deadline. So long work is done while the ranks
//! [`keep_company`](ByCalls::keep_company), and then it may take as long as it takes.

use std::time::Duration;

use dtensor_comm::{Group, ReduceOp};

use super::alongside::alongside;
use crate::{Error, Result};

/// A way to meet.
pub(crate) trait Meeting {
    fn rank(&self) -> usize;

    /// Gives every rank's message to rank 0, in the order of ranks; a rank of which nothing is heard has an error instead.
    /// Other ranks get nothing.
    fn gather(&mut self, message: &[u8]) -> Result<Option<Vec<Result<Vec<u8>>>>>;

    /// The step that rank 0 takes, which may be a long one; the others have none, and wait for it.
    fn take_step(&mut self, step: Option<&mut (dyn FnMut() + Send)>) -> Result<()>;

    /// Gives rank 0's message, which only it has, to everybody.
    fn announce(&mut self, message: Option<Vec<u8>>) -> Result<Vec<u8>>;
}

/// What this rank did (`mine`, in bytes) and what the others did goes to rank 0, which concludes: from what all of them did,
/// or from nothing if a rank failed. An error is the same on all ranks, that of the lowest rank that failed: itself on
/// that rank, and [`Error::OnRank`] on the others. What is about the checkpoint as a whole, and not about a rank, is itself on
/// all of them.
pub(crate) fn settle(
    meeting: &mut dyn Meeting,
    mine: Result<Vec<u8>>,
    conclude: impl FnOnce(Option<Vec<Vec<u8>>>) -> Result<()> + Send,
) -> Result<()> {
    let message = match &mine {
        Ok(done) => [&[DONE], done.as_slice()].concat(),
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    };
    // What others are told as a text, this rank knows as an error.
    let mut own = mine.err();
    let mut verdict = None;
    match meeting.gather(&message)? {
        None => meeting.take_step(None)?,
        Some(messages) => {
            let judge = || match first_failure(messages) {
                Ok(done) => match conclude(Some(done)) {
                    Ok(()) => vec![DONE],
                    Err(error) => about_all(&error)
                        .unwrap_or_else(|| failure(0, &own.insert(error).to_string())),
                },
                Err(failure) => {
                    // The failure before is the one to be told.
                    let _ = conclude(None);
                    failure
                }
            };
            let mut once = Some(judge);
            meeting.take_step(Some(&mut || verdict = once.take().map(|judge| judge())))?;
        }
    }
    let verdict = meeting.announce(verdict)?;
    match verdict.split_first() {
        Some((&DONE, _)) => Ok(()),
        Some((&kind @ (BUSY | OVERTAKEN | AFTER_COMMIT), text)) => Err(said_of_all(kind, text)),
        Some((_, text)) => match (failed_rank(text), own) {
            ((rank, _), Some(own)) if rank == meeting.rank() => Err(own),
            ((rank, message), _) => Err(Error::OnRank { rank, message }),
        },
        None => Err(Error::OnRank { rank: 0, message: NOTHING.into() }),
    }
}

pub(super) const DONE: u8 = 0;
const FAILED: u8 = 1;
const BUSY: u8 = 2;
const OVERTAKEN: u8 = 3;
const AFTER_COMMIT: u8 = 4;

const NOTHING: &str = "it said nothing";

/// What all ranks did, or the verdict on the first that failed.
fn first_failure(messages: Vec<Result<Vec<u8>>>) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let messages = messages.into_iter().enumerate().map(|(rank, message)| match message {
        Err(error) => Err(failure(rank, &error.to_string())),
        Ok(message) => match message.split_first() {
            Some((&DONE, done)) => Ok(done.to_vec()),
            Some((_, text)) => Err(failure(rank, &String::from_utf8_lossy(text))),
            None => Err(failure(rank, NOTHING)),
        },
    });
    messages.collect()
}

/// The verdict if it concerns all ranks alike.
fn about_all(error: &Error) -> Option<Vec<u8>> {
    let (kind, path, message) = match error {
        Error::Busy { path } => (BUSY, path, ""),
        Error::Overtaken { path } => (OVERTAKEN, path, ""),
        Error::AfterCommit { path, message } => (AFTER_COMMIT, path, message.as_str()),
        _ => return None,
    };
    // No path has such a byte.
    Some([&[kind], path.as_bytes(), &[0], message.as_bytes()].concat())
}

/// The reverse.
fn said_of_all(kind: u8, text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    let (path, message) = text.split_once('\0').unwrap_or((&text, ""));
    let path = path.to_owned();
    match kind {
        BUSY => Error::Busy { path },
        OVERTAKEN => Error::Overtaken { path },
        _ => Error::AfterCommit { path, message: message.to_owned() },
    }
}

fn failure(rank: usize, text: &str) -> Vec<u8> {
    [&[FAILED], &(rank as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn failed_rank(text: &[u8]) -> (usize, String) {
    match text.split_first_chunk() {
        Some((rank, text)) => {
            (u64::from_le_bytes(*rank) as usize, String::from_utf8_lossy(text).into_owned())
        }
        None => (0, "it did not say why".into()),
    }
}

/// Meets by calls of a group.
pub(crate) struct ByCalls {
    group: Group,
}

impl ByCalls {
    pub(crate) fn new(group: &Group) -> ByCalls {
        ByCalls { group: group.tag("checkpoint") }
    }

    /// Does something that may take longer than a call of the world may wait, on this rank or on others. All ranks call it, and it
    /// ends when all are done.
    pub(crate) fn keep_company<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        if self.group.size() == 1 {
            return Ok(work());
        }
        let mut done = None;
        alongside(HEARTBEAT, || done = Some(work()), |is_done| self.are_done(is_done))?;
        done.ok_or_else(|| Error::OnRank { rank: self.group.rank(), message: NOTHING.into() })
    }

    /// Whether all ranks are.
    fn are_done(&self, is_done: bool) -> Result<bool> {
        let mut all_done = [i64::from(is_done)];
        self.group.all_reduce(&mut all_done, ReduceOp::Min)?;
        Ok(all_done == [1])
    }
}

/// How long a rank works before it meets those that wait for it: much shorter than any deadline.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

impl Meeting for ByCalls {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Option<Vec<Result<Vec<u8>>>>> {
        let messages = self.group.gather_lists(message, 0)?;
        Ok(messages.map(|messages| messages.into_iter().map(Ok).collect()))
    }

    fn take_step(&mut self, step: Option<&mut (dyn FnMut() + Send)>) -> Result<()> {
        match step {
            Some(step) => self.keep_company(step),
            // One who only waits needs no thread for that.
            None => {
                while !self.are_done(true)? {}
                Ok(())
            }
        }
    }

    fn announce(&mut self, message: Option<Vec<u8>>) -> Result<Vec<u8>> {
        Ok(self.group.broadcast_list(message, 0)?)
    }
}
