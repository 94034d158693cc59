//! How far something is that takes its time.

use std::{
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
};

/// How far a rank or a process is with its part of a save, a load, a conversion and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors that it has done.
    pub done: u64,
    /// Bytes of tensors that it has to do.
    pub total: u64,
}

/// Told, from any thread, how far it is. It should return soon.
pub type OnProgress<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// Counts what is done, from any thread, and tells whom the caller has named.
pub(crate) struct Meter<T> {
    done: AtomicU64,
    total: u64,
    tell: Option<T>,
}

impl<'a, T: Deref<Target = OnProgress<'a>>> Meter<T> {
    pub(crate) fn new(total: u64, tell: Option<T>) -> Meter<T> {
        Meter { done: AtomicU64::new(0), total, tell }
    }

    pub(crate) fn now(&self) -> Progress {
        Progress { done: self.done.load(Ordering::Relaxed), total: self.total }
    }

    pub(crate) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(tell) = &self.tell {
            tell(Progress { done, total: self.total });
        }
    }
}
