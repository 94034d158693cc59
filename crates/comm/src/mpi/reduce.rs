//! Reductions in the canonical order.
//!
//! Every rank collects the operands of its slice from all others and reduces them itself, in group
//! order, with the kernels that the ranks on threads use: the same bits in every world. MPI's own
//! reductions promise no order; Open MPI changes it with the length of the vector.
//!
//! Long slices are reduced in *segments*, so that the operands of the others need a bounded amount
//! of memory. It is kept for the next call: fresh memory costs more than the transfer.

use super::{
    pieces::Pieces,
    plan::{Post, Reduction},
    scratch::Scratch,
    transfer::Trouble,
};
use crate::{call::Counts, reduce::reduce_into, transport::Buffers};

/// Operands of the others that are held at a time, in bytes.
const SCRATCH_BYTES: usize = 2 << 20;

/// Vectors are exchanged whole, and reduced by everybody, while that many bytes or fewer arrive: one
/// round instead of two.
const SHORT_BYTES: usize = 32 << 10;

/// The result is computed in blocks of this size where it overwrites an operand.
const BLOCK_BYTES: usize = 8 << 10;

/// `reduce_scatter` and `reduce_scatter_v`.
pub(super) struct ReduceScatter {
    reduction: Reduction,
    send: *const u8,
    recv: *mut u8,
    slices: Pieces,
    segments: Segments,
}

/// `all_reduce`.
pub(super) struct AllReduce {
    reduction: Reduction,
    buffer: *mut u8,
    bytes: usize,
    slices: Pieces,
    segments: Segments,
    step: Step,
}

// SAFETY: As `Buffers`: the pointers are used by one thread at a time, whoever progresses the call.
unsafe impl Send for ReduceScatter {}
// SAFETY: As above.
unsafe impl Send for AllReduce {}

enum Step {
    /// Whole vectors are exchanged, then reduced.
    Short,
    /// The operands of the slices are exchanged segment by segment, and reduced.
    Reduce,
    /// The slices of the result are on their way.
    Gather,
}

impl ReduceScatter {
    pub(super) fn new(
        reduction: Reduction,
        counts: &Counts<'_>,
        buffers: &Buffers,
        size: usize,
    ) -> ReduceScatter {
        let slices = Pieces::new(counts, reduction.dtype.size());
        let segments = Segments::new(slices.longest(size), size);
        ReduceScatter { reduction, send: buffers.send, recv: buffers.recv, slices, segments }
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        if let Some((offset, bytes)) = self.segments.last(&self.slices, post.group.rank) {
            let own = self.slices.get(post.group.rank).0 + offset;
            // SAFETY: The operands are complete: this rank's own in the send buffer, the others'
            // in the scratch memory. The result goes to the receive buffer, which overlaps neither.
            unsafe {
                let operands = self.segments.operands(post, self.send.add(own));
                let elements = bytes / self.reduction.dtype.size();
                let out = self.recv.add(offset);
                reduce_into(self.reduction.dtype, self.reduction.op, &operands, out, elements);
            }
        }
        // SAFETY: Handed on.
        let posted = unsafe { self.segments.post(post, self.send, &self.slices) }?;
        if !posted {
            self.segments.end(post);
        }
        Ok(posted)
    }
}

impl AllReduce {
    pub(super) fn new(reduction: Reduction, buffers: &Buffers, size: usize) -> AllReduce {
        let (element, bytes) = (reduction.dtype.size(), buffers.recv_bytes);
        let (step, slices) = if bytes.saturating_mul(size - 1) <= SHORT_BYTES {
            (Step::Short, Pieces::Even(bytes))
        } else {
            (Step::Reduce, Pieces::slices(bytes / element, element, size))
        };
        let segments = Segments::new(slices.longest(size), size);
        AllReduce { reduction, buffer: buffers.recv, bytes, slices, segments, step }
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        let rank = post.group.rank;
        // SAFETY: In each step below, all transfers of the steps before are complete, so the
        // operands are there, and what has been sent may be overwritten.
        unsafe {
            match self.step {
                Step::Short => {
                    if self.segments.next == 0 {
                        return self.exchange(post);
                    }
                    self.reduce(post, 0, self.bytes);
                    self.segments.end(post);
                    Ok(false)
                }
                Step::Reduce => {
                    if let Some((offset, bytes)) = self.segments.last(&self.slices, rank) {
                        self.reduce(post, self.slices.get(rank).0 + offset, bytes);
                    }
                    if self.segments.post(post, self.buffer, &self.slices)? {
                        return Ok(true);
                    }
                    self.segments.end(post);
                    self.step = Step::Gather;
                    self.gather(post)?;
                    Ok(true)
                }
                Step::Gather => Ok(false),
            }
        }
    }

