//! What is done with the data when all have arrived: one share of work per rank.
//!
//! Every kind of call says why its shares do not disturb each other (case 5 of [`round`]): which
//! bytes share `r` writes, and that no other share reads or writes them.
//!
//! [`round`]: super::round

use std::ptr;

use dtensor_dtype::ReduceOp;

use crate::{
    call::{Call, CallKind, Counts},
    reduce::reduce_range,
};

use super::{
    copy::copy,
    round::{Entry, INLINE_BYTES, OwnedCounts, Round},
};

/// Bytes of a vector that an all-reduce works on at once: stays in the first-level cache between
/// being reduced and being written to every rank.
const REDUCE_BYTES: usize = 8192;

/// Slices of an all-reduce begin at multiples of this, so that two ranks do not write to one line.
const LINE_BYTES: usize = 64;

/// The bytes that a rank publishes in its entry rather than by address, if the call is small: `None`
/// if it is not. All ranks that make the same call decide alike.
pub(super) fn inline_bytes(call: &Call<'_>, group_size: usize) -> Option<usize> {
    let Counts::Even(n) = call.counts else { return None };
    let bytes = inline_elements(call.kind, n, group_size)? * call.dtype.size();
    (bytes <= INLINE_BYTES).then_some(bytes)
}

/// How many elements each rank would publish in its entry.
fn inline_elements(kind: CallKind, n: usize, group_size: usize) -> Option<usize> {
    match kind {
        CallKind::Barrier => Some(0),
        CallKind::Broadcast | CallKind::AllGather | CallKind::AllReduce => Some(n),
        CallKind::ReduceScatter | CallKind::AllToAll => Some(n * group_size),
        // A share of a gather writes to the root's buffer, which case 3 forbids for inline rounds;
        // the others have no shares or nothing to gain.
        CallKind::Scatter | CallKind::Gather | CallKind::Send | CallKind::Recv => None,
    }
}

