//! What a rank knows about one of its groups.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::stream::Key;

/// One group, as one of its members sees it.
pub(super) struct GroupInfo {
    pub(super) key: Key,
    /// World ranks, in group-rank order.
    pub(super) members: Arc<[usize]>,
    /// This rank in the group.
    pub(super) rank: usize,
    /// Collectives that this rank has begun on it.
    begun: AtomicU64,
}

impl GroupInfo {
    pub(super) fn new(key: Key, members: Arc<[usize]>, rank: usize) -> GroupInfo {
        GroupInfo { key, members, rank, begun: AtomicU64::new(0) }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// Notes that this rank has begun the collective with this sequence number.
    pub(super) fn begin(&self, sequence: u64) {
        self.begun.fetch_max(sequence + 1, Ordering::Relaxed);
    }

    /// How many collectives this rank has begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}