    /// Everybody's vector to everybody.
    unsafe fn exchange(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        if self.bytes == 0 {
            return Ok(false);
        }
        self.segments.begin(post);
        let (rank, size) = (post.group.rank, post.group.size());
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            // SAFETY: A place in the scratch memory of its own, and the whole vector, which nobody
            // writes to before the round is complete.
            unsafe {
                let place = self.segments.place(rank, from);
                post.expect(from, place, self.bytes);
                post.send((rank + distance) % size, self.buffer, self.bytes)?;
            }
        }
        self.segments.next = 1;
        Ok(true)
    }

    /// Reduces the operands of the last round into the buffer, block by block, because the result
    /// takes the place of this rank's own operand.
    unsafe fn reduce(&mut self, post: &Post<'_>, offset: usize, bytes: usize) {
        let Reduction { dtype, op } = self.reduction;
        // SAFETY: Within the buffer.
        let own = unsafe { self.buffer.add(offset) };
        let mut operands = self.segments.operands(post, own);
        let mut block = [0_u64; BLOCK_BYTES / 8];
        let mut done = 0;
        while done < bytes {
            let now = BLOCK_BYTES.min(bytes - done);
            // SAFETY: All operands have `bytes` bytes, of which `done` are done; the block is
            // aligned for every dtype and overlaps none of them.
            unsafe {
                let out = block.as_mut_ptr().cast::<u8>();
                reduce_into(dtype, op, &operands, out, now / dtype.size());
                std::ptr::copy_nonoverlapping(out, own.add(done), now);
                for operand in &mut operands {
                    *operand = operand.add(now);
                }
            }
            done += now;
        }
    }

    /// Everybody's slice of the result to everybody.
    unsafe fn gather(&mut self, post: &mut Post<'_>) -> Result<(), Trouble> {
        let (rank, size) = (post.group.rank, post.group.size());
        let (own, own_bytes) = self.slices.get(rank);
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            let (offset, bytes) = self.slices.get(from);
            // SAFETY: Slices do not overlap: the own one is only read, the others only written.
            unsafe {
                if bytes > 0 {
                    post.expect(from, self.buffer.add(offset), bytes);
                }
                if own_bytes > 0 {
                    post.send((rank + distance) % size, self.buffer.add(own), own_bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// The exchange of operands, one segment of every slice at a time.
struct Segments {
    /// Bytes of a segment; the last ones of a slice may be shorter or empty.
    bytes: usize,
    /// How many segments the longest slice has.
    count: usize,
    /// The next one to be exchanged.
    next: usize,
    /// A place for a segment of each other rank.
    scratch: Option<Scratch>,
}

impl Segments {
    fn new(longest_slice: usize, size: usize) -> Segments {
        let most = (SCRATCH_BYTES / (size - 1)).max(256 << 10) & !63;
        let bytes = longest_slice.min(most);
        let count = if bytes == 0 { 0 } else { longest_slice.div_ceil(bytes) };
        Segments { bytes, count, next: 0, scratch: None }
    }

    /// Takes the scratch memory.
    fn begin(&mut self, post: &mut Post<'_>) {
        if self.scratch.is_none() {
            let bytes = self.bytes.next_multiple_of(64) * (post.group.size() - 1);
            self.scratch = Some(post.engine.scratch.take(bytes));
        }
    }

    /// Gives it back.
    fn end(&mut self, post: &mut Post<'_>) {
        if let Some(scratch) = self.scratch.take() {
            post.engine.scratch.give_back(scratch);
        }
    }

    /// Posts the exchange of the next segment; false if there is none.
    ///
    /// # Safety
    /// `send` holds the slices, and nobody writes to what is exchanged before the round is complete.
    unsafe fn post(
        &mut self,
        post: &mut Post<'_>,
        send: *const u8,
        slices: &Pieces,
    ) -> Result<bool, Trouble> {
        if self.next == self.count {
            return Ok(false);
        }
        self.begin(post);
        let (rank, size) = (post.group.rank, post.group.size());
        let (_, expected) = self.range(slices, rank, self.next);
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            let to = (rank + distance) % size;
            // SAFETY: A place of its own for each sender, and a part of the send buffer.
            unsafe {
                if expected > 0 {
                    post.expect(from, self.place(rank, from), expected);
                }
                let (offset, bytes) = self.range(slices, to, self.next);
                if bytes > 0 {
                    post.send(to, send.add(slices.get(to).0 + offset), bytes)?;
                }
            }
        }
        self.next += 1;
        Ok(true)
    }

    /// The part of this rank's slice that the last round was about: offset in the slice, and length.
    fn last(&self, slices: &Pieces, rank: usize) -> Option<(usize, usize)> {
        let range = self.range(slices, rank, self.next.checked_sub(1)?);
        (range.1 > 0).then_some(range)
    }

    fn range(&self, slices: &Pieces, rank: usize, segment: usize) -> (usize, usize) {
        let length = slices.get(rank).1;
        let start = (segment * self.bytes).min(length);
        (start, (start + self.bytes).min(length) - start)
    }

    /// Where the operand of another rank is put.
    fn place(&mut self, rank: usize, from: usize) -> *mut u8 {
        let index = if from < rank { from } else { from - 1 };
        match &mut self.scratch {
            // `begin` has made it that long, so that the address is within it.
            Some(scratch) => {
                scratch.as_mut_ptr().wrapping_add(index * self.bytes.next_multiple_of(64))
            }
            None => std::ptr::dangling_mut(),
        }
    }

    /// The operands of the last round in group order, this rank's own among them.
    fn operands(&mut self, post: &Post<'_>, own: *const u8) -> Vec<*const u8> {
        let (rank, size) = (post.group.rank, post.group.size());
        let operand = |from| if from == rank { own } else { self.place(rank, from).cast_const() };
        (0..size).map(operand).collect()
    }
}