/// Does the share of rank `r`.
///
/// # Safety
/// The round is complete, and the share was claimed by the caller.
pub(super) unsafe fn do_share(round: &Round, r: usize) {
    // SAFETY: The round is complete and this share is not done: the entries stay as they are.
    let entry = |rank: usize| unsafe { round.entry(rank) };
    let mine = entry(r);
    let size = round.size();
    let width = mine.call.dtype.size();
    let inline = is_inline(mine, size);
    // Where rank p's data is read from: its entry, or its send buffer. (In-place calls that are not
    // inline read the receive buffer, below.)
    let source = |p: usize| {
        let entry = entry(p);
        if inline { entry.payload.0.as_ptr() } else { entry.buffers.send }
    };
    let recv = mine.buffers.recv;
    // SAFETY, for all copies and reductions below: the fingerprints agree, so the lengths are those of
    // the table at `Buffers` with the same counts on every rank (for `Pairs`: what p sends to r is
    // what r expects from p), and every range lies within its buffer. Ranges that are read are not
    // written by any share, and those that are written are written by this share only, for the reason
    // given at each kind.
    match mine.call.kind {
        CallKind::Barrier | CallKind::Send | CallKind::Recv => {}
        // Writes the receive buffer of r. Reads that of the root, whose own share writes nothing.
        CallKind::Broadcast => {
            let root = mine.call.root.unwrap_or(0);
            if r != root {
                let from = if inline { source(root) } else { entry(root).buffers.recv };
                // SAFETY: See above.
                unsafe { copy(from, 0, recv, 0, mine.buffers.recv_bytes) };
            }
        }
        // Writes the receive buffer of r; send buffers are never written.
        CallKind::Scatter => {
            let root = mine.call.root.unwrap_or(0);
            let (start, n) = piece(&mine.call.counts, r);
            // SAFETY: See above.
            unsafe { copy(source(root), start * width, recv, 0, n * width) };
        }
        // Writes piece r of the root's receive buffer; send buffers are never written.
        CallKind::Gather => {
            let root = mine.call.root.unwrap_or(0);
            let (start, n) = piece(&mine.call.counts, r);
            // SAFETY: See above.
            unsafe { copy(source(r), 0, entry(root).buffers.recv, start * width, n * width) };
        }
        // Writes the receive buffer of r; send buffers and payloads are never written.
        CallKind::AllGather => {
            let mut at = 0;
            for p in 0..size {
                let bytes = match &mine.call.counts {
                    OwnedCounts::Each(counts) => counts[p] * width,
                    OwnedCounts::Even(n) => n * width,
                    OwnedCounts::Pairs { .. } => 0,
                };
                // SAFETY: See above.
                unsafe { copy(source(p), 0, recv, at, bytes) };
                at += bytes;
            }
        }
        // Writes the receive buffer of r; send buffers and payloads are never written.
        CallKind::AllToAll => {
            let mut at = 0;
            for p in 0..size {
                let (start, n) = match (&mine.call.counts, &entry(p).call.counts) {
                    (OwnedCounts::Pairs { recv, .. }, OwnedCounts::Pairs { send_offsets, .. }) => {
                        (send_offsets[r], recv[p])
                    }
                    (counts, _) => piece(counts, r),
                };
                // SAFETY: See above.
                unsafe { copy(source(p), start * width, recv, at, n * width) };
                at += n * width;
            }
        }
        // Writes the receive buffer of r; send buffers and payloads are never written.
        CallKind::ReduceScatter => {
            let (start, n) = piece(&mine.call.counts, r);
            let op = mine.call.op.unwrap_or(ReduceOp::Sum);
            with_pointers(size, source, |sources| {
                // SAFETY: See above; the receive buffer overlaps no send buffer.
                unsafe { reduce_range(mine.call.dtype, op, sources, start, recv, n) };
            });
        }
        // Inline: writes the receive buffer of r, and reads payloads only.
        CallKind::AllReduce if inline => {
            let (_, n) = piece(&mine.call.counts, 0);
            let op = mine.call.op.unwrap_or(ReduceOp::Sum);
            with_pointers(size, source, |sources| {
                // SAFETY: See above.
                unsafe { reduce_range(mine.call.dtype, op, sources, 0, recv, n) };
            });
        }
        // Reads and writes slice r of everybody's buffer, which no other share touches.
        CallKind::AllReduce => {
            let (_, n) = piece(&mine.call.counts, 0);
            let op = mine.call.op.unwrap_or(ReduceOp::Sum);
            let (start, end) = slice_of(n, size, r, LINE_BYTES / width);
            let mut block = [0_u64; REDUCE_BYTES / 8];
            let block = block.as_mut_ptr().cast::<u8>();
            with_pointers(
                size,
                |p| entry(p).buffers.recv.cast_const(),
                |sources| {
                    for at in (start..end).step_by(REDUCE_BYTES / width) {
                        let n = (end - at).min(REDUCE_BYTES / width);
                        // SAFETY: See above. The block has room for n elements, is aligned for every dtype,
                        // and is ours alone.
                        unsafe {
                            reduce_range(mine.call.dtype, op, sources, at, block, n);
                            for p in 0..size {
                                copy(block, 0, entry(p).buffers.recv, at * width, n * width);
                            }
                        }
                    }
                },
            );
        }
    }
}

/// Whether a published call carries its data in the entry; the same question as [`inline_bytes`].
fn is_inline(entry: &Entry, group_size: usize) -> bool {
    let &OwnedCounts::Even(n) = &entry.call.counts else { return false };
    let (kind, dtype) = (entry.call.kind, entry.call.dtype);
    inline_elements(kind, n, group_size).is_some_and(|n| n * dtype.size() <= INLINE_BYTES)
}

/// Where the piece of rank `r` begins in the whole vector, and its length.
fn piece(counts: &OwnedCounts, r: usize) -> (usize, usize) {
    match counts {
        OwnedCounts::Even(n) => (r * n, *n),
        OwnedCounts::Each(counts) => (counts[..r].iter().sum(), counts[r]),
        OwnedCounts::Pairs { send, send_offsets, .. } => (send_offsets[r], send[r]),
    }
}

/// Slice `r` of `size` slices of a vector of `n` elements, cut at multiples of `grain`.
fn slice_of(n: usize, size: usize, r: usize, grain: usize) -> (usize, usize) {
    let length = n.div_ceil(size).next_multiple_of(grain);
    (n.min(r * length), n.min((r + 1) * length))
}

/// Calls `with` with the pointers of all ranks, on the stack if they are few.
fn with_pointers(
    size: usize,
    pointer: impl Fn(usize) -> *const u8,
    with: impl FnOnce(&[*const u8]),
) {
    const FEW: usize = 16;
    if size <= FEW {
        let mut pointers = [ptr::null(); FEW];
        for (rank, place) in pointers[..size].iter_mut().enumerate() {
            *place = pointer(rank);
        }
        with(&pointers[..size]);
    } else {
        with(&(0..size).map(pointer).collect::<Vec<_>>());
    }
}
