//! An answer whose body is still on its way.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::{Agent, Error, Result, block::block_until, client::Answer};

/// The head of an answer, and its body as it arrives. The time that was allowed for the call goes on.
///
/// A body that is not read waits at its owner; drop it if it is of no use.
pub struct Incoming {
    agent: Agent,
    worker: usize,
    method: Box<str>,
    answer: Answer,
    deadline: Instant,
    patience: Duration,
}

impl Incoming {
    pub(crate) fn new(
        agent: &Agent,
        worker: usize,
        method: &str,
        answer: Answer,
        (deadline, patience): (Instant, Duration),
    ) -> Incoming {
        Incoming { agent: agent.clone(), worker, method: method.into(), answer, deadline, patience }
    }

    /// The head.
    pub fn head(&self) -> &Bytes {
        &self.answer.head
    }

    /// The length of the body in bytes, as it was announced. It arrives so long, or not at all.
    pub fn body_length(&self) -> u64 {
        self.answer.body_length
    }

    /// The body, into memory of exactly its length.
    pub fn read_into(mut self, into: &mut [u8]) -> Result<()> {
        if into.len() as u64 != self.body_length() {
            let what = format!(
                "{} bytes were announced, and there is room for {}",
                self.body_length(),
                into.len()
            );
            return Err(self.bad(&what));
        }
        let mut room = into;
        while let Some(piece) = self.next()? {
            let Some((place, rest)) = room.split_at_mut_checked(piece.len()) else {
                return Err(self.bad("the body is longer than was announced"));
            };
            place.copy_from_slice(&piece);
            room = rest;
        }
        match room.len() {
            0 => Ok(()),
            n => Err(self.bad(&format!("the body ended {n} bytes too early"))),
        }
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        match block_until(self.deadline, self.answer.body.message()) {
            Some(Ok(piece)) => Ok(piece),
            Some(Err(status)) => Err(self.agent.peers().error(self.worker, &self.method, &status)),
            None => Err(self.agent.peers().timed_out(self.worker, &self.method, self.patience)),
        }
    }

    fn bad(&self, what: &str) -> Error {
        let (worker, method) = (self.agent.peers().name(self.worker), self.method.clone());
        Error::BadAnswer { worker, method, what: what.into() }
    }
}
