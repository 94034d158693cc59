//! Sharing work among threads, such that results do not depend on how many there are.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::disjoint::Disjoint;

/// Stretches of work per thread.
const STRETCHES: usize = 4;

/// 0 until it is first asked for.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Whether [`set_threads`] has been called.
static CHOSEN: AtomicBool = AtomicBool::new(false);

/// How many threads kernels use: what [`set_threads`] said, else `DTENSOR_THREADS`, else one per core.
#[inline]
pub fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let threads = from_environment().unwrap_or_else(cores);
            THREADS.store(threads, Ordering::Relaxed);
            threads
        }
        threads => threads,
    }
}

/// Sets how many threads kernels use from now on, at least one. Ranks that are threads of one process
/// share its cores: each should get its part. Results do not change.
pub fn set_threads(threads: usize) {
    CHOSEN.store(true, Ordering::Relaxed);
    THREADS.store(threads.max(1), Ordering::Relaxed);
}

/// Says that so many ranks share the cores of this process: each gets its part of them, at least one, unless
/// [`set_threads`] or `DTENSOR_THREADS` has said otherwise. Results do not change.
pub fn share_threads(ranks: usize) {
    if !CHOSEN.load(Ordering::Relaxed) && from_environment().is_none() {
        THREADS.store((cores() / ranks.max(1)).max(1), Ordering::Relaxed);
    }
}

fn from_environment() -> Option<usize> {
    let text = std::env::var("DTENSOR_THREADS").ok()?;
    text.trim().parse().ok().filter(|threads| *threads > 0)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Calls `work` for pieces of `0..n` of `grain` indices each (the last may be shorter), in any order
/// and on any thread. The pieces depend on `n` and `grain` alone, so a result that is put together
/// piece by piece does not depend on the number of threads.
///
/// Not generic: compiled once, where a parallel loop per kernel took more than half of the time to
/// compile this crate.
pub(crate) fn for_pieces(n: usize, grain: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    if n <= grain {
        if n > 0 {
            work(0..n);
        }
        return;
    }
    let grain = grain.max(1);
    let n_pieces = n.div_ceil(grain);
    let piece = |index: usize| index * grain..n.min((index + 1) * grain);
    let threads = threads().min(n_pieces);
    if threads <= 1 {
        (0..n_pieces).for_each(|index| work(piece(index)));
        return;
    }
    // Stretches of neighbouring pieces, so that there are few hand-overs; several for each thread, which
    // takes the next when it is done. The calling thread works too, and has begun before the others wake.
    let per_stretch = n_pieces.div_ceil(threads * STRETCHES);
    let next = AtomicUsize::new(0);
    let help = || {
        loop {
            let first = next.fetch_add(per_stretch, Ordering::Relaxed);
            if first >= n_pieces {
                return;
            }
            (first..n_pieces.min(first + per_stretch)).for_each(|index| work(piece(index)));
        }
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| help());
        }
        help();
    });
}

/// As [`for_pieces`], each piece with its own part of `out`, which is `width` times as long as `n`.
#[inline]
pub(crate) fn for_pieces_of<T: Send>(
    out: &mut [T],
    width: usize,
    grain: usize,
    work: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    let width = width.max(1);
    let n = out.len() / width;
    let out = Disjoint::new(out);
    for_pieces(n, grain, &|piece| {
        // SAFETY: Pieces do not overlap, so their parts do not either.
        let part = unsafe { out.part(piece.start * width..piece.end * width) };
        work(piece, part);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn pieces_tile_the_range_whatever_the_number_of_threads() {
        for (n, grain) in [(0, 4), (1, 4), (7, 3), (12, 3), (100, 1), (5, 0), (5, 100)] {
            let seen = Mutex::new(Vec::new());
            for_pieces(n, grain, &|piece| seen.lock().unwrap().push((piece.start, piece.end)));
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            let all: Vec<usize> = seen.iter().flat_map(|(start, end)| *start..*end).collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            let mut out = vec![0; n * 2];
            for_pieces_of(&mut out, 2, grain, |piece, part| {
                for (row, values) in piece.zip(part.chunks_mut(2)) {
                    values.fill(row + 1);
                }
            });
            assert!(out.iter().enumerate().all(|(i, value)| *value == i / 2 + 1), "{n} {grain}");
        }
    }
}
