//! Many small reads at a time.

use std::{
    num::NonZero,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::{Error, Result};

/// Readers mostly wait, all the more if the files are far away: there can be more of them than processors.
const MAX_THREADS: usize = 16;

/// The results of `work` on all items, in order. Several are worked on at a time.
///
/// The error is that of the first item in order that has one, however the threads were scheduled: all ranks get the same.
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let first_failure = AtomicUsize::new(usize::MAX);
    let run = || {
        let mut done = Vec::new();
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            // Items are handed out in order, so whatever comes before a failure is worked on by somebody.
            if position > first_failure.load(Ordering::Relaxed) {
                return done;
            }
            let Some(item) = items.get(position) else { return done };
            let result = work(item);
            if result.is_err() {
                first_failure.fetch_min(position, Ordering::Relaxed);
            }
            done.push((position, result));
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let helpers = items.len().min((2 * processors).min(MAX_THREADS)).saturating_sub(1);
    let mut done: Vec<(usize, Result<R, Error>)> = thread::scope(|scope| {
        // Where the system has no more threads, there are fewer helpers; this thread works as well.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, run).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(spawn).collect();
        let mut done = run();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(position, _)| *position);
    done.into_iter().map(|(_, result)| result).collect()
}
