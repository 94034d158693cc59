//! The objects that a worker owns.

use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Delete;

type Shared = Arc<dyn Any + Send + Sync>;

/// Objects by number. One is kept while its owner holds it or another worker has a fork of it.
#[derive(Default)]
pub(crate) struct Objects(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// The next number, of objects and of shares.
    next: u64,
}

struct Entry {
    object: Shared,
    is_held: bool,
    /// Who has a fork, by worker and number of the share.
    forks: BTreeSet<(usize, u64)>,
}

impl Objects {
    /// Adds an object that its owner holds.
    pub(crate) fn add(&self, object: Shared) -> u64 {
        let mut table = self.lock();
        let number = table.next();
        table.entries.insert(number, Entry { object, is_held: true, forks: BTreeSet::new() });
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Shared> {
        self.lock().entries.get(&number).map(|entry| Arc::clone(&entry.object))
    }

    /// A fork for each of these workers, under one number. `None` if the object is gone.
    pub(crate) fn fork(&self, number: u64, holders: &[usize]) -> Option<u64> {
        let mut table = self.lock();
        let serial = table.next();
        let entry = table.entries.get_mut(&number)?;
        entry.forks.extend(holders.iter().map(|holder| (*holder, serial)));
        Some(serial)
    }

    /// Takes forks out that a worker no longer has. To hear it twice is as to hear it once.
    pub(crate) fn delete(&self, holder: usize, gone: &[Delete]) {
        let mut dropped = Vec::new();
        let mut table = self.lock();
        for Delete { local_id, serial } in gone {
            if let Some(entry) = table.entries.get_mut(local_id) {
                entry.forks.remove(&(holder, *serial));
                dropped.extend(table.remove_unused(*local_id));
            }
        }
        // Objects may take long to drop, and may drop references of their own: not under the lock.
        drop(table);
    }

    /// The owner no longer holds the object.
    pub(crate) fn release(&self, number: u64) {
        let mut table = self.lock();
        if let Some(entry) = table.entries.get_mut(&number) {
            entry.is_held = false;
        }
        let unused = table.remove_unused(number);
        drop(table);
        drop(unused);
    }

    /// Takes back all forks of an object.
    pub(crate) fn revoke(&self, number: u64) {
        let mut table = self.lock();
        if let Some(entry) = table.entries.get_mut(&number) {
            entry.forks.clear();
        }
        let unused = table.remove_unused(number);
        drop(table);
        drop(unused);
    }

    /// Takes back all forks of a worker.
    pub(crate) fn reclaim(&self, holder: usize) -> usize {
        let mut table = self.lock();
        let mut n_forks = 0;
        for entry in table.entries.values_mut() {
            let before = entry.forks.len();
            entry.forks.retain(|(other, _)| *other != holder);
            n_forks += before - entry.forks.len();
        }
        let is_unused = |_: &u64, entry: &mut Entry| !entry.is_held && entry.forks.is_empty();
        let unused: Vec<(u64, Entry)> = table.entries.extract_if(is_unused).collect();
        drop(table);
        drop(unused);
        n_forks
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let entries = std::mem::take(&mut self.lock().entries);
        drop(entries);
    }

    pub(crate) fn n_objects(&self) -> usize {
        self.lock().entries.len()
    }

    pub(crate) fn n_forks(&self) -> usize {
        self.lock().entries.values().map(|entry| entry.forks.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing is left half done under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The object, taken out if nobody has it any more.
    fn remove_unused(&mut self, number: u64) -> Option<Shared> {
        let entry = self.entries.get(&number)?;
        match entry.is_held || !entry.forks.is_empty() {
            true => None,
            false => self.entries.remove(&number).map(|entry| entry.object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_lives_as_long_as_its_owner_or_one_fork() {
        let (objects, value) = (Objects::default(), Arc::new(7));
        let number = objects.add(value.clone());
        let serial = objects.fork(number, &[1, 2]).unwrap();
        assert_eq!((objects.n_objects(), objects.n_forks()), (1, 2));
        objects.release(number);
        let gone = [Delete { local_id: number, serial }];
        objects.delete(1, &gone);
        objects.delete(1, &gone);
        assert_eq!((objects.n_objects(), objects.n_forks(), Arc::strong_count(&value)), (1, 1, 2));
        objects.delete(2, &gone);
        assert_eq!((objects.n_objects(), objects.n_forks(), Arc::strong_count(&value)), (0, 0, 1));
        objects.delete(2, &gone);
        assert_eq!(objects.fork(number, &[1]), None);
    }

    #[test]
    fn forks_that_are_taken_back_leave_the_object_to_its_owner() {
        let objects = Objects::default();
        let number = objects.add(Arc::new(7));
        objects.fork(number, &[1, 2, 3]);
        objects.revoke(number);
        assert_eq!((objects.n_objects(), objects.n_forks()), (1, 0));
        objects.release(number);
        assert_eq!(objects.n_objects(), 0);
    }
}
