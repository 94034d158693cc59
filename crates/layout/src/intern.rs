//! One allocation per distinct layout, so that equality is a comparison of pointers.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Values by their hash. Weak, so that a program that meets ever new shapes does not grow.
struct Table<T> {
    buckets: HashMap<u64, Vec<Weak<T>>>,
    /// Entries, dead ones included; when it reaches `sweep_at`, dead ones are dropped.
    n_entries: usize,
    sweep_at: usize,
}

/// Gives equal values one allocation.
pub(crate) struct Interner<T> {
    hasher: RandomState,
    table: Mutex<Table<T>>,
}

impl<T: Eq + Hash> Interner<T> {
    pub(crate) fn new() -> Interner<T> {
        let table = Table { buckets: HashMap::new(), n_entries: 0, sweep_at: 1024 };
        Interner { hasher: RandomState::new(), table: Mutex::new(table) }
    }

    pub(crate) fn intern(&self, value: T) -> Arc<T> {
        let hash = self.hasher.hash_one(&value);
        // Nothing under this lock can leave the table half-written, so a poisoned lock is usable.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = table.buckets.get(&hash)
            && let Some(found) =
                bucket.iter().filter_map(Weak::upgrade).find(|known| **known == value)
        {
            return found;
        }
        let new = Arc::new(value);
        table.buckets.entry(hash).or_default().push(Arc::downgrade(&new));
        table.n_entries += 1;
        if table.n_entries >= table.sweep_at {
            table.buckets.retain(|_, bucket| {
                bucket.retain(|known| known.strong_count() > 0);
                !bucket.is_empty()
            });
            table.n_entries = table.buckets.values().map(Vec::len).sum();
            // Sweeping again only after the table has doubled keeps the cost constant per value.
            table.sweep_at = (2 * table.n_entries).max(1024);
        }
        new
    }

    #[cfg(test)]
    fn n_entries(&self) -> usize {
        self.table.lock().unwrap().n_entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_allocation_and_dead_ones_are_swept() {
        let interner = Interner::new();
        let kept = interner.intern(7usize);
        assert!(Arc::ptr_eq(&kept, &interner.intern(7)));
        for value in 0..100_000 {
            interner.intern(value);
        }
        assert!(interner.n_entries() <= 1024);
        assert!(Arc::ptr_eq(&kept, &interner.intern(7)), "a live value outlives the sweeps");
    }

    #[test]
    fn threads_agree_on_the_allocation() {
        let interner = Interner::new();
        let values: Vec<Arc<usize>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| interner.intern(42usize))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
    }
}
