//! One collective call of one group: who has arrived, the verdict, and the shares of the work.
//!
//! # The protocol
//!
//! A round serves the calls `s`, `s + RING`, `s + 2 RING`, ... one after the other. Its state word
//! is `(sequence, phase)`:
//!
//! ```text
//! Gathering(s) --all arrived and agree--> Complete(s) --all shares done--> Gathering(s + RING)
//!      \--mismatch, deadline, a rank gone--> Failing(s) --error is known--> Failed(s), for ever
//! ```
//!
//! A rank *arrives*: it fills its entry (call, fingerprint, addresses), publishes it, and counts
//! itself. The last one compares the fingerprints and makes the transition to `Complete`. The work
//! is cut into one *share* per rank (see [`work`](super::work)). Any rank may do any share after
//! claiming it; each does its own first. So a rank that waits finishes the call for those that
//! compute, sleep, or have leaked their handle; and ranks that wait for several calls in different
//! orders do not wait for each other.
//!
//! # Why it is sound
//!
//! What must hold: nobody accesses the buffers of a rank after its call has returned, or before it
//! has arrived; nobody accesses the same bytes at the same time, unless all only read.
//!
//! 1. *Buffers are accessed in shares only, and shares are claimed in `Complete(s)` only.* Every rank
//!    has arrived then: its entry was written before it counted itself, and the count is an
//!    acquire-release chain that ends with the transition.
//! 2. *A rank returns with an error only from `Failed(s)`* (or before it arrived). Leaving `Gathering`
//!    is one compare-and-swap: a round that failed never completes, so by 1 nobody has accessed or
//!    will access its buffers.
//! 3. *A rank returns without an error after `Complete(s)`* when all shares are done: the word has
//!    moved on to a later sequence. By 1 nobody accesses its buffers afterwards. Exception: in an
//!    *inline* round the data that peers read is in the entry, not in the buffers. There only share r
//!    accesses a buffer of rank r (it writes the receive buffer), and rank r returns when that share
//!    is done.
//! 4. *Entries are written by their owner in `Gathering(s)` before publication, and read by others
//!    after it.* They are reused after the word has moved on to `s + RING`, which needs all shares
//!    done; whoever reads entries is doing a share, is the last one to arrive (before `Complete`), or
//!    makes the table of a failed round, which is never reused.
//! 5. *Shares write disjoint bytes, and read none that another one writes*: argued at each kind of call
//!    in [`work`](super::work).
//!
//! After `Complete(s)` nothing can fail: what remains is copying memory. Therefore waits in that
//! phase have no deadline.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dtensor_dtype::{DType, ReduceOp};

use crate::{
    CommError,
    call::{Call, CallKind, Counts, Fingerprint, Tag},
    transport::Buffers,
};

use super::state::RING;

/// The largest payload that is carried in the entry.
pub(super) const INLINE_BYTES: usize = 64;

pub(super) struct Round {
    /// `(sequence << 2) | phase`.
    state: Padded<AtomicU64>,
    arrived: Padded<AtomicUsize>,
    /// Shares that are done.
    done: AtomicUsize,
    slots: Box<[Padded<Slot>]>,
    /// Set between `Failing` and `Failed`.
    failure: OnceLock<CommError>,
}

/// Where a round is, as seen by one who made call `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// An earlier call is not over.
    Earlier,
    /// Not all have arrived.
    Gathering,
    /// All have arrived and agree.
    Complete,
    /// It has failed; the error is being put together.
    Failing,
    /// It has failed.
    Failed,
    /// All work is done.
    Over,
}

/// One rank's place in a round.
struct Slot {
    /// `(sequence << 2) | step`; grows only.
    word: AtomicU64,
    entry: UnsafeCell<Entry>,
}

/// What a rank publishes.
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    pub(super) call: OwnedCall,
    pub(super) buffers: Buffers,
    /// The data of an inline round.
    pub(super) payload: Payload,
}

/// Aligned for every dtype.
#[repr(align(8))]
pub(super) struct Payload(pub(super) [u8; INLINE_BYTES]);

/// A [`Call`] that owns its counts: it must outlive a caller that has returned with an error, for
/// the tables of the others.
pub(super) struct OwnedCall {
    pub(super) kind: CallKind,
    pub(super) dtype: DType,
    pub(super) root: Option<usize>,
    pub(super) op: Option<ReduceOp>,
    tag: Tag,
    sequence: u64,
    pub(super) counts: OwnedCounts,
}

