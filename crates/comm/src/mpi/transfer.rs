//! One round of transfers of one call: sends and receives that run at the same time.
//!
//! # Never a truncated message
//!
//! A receive is not posted in advance. Its message is first taken out of MPI's queue
//! (`MPI_Improbe`), its length is compared with the expected one, and only then is it received
//! (`MPI_Imrecv`). Three reasons:
//!
//! 1. *Safety.* MPI promises an error when a message is longer than the posted buffer, but Open MPI
//!    4.1 writes past the end when it fetches a long message directly from the sender's memory.
//!    With the checks off, ranks that disagree about a length must not destroy memory.
//! 2. *Giving up.* A receive whose message never comes leaves nothing behind in MPI, so a buffer
//!    can be given back at once when a call fails.
//! 3. *Nothing is lost.* A long message is only announced in advance, its data moves when it is
//!    received; a short one is copied once more. Measured with two ranks: no difference at 64 MiB,
//!    0.1 us at 8 bytes.

use std::os::raw::c_int;

use super::{
    engine::Engine,
    result::{Comm, Request, Source},
    stream::{Given, Key},
};
use crate::CommError;

/// Which messages belong to a round.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub(super) comm: Comm,
    /// The stream of what this rank sends, and of what it receives: one and the same for a
    /// collective.
    pub(super) sends: Key,
    pub(super) receives: Key,
    /// The position of the call in them.
    pub(super) position: u64,
}

/// The transfers that are not complete.
#[derive(Default)]
pub(super) struct Transfers {
    expected: Vec<Expected>,
    /// With the world ranks that they come from.
    arriving: Vec<(Request, usize)>,
    sending: Vec<Request>,
}

/// A message, or the rest of one in several pieces, that has not come.
struct Expected {
    /// A world rank.
    from: usize,
    /// Not known before the sender has announced the number of the stream.
    tag: Option<c_int>,
    buffer: *mut u8,
    bytes: usize,
}

// SAFETY: The pointer is only used by whoever progresses the call, under the contract by which the
// caller handed over the buffers; that may be any thread.
unsafe impl Send for Expected {}

/// Why a transfer failed.
pub(super) enum Trouble {
    Error(CommError),
    /// A message was not as long as it should be.
    WrongLength {
        from: usize,
        got: usize,
        expected: usize,
    },
}

impl From<CommError> for Trouble {
    fn from(error: CommError) -> Trouble {
        Trouble::Error(error)
    }
}

impl Transfers {
    /// Begins to send to a world rank. Long messages go in pieces.
    ///
    /// # Safety
    /// The bytes are valid and unchanged until the round is complete, or until no process will
    /// match the message any more (see [`mod@super`], "Giving up").
    pub(super) unsafe fn send(
        &mut self,
        engine: &mut Engine,
        lane: Lane,
        to: usize,
        mut bytes: *const u8,
        mut count: usize,
        synchronous: bool,
    ) -> Result<(), CommError> {
        let number = match engine.streams.give(lane.sends, to) {
            Given::Known(number) => number,
            Given::New(number) => {
                engine.announce_stream(to, lane.sends, number)?;
                number
            }
            Given::TooMany => {
                let why = format!(
                    "this rank and rank {to} use more groups and message tags than MPI has tags for"
                );
                return Err(CommError::CannotRun(why.into()));
            }
        };
        let tag = engine.streams.tag(number, lane.position);
        loop {
            let piece = count.min(engine.max_message_bytes);
            // SAFETY: The caller's promise.
            let request = unsafe { lane.comm.send(bytes, piece, to, tag, synchronous) }?;
            self.sending.push(request);
            count -= piece;
            if count == 0 {
                return Ok(());
            }
            // SAFETY: Still within the caller's bytes.
            bytes = unsafe { bytes.add(piece) };
        }
    }

    /// Expects a message of this length from a world rank. At most one per rank and round.
    ///
    /// # Safety
    /// The buffer has room for it and is not accessed by anybody else until the round is complete,
    /// or until [`give_up`](Transfers::give_up) has returned true.
    pub(super) unsafe fn expect(&mut self, from: usize, buffer: *mut u8, bytes: usize) {
        self.expected.push(Expected { from, tag: None, buffer, bytes });
    }

    /// Adds something of MPI's that reads and writes memory of the call's own.
    pub(super) fn add(&mut self, request: Request) {
        self.sending.push(request);
    }

    /// Brings the round forward; true when it is complete.
    pub(super) fn progress(&mut self, engine: &mut Engine, lane: Lane) -> Result<bool, Trouble> {
        let mut i = 0;
        while let Some(expected) = self.expected.get_mut(i) {
            match expected.take(engine, lane)? {
                None => i += 1,
                Some(request) => {
                    self.arriving.push((request, expected.from));
                    if expected.bytes == 0 {
                        self.expected.swap_remove(i);
                    }
                }
            }
        }
        // Testing one request progresses all, so the first that is not complete ends it.
        while let Some((request, _)) = self.arriving.last_mut() {
            if !request.test()? {
                return Ok(false);
            }
            self.arriving.pop();
        }
        while let Some(request) = self.sending.last_mut() {
            if !request.test()? {
                return Ok(false);
            }
            self.sending.pop();
        }
        Ok(self.expected.is_empty())
    }

    /// Whether a message of this world rank has not come, or not completely.
    pub(super) fn awaits(&self, rank: usize) -> bool {
        self.expected.iter().any(|expected| expected.from == rank)
            || self.arriving.iter().any(|(_, from)| *from == rank)
    }

    /// Whether MPI still holds any of the buffers, to read or to write.
    pub(super) fn is_busy(&self) -> bool {
        !self.arriving.is_empty() || !self.sending.is_empty()
    }

    /// Brings to an end what is being written; true when nothing is arriving any more. What comes
    /// from a process that `is_gone` is not: nobody writes it. The round is not progressed afterwards,
    /// so what is still expected does not come.
    pub(super) fn give_up(&mut self, is_gone: impl Fn(usize) -> bool) -> bool {
        // A failing transfer has ended as well.
        self.arriving.retain_mut(|(request, _)| matches!(request.test(), Ok(false)));
        self.is_quiet(is_gone)
    }

    /// Whether nothing is arriving, but what comes from a process that `is_gone`.
    pub(super) fn is_quiet(&self, is_gone: impl Fn(usize) -> bool) -> bool {
        self.arriving.iter().all(|(_, from)| is_gone(*from))
    }
}

impl Expected {
    /// Begins to receive the next piece, if it has come.
    fn take(&mut self, engine: &mut Engine, lane: Lane) -> Result<Option<Request>, Trouble> {
        let Some(tag) = self.tag.or_else(|| engine.incoming_tag(lane, self.from)) else {
            return Ok(None);
        };
        self.tag = Some(tag);
        let Some(message) = lane.comm.probe(Source::Rank(self.from, tag))? else {
            return Ok(None);
        };
        let piece = self.bytes.min(engine.max_message_bytes);
        if message.bytes != piece {
            let (from, got, expected) = (self.from, message.bytes, piece);
            return Err(Trouble::WrongLength { from, got, expected });
        }
        // SAFETY: The message is exactly as long as the piece of the buffer that it is for, and the
        // buffer is the caller's promise of `expect`.
        let request = unsafe { message.receive(self.buffer) }?;
        self.bytes -= piece;
        // SAFETY: Within the buffer, or one past its end.
        self.buffer = unsafe { self.buffer.add(piece) };
        Ok(Some(request))
    }
}
