//! What other ranks see of a shard.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dtensor_rpc::OwnerRef;

use crate::Shard;

/// The present value of one shard.
pub(super) struct Cell {
    state: Mutex<State>,
    /// Tells those who wait that a change is over.
    changed: Condvar,
}

struct State {
    content: Content,
    requires_grad: bool,
}

enum Content {
    Present(Arc<Shard>),
    /// The tensor is changing it, and has it for itself: with a second owner it could not be changed in
    /// place.
    Changing,
    /// The tensor has other shards now.
    Stale,
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    Stale,
    /// A change took longer than the caller waits.
    Changing,
}

impl Cell {
    pub(super) fn new(shard: &Arc<Shard>, requires_grad: bool) -> Cell {
        let content = Content::Present(Arc::clone(shard));
        Cell { state: Mutex::new(State { content, requires_grad }), changed: Condvar::new() }
    }

    /// The value and whether gradients of it are wanted, after a change that is under way.
    pub(super) fn read(&self, patience: Duration) -> Result<(Arc<Shard>, bool), Unavailable> {
        let is_changing = |state: &mut State| matches!(state.content, Content::Changing);
        let waited = self.changed.wait_timeout_while(self.lock(), patience, is_changing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.content {
            Content::Present(shard) => Ok((Arc::clone(shard), state.requires_grad)),
            Content::Changing => Err(Unavailable::Changing),
            Content::Stale => Err(Unavailable::Stale),
        }
    }

    fn set(&self, content: Content) {
        let mut state = self.lock();
        let old = std::mem::replace(&mut state.content, content);
        drop(state);
        self.changed.notify_all();
        // Elements may take long to free: not under the lock.
        drop(old);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shards of a tensor on this rank, as other ranks see them.
pub(crate) struct Published {
    /// In the order of the shards.
    pub(super) cells: Vec<OwnedCell>,
}

pub(super) struct OwnedCell {
    pub(super) cell: Arc<Cell>,
    /// Keeps it among the objects of the agent.
    pub(super) owned: OwnerRef<Cell>,
}

impl Published {
    /// A shard is about to change; who fetches it waits.
    pub(crate) fn begin(&self, number: usize) {
        if let Some(OwnedCell { cell, .. }) = self.cells.get(number) {
            cell.set(Content::Changing);
        }
    }

    /// A shard has changed.
    pub(crate) fn end(&self, number: usize, shard: &Arc<Shard>) {
        if let Some(OwnedCell { cell, .. }) = self.cells.get(number) {
            cell.set(Content::Present(Arc::clone(shard)));
        }
    }

    /// All shards are about to change.
    pub(crate) fn begin_all(&self) {
        (0..self.cells.len()).for_each(|number| self.begin(number));
    }

    /// All shards have changed.
    pub(crate) fn end_all(&self, shards: &[Arc<Shard>]) {
        shards.iter().enumerate().for_each(|(number, shard)| self.end(number, shard));
    }

    /// Gradients are wanted, or not any more.
    pub(crate) fn set_requires_grad(&self, requires_grad: bool) {
        for OwnedCell { cell, .. } in &self.cells {
            cell.lock().requires_grad = requires_grad;
        }
    }

    /// Takes back what was shared, and not taken by all.
    pub(super) fn revoke(&self) {
        self.cells.iter().for_each(|cell| cell.owned.revoke());
    }

    /// The tensor has other shards now.
    pub(crate) fn retire(&self) {
        for OwnedCell { cell, .. } in &self.cells {
            cell.set(Content::Stale);
        }
    }
}