pub(super) enum OwnedCounts {
    Even(usize),
    Each(Box<[usize]>),
    Pairs {
        send: Box<[usize]>,
        recv: Box<[usize]>,
        /// Where the piece for each rank begins in the send buffer: the peers would otherwise add
        /// up the counts again for each of them.
        send_offsets: Box<[usize]>,
    },
}

/// On its own pair of cache lines (processors fetch two at a time).
#[repr(align(128))]
struct Padded<T>(T);

// Phases of the state word.
const GATHERING: u64 = 0;
const COMPLETE: u64 = 1;
const FAILING: u64 = 2;
const FAILED: u64 = 3;

// Steps of a slot's word.
const PUBLISHED: u64 = 1;
const CLAIMED: u64 = 2;
const DONE: u64 = 3;

// SAFETY: The entries are the only part that is not `Sync` by itself; case 4 of the module
// documentation is the reason why they are not written while somebody else reads them.
unsafe impl Sync for Slot {}
// SAFETY: An entry owns plain data; its pointers are accessed under the contract of `Buffers`.
unsafe impl Send for Slot {}

impl Round {
    pub(super) fn new(size: usize, sequence: u64) -> Round {
        Round {
            state: Padded(AtomicU64::new(word(sequence, GATHERING))),
            arrived: Padded(AtomicUsize::new(0)),
            done: AtomicUsize::new(0),
            slots: (0..size).map(|_| Padded(Slot::new())).collect(),
            failure: OnceLock::new(),
        }
    }

    pub(super) fn phase(&self, sequence: u64) -> Phase {
        let state = self.state.0.load(Ordering::Acquire);
        match (state >> 2).cmp(&sequence) {
            std::cmp::Ordering::Less => Phase::Earlier,
            std::cmp::Ordering::Greater => Phase::Over,
            std::cmp::Ordering::Equal => match state & 3 {
                GATHERING => Phase::Gathering,
                COMPLETE => Phase::Complete,
                FAILING => Phase::Failing,
                _ => Phase::Failed,
            },
        }
    }

    /// Publishes the entry of `rank` and counts it; true if it is the last one.
    ///
    /// # Safety
    /// The phase is, or has been seen by this rank to be, `Gathering(sequence)`, and this is the only
    /// arrival of `rank` in it. The buffers stay valid as described in cases 2 and 3.
    pub(super) unsafe fn arrive(&self, sequence: u64, rank: usize, entry: Entry) -> bool {
        let slot = &self.slots[rank].0;
        // SAFETY: Case 4: before publication nobody else accesses this entry, because the word of the
        // slot is still that of an earlier call, which is over.
        unsafe { *slot.entry.get() = entry };
        slot.word.store(word(sequence, PUBLISHED), Ordering::Release);
        self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.slots.len()
    }

    /// Whether all entries agree. For the last one to arrive, before the verdict.
    pub(super) fn agree(&self) -> bool {
        // SAFETY: Case 4: all have arrived, and the round is not complete yet.
        Fingerprint::agree(
            (0..self.slots.len()).map(|rank| unsafe { self.entry(rank) }.fingerprint),
        )
    }

    /// Makes the transition to `Complete`. False if the round has failed in the meantime.
    pub(super) fn complete(&self, sequence: u64) -> bool {
        self.leave_gathering(sequence, COMPLETE)
    }

    /// Makes the transition to `Failed` with the error that `error` makes, which may look at
    /// [`published`](Round::published). False, without calling it, if the round has completed or
    /// failed in the meantime.
    pub(super) fn fail(&self, sequence: u64, error: impl FnOnce() -> CommError) -> bool {
        if !self.leave_gathering(sequence, FAILING) {
            return false;
        }
        // Nobody else comes here: `Failing` is entered once in the life of a round.
        let _ = self.failure.set(error());
        self.state.0.store(word(sequence, FAILED), Ordering::Release);
        true
    }

    /// The error of a round in phase `Failed`.
    pub(super) fn failure(&self) -> Option<&CommError> {
        self.failure.get()
    }

    /// The call that `rank` has published, in a round that has left `Gathering(sequence)` for
    /// `Failing`.
    pub(super) fn published(&self, sequence: u64, rank: usize) -> Option<&OwnedCall> {
        self.has_published(sequence, rank).then(|| {
            // SAFETY: Case 4: published, and a round that fails is never used again.
            &unsafe { self.entry(rank) }.call
        })
    }

