//! The calls of one round: every rank sends each peer its piece and receives the peers' pieces.

use std::ptr;

use super::{pieces::Pieces, plan::Post, transfer::Trouble};
use crate::{call::Counts, transport::Buffers};

/// Memory is copied in blocks of this size: a single copy of many megabytes goes around the cache,
/// which makes an all_gather of 64 MiB some 3 % slower.
const COPY_BYTES: usize = 128 << 10;

/// One such call.
pub(super) struct Exchange {
    send: *const u8,
    sends: Side,
    recv: *mut u8,
    receives: Side,
    step: Step,
}

enum Step {
    Post,
    /// The messages are on their way; this rank's own piece is still to be copied.
    Copy {
        from: usize,
        to: usize,
        bytes: usize,
    },
    Over,
}

// SAFETY: As `Buffers`: the pointers are used by one thread at a time, whoever progresses the call.
unsafe impl Send for Exchange {}

/// What of a buffer goes to, or comes from, which rank.
enum Side {
    /// This rank takes no part.
    Nothing,
    /// All of it, this many bytes, to or from everybody.
    Whole(usize),
    /// All of it to or from one group rank.
    WholeOf(usize, usize),
    /// A piece for each rank.
    Each(Pieces),
}

impl Exchange {
    pub(super) fn all_gather(counts: &Counts<'_>, element: usize, buffers: &Buffers) -> Exchange {
        let sends = Side::Whole(buffers.send_bytes);
        Exchange::new(buffers, sends, Side::Each(Pieces::new(counts, element)))
    }

    pub(super) fn all_to_all(counts: &Counts<'_>, element: usize, buffers: &Buffers) -> Exchange {
        let receives = Pieces::new(counts, element);
        let sends = match counts {
            Counts::Pairs { send, .. } => Pieces::uneven(send, element),
            _ => receives.clone(),
        };
        Exchange::new(buffers, Side::Each(sends), Side::Each(receives))
    }

    pub(super) fn gather(
        counts: &Counts<'_>,
        element: usize,
        buffers: &Buffers,
        rank: usize,
        root: usize,
    ) -> Exchange {
        let receives =
            if rank == root { Side::Each(Pieces::new(counts, element)) } else { Side::Nothing };
        Exchange::new(buffers, Side::WholeOf(root, buffers.send_bytes), receives)
    }

    pub(super) fn scatter(
        counts: &Counts<'_>,
        element: usize,
        buffers: &Buffers,
        rank: usize,
        root: usize,
    ) -> Exchange {
        let sends =
            if rank == root { Side::Each(Pieces::new(counts, element)) } else { Side::Nothing };
        Exchange::new(buffers, sends, Side::WholeOf(root, buffers.recv_bytes))
    }

    fn new(buffers: &Buffers, sends: Side, receives: Side) -> Exchange {
        Exchange { send: buffers.send, sends, recv: buffers.recv, receives, step: Step::Post }
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        if !matches!(self.step, Step::Post) {
            return Ok(false);
        }
        // SAFETY: Handed on.
        unsafe { self.post(post) }?;
        Ok(true)
    }

    /// Copies this rank's own piece. Not done before the first look for messages: where they are
    /// fetched by the network they travel meanwhile.
    ///
    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn meanwhile(&mut self) {
        if let Step::Copy { from, to, bytes } = self.step {
            for done in (0..bytes).step_by(COPY_BYTES) {
                let now = COPY_BYTES.min(bytes - done);
                // SAFETY: Both pieces lie within their buffers, have `bytes` bytes and do not overlap.
                unsafe {
                    let (from, to) = (self.send.add(from + done), self.recv.add(to + done));
                    ptr::copy_nonoverlapping(from, to, now);
                }
            }
            self.step = Step::Over;
        }
    }

    unsafe fn post(&mut self, post: &mut Post<'_>) -> Result<(), Trouble> {
        let (rank, size) = (post.group.rank, post.group.size());
        // Everybody begins with the next rank, so that not all send to rank 0 first.
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            if let Some((offset, bytes)) = self.receives.piece(from) {
                // SAFETY: The piece lies within the receive buffer.
                unsafe { post.expect(from, self.recv.add(offset), bytes) };
            }
            let to = (rank + distance) % size;
            if let Some((offset, bytes)) = self.sends.piece(to) {
                // SAFETY: The piece lies within the send buffer.
                unsafe { post.send(to, self.send.add(offset), bytes) }?;
            }
        }
        let (from, got) = self.sends.piece(rank).unwrap_or_default();
        let (to, expected) = self.receives.piece(rank).unwrap_or_default();
        if got != expected {
            // Only the counts of all_to_all_v can disagree with themselves.
            return Err(Trouble::WrongLength { from: post.group.members[rank], got, expected });
        }
        self.step = Step::Copy { from, to, bytes: got };
        Ok(())
    }
}

impl Side {
    /// Offset and length of what goes to or comes from a group rank; empty pieces are not sent.
    fn piece(&self, rank: usize) -> Option<(usize, usize)> {
        let piece = match self {
            Side::Nothing => return None,
            Side::Whole(bytes) => (0, *bytes),
            Side::WholeOf(only, bytes) => (0, if rank == *only { *bytes } else { 0 }),
            Side::Each(pieces) => pieces.get(rank),
        };
        (piece.1 > 0).then_some(piece)
    }
}
