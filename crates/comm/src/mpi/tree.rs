//! The calls that need more than one round and no arithmetic: barrier and broadcast.

use std::ptr;

use super::{plan::Post, transfer::Trouble};
use crate::transport::Buffers;

/// Dissemination: in round k every rank tells the one 2^k after it that it, and all it has heard
/// of, have arrived.
pub(super) struct Barrier {
    distance: usize,
}

impl Barrier {
    pub(super) fn new() -> Barrier {
        Barrier { distance: 1 }
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        let (rank, size) = (post.group.rank, post.group.size());
        let distance = self.distance;
        if distance >= size {
            return Ok(false);
        }
        self.distance *= 2;
        // SAFETY: Messages without bytes.
        unsafe {
            post.expect((rank + size - distance) % size, ptr::dangling_mut(), 0);
            post.send((rank + distance) % size, ptr::dangling(), 0)?;
        }
        Ok(true)
    }
}

/// A broadcast with more bytes than this goes by scatter and all-gather, so that the root sends
/// everything twice in all instead of once to each child of the tree.
const TREE_BYTES: usize = 64 * 1024;

/// Ranks are numbered from the root on here: *place* 0 is the root.
pub(super) struct Broadcast {
    buffer: *mut u8,
    bytes: usize,
    place: usize,
    size: usize,
    root: usize,
    step: Step,
}

// SAFETY: As `Buffers`: the pointer is used by one thread at a time, whoever progresses the call.
unsafe impl Send for Broadcast {}

enum Step {
    /// A tree: receive from the parent ...
    Parent,
    /// ... then send to the children.
    Children,
    /// Two rounds: the root's pieces, one to each rank ...
    Scatter,
    /// ... then everybody's piece to everybody but the root.
    Gather,
    Over,
}

impl Broadcast {
    pub(super) fn new(buffers: &Buffers, rank: usize, size: usize, root: usize) -> Broadcast {
        let bytes = buffers.recv_bytes;
        let step = match bytes {
            0 => Step::Over,
            _ if bytes <= TREE_BYTES || size <= 2 => Step::Parent,
            _ => Step::Scatter,
        };
        let place = (rank + size - root) % size;
        Broadcast { buffer: buffers.recv, bytes, place, size, root, step }
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        // SAFETY: The whole buffer, or pieces of it. Each piece is received before it is sent.
        unsafe {
            match self.step {
                Step::Parent => {
                    self.step = Step::Children;
                    if self.place == 0 {
                        return self.advance(post);
                    }
                    // The parent is the place without the lowest bit.
                    let parent = self.place & (self.place - 1);
                    post.expect(self.rank(parent), self.buffer, self.bytes);
                }
                Step::Children => {
                    self.step = Step::Over;
                    let mut bit = self.lowest_bit();
                    // The child with the largest tree below it first.
                    while bit > 1 {
                        bit /= 2;
                        let child = self.place + bit;
                        if child < self.size {
                            post.send(self.rank(child), self.buffer, self.bytes)?;
                        }
                    }
                }
                Step::Scatter => {
                    self.step = Step::Gather;
                    if self.place > 0 {
                        self.expect_piece(post, self.root, self.place);
                    } else {
                        for place in 1..self.size {
                            self.send_piece(post, self.rank(place), place)?;
                        }
                    }
                }
                Step::Gather => {
                    self.step = Step::Over;
                    for distance in 1..self.size {
                        let to = (self.place + distance) % self.size;
                        if to != 0 {
                            self.send_piece(post, self.rank(to), self.place)?;
                        }
                        let from = (self.place + self.size - distance) % self.size;
                        if self.place > 0 {
                            self.expect_piece(post, self.rank(from), from);
                        }
                    }
                }
                Step::Over => return Ok(false),
            }
        }
        Ok(true)
    }

    fn rank(&self, place: usize) -> usize {
        (place + self.root) % self.size
    }

    /// The lowest bit of the place; for the root the first power of two that no place reaches.
    fn lowest_bit(&self) -> usize {
        match self.place {
            0 => self.size.next_power_of_two(),
            place => place & place.wrapping_neg(),
        }
    }

    fn piece(&self, place: usize) -> (usize, usize) {
        let each = self.bytes.div_ceil(self.size).next_multiple_of(64);
        let start = (place * each).min(self.bytes);
        (start, (start + each).min(self.bytes) - start)
    }

    /// # Safety
    /// The piece is complete, and stays so.
    unsafe fn send_piece(
        &self,
        post: &mut Post<'_>,
        to: usize,
        place: usize,
    ) -> Result<(), Trouble> {
        let (offset, bytes) = self.piece(place);
        if bytes > 0 {
            // SAFETY: Within the buffer.
            unsafe { post.send(to, self.buffer.add(offset), bytes) }?;
        }
        Ok(())
    }

    /// # Safety
    /// Nobody else accesses the piece until it has come.
    unsafe fn expect_piece(&self, post: &mut Post<'_>, from: usize, place: usize) {
        let (offset, bytes) = self.piece(place);
        if bytes > 0 {
            // SAFETY: Within the buffer.
            unsafe { post.expect(from, self.buffer.add(offset), bytes) };
        }
    }
}