    pub(super) fn has_published(&self, sequence: u64, rank: usize) -> bool {
        self.slots[rank].0.word.load(Ordering::Acquire) >= word(sequence, PUBLISHED)
    }

    /// Claims the share of `rank` in `Complete(sequence)`; true for one caller only.
    pub(super) fn claim(&self, sequence: u64, rank: usize) -> bool {
        let slot = &self.slots[rank].0.word;
        // The first look keeps the line shared where there is nothing to claim.
        slot.load(Ordering::Relaxed) == word(sequence, PUBLISHED)
            && slot
                .compare_exchange(
                    word(sequence, PUBLISHED),
                    word(sequence, CLAIMED),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Says that a claimed share is done. The one who finishes the last share makes the round ready
    /// for its next call; true for that one.
    pub(super) fn finish_share(&self, sequence: u64, rank: usize) -> bool {
        self.slots[rank].0.word.store(word(sequence, DONE), Ordering::Release);
        // Acquire and release: the last one has seen all the others' work, and whoever sees the word
        // move on has too.
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 < self.slots.len() {
            return false;
        }
        for slot in &self.slots {
            // SAFETY: Case 4: all shares are done, so nobody reads entries, and nobody writes one
            // before the word moves on.
            let entry = unsafe { &mut *slot.0.entry.get() };
            if !matches!(entry.call.counts, OwnedCounts::Even(_)) {
                // Large groups have long lists, and a ring of them.
                entry.call.counts = OwnedCounts::Even(0);
            }
        }
        self.arrived.0.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.state.0.store(word(sequence + RING as u64, GATHERING), Ordering::Release);
        true
    }

    /// Whether the share of `rank` is done.
    pub(super) fn share_is_done(&self, sequence: u64, rank: usize) -> bool {
        self.slots[rank].0.word.load(Ordering::Acquire) >= word(sequence, DONE)
    }

    /// # Safety
    /// Case 4: the entry has been published, and the round is not ready for its next call yet.
    pub(super) unsafe fn entry(&self, rank: usize) -> &Entry {
        // SAFETY: The caller's promise: nobody writes it meanwhile.
        unsafe { &*self.slots[rank].0.entry.get() }
    }

    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    fn leave_gathering(&self, sequence: u64, phase: u64) -> bool {
        self.state
            .0
            .compare_exchange(
                word(sequence, GATHERING),
                word(sequence, phase),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }
}

impl Slot {
    fn new() -> Slot {
        let call = OwnedCall {
            kind: CallKind::Barrier,
            dtype: DType::U8,
            root: None,
            op: None,
            tag: Tag::NONE,
            sequence: 0,
            counts: OwnedCounts::Even(0),
        };
        let buffers = Buffers {
            send: std::ptr::null(),
            send_bytes: 0,
            recv: std::ptr::null_mut(),
            recv_bytes: 0,
        };
        let payload = Payload([0; INLINE_BYTES]);
        let entry = Entry { fingerprint: Fingerprint::default(), call, buffers, payload };
        Slot { word: AtomicU64::new(0), entry: UnsafeCell::new(entry) }
    }
}

impl OwnedCall {
    pub(super) fn new(call: &Call<'_>) -> OwnedCall {
        let counts = match call.counts {
            Counts::Even(n) => OwnedCounts::Even(n),
            Counts::Each(counts) => OwnedCounts::Each(counts.into()),
            Counts::Pairs { send, recv } => OwnedCounts::Pairs {
                send: send.into(),
                recv: recv.into(),
                send_offsets: send
                    .iter()
                    .scan(0, |sum, n| {
                        *sum += n;
                        Some(*sum - n)
                    })
                    .collect(),
            },
        };
        OwnedCall {
            kind: call.kind,
            dtype: call.dtype,
            root: call.root,
            op: call.op,
            tag: call.tag,
            sequence: call.sequence,
            counts,
        }
    }

    /// As the errors show it.
    pub(super) fn text(&self) -> Arc<str> {
        let counts = match &self.counts {
            OwnedCounts::Even(n) => Counts::Even(*n),
            OwnedCounts::Each(counts) => Counts::Each(counts),
            OwnedCounts::Pairs { send, recv, .. } => Counts::Pairs { send, recv },
        };
        let &OwnedCall { kind, dtype, root, op, tag, sequence, .. } = self;
        Call { kind, dtype, counts, root, op, tag, sequence }.to_string().into()
    }
}

const fn word(sequence: u64, low: u64) -> u64 {
    (sequence << 2) | low
}
