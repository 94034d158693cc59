//! Work that several threads share.

use std::{
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::{Error, Result};

/// Bytes that all threads together keep in buffers, whatever the size of the checkpoint; of many threads, as far as a block allows.
const BUFFERS: usize = 64 << 20;

/// The most bytes that are read in one go. More makes nothing faster, and what is still in the processor's cache is cast,
/// hashed and written sooner.
const PIECE: usize = 4 << 20;

/// The most threads. Each needs a block of 1 MiB or two, and long before this number something else is what takes time.
const MAX_THREADS: usize = 256;

/// So many threads; 0 is as many as the machine has.
pub(crate) fn threads(asked: usize) -> usize {
    let threads = match asked {
        0 => thread::available_parallelism().map_or(1, usize::from),
        asked => asked,
    };
    threads.min(MAX_THREADS)
}

/// Bytes of a piece, of which each thread keeps so many at a time; together they stay within [`BUFFERS`].
pub(crate) fn piece_bytes(threads: usize, kept: usize) -> usize {
    (BUFFERS / threads.max(1) / kept).clamp(64 << 10, PIECE)
}

/// Threads for many small reads: these mostly wait, all the more if the files are far away, and so there are more of them than
/// processors.
pub(crate) fn readers() -> usize {
    (2 * threads(0)).min(16)
}

/// Does the jobs `0..n`, each by one of the threads, taken in order. The first failure ends it: jobs that have begun are
/// ended, and no other is begun. The error is that of the first job that has one, however the threads were scheduled: jobs
/// before it have begun before it, and all ranks get the same.
///
/// Every thread has a `state` of its own: its buffers.
pub(crate) fn share<S>(
    n: usize,
    threads: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let worker = || {
        let mut state = state();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= n {
                return;
            }
            if let Err(error) = work(&mut state, job) {
                next.store(n, Ordering::Relaxed);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(first, _)| job < *first) {
                    *failed = Some((job, error));
                }
            }
        }
    };
    thread::scope(|scope| {
        // Where the system has no more threads, there are fewer helpers; this thread works as well.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
        let helpers: Vec<_> = (1..threads.min(n)).filter_map(spawn).collect();
        worker();
        for helper in helpers {
            helper.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// The results of `work` on all items, in order; as [`share`].
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let results = Mutex::new(Vec::from_iter(items.iter().map(|_| None)));
    share(
        items.len(),
        threads,
        || (),
        |(), position| {
            let result = work(&items[position])?;
            results.lock().unwrap_or_else(PoisonError::into_inner)[position] = Some(result);
            Ok(())
        },
    )?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once() {
        for threads in [0, 1, 3, 50] {
            let done: Vec<AtomicUsize> = (0..20).map(|_| AtomicUsize::new(0)).collect();
            let work = |_: &mut (), job: usize| {
                done[job].fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            share(done.len(), threads, || (), work).unwrap();
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn the_first_failure_ends_it() {
        let begun = AtomicUsize::new(0);
        let work = |_: &mut (), job: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            match job {
                0..5 => Ok(()),
                _ => Err(Error::broken(job.to_string(), "it")),
            }
        };
        let error = share(1000, 2, || (), work).unwrap_err();
        assert!(matches!(error, Error::Broken { file, .. } if file == "5" || file == "6"));
        assert!(begun.load(Ordering::Relaxed) < 20);
    }
}
