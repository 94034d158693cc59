//! How a rank waits: spinning for what comes within microseconds, then yielding, then sleeping.

use std::{
    hint,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

/// Where the ranks of a group sleep.
#[derive(Default)]
pub(super) struct Parking {
    /// Ranks that sleep or are about to. A waker that sees none does nothing, so that a call among
    /// spinning ranks makes no system call.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

/// How long a rank does what before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    spins: u32,
    yields: u32,
}

/// The deadline of a call, which may wait several times. The clock is read when it first sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    duration: Duration,
    until: Option<Instant>,
}

/// Sleepers look again after this time even if nobody woke them: a bug in the waking would cost
/// speed, not a hang.
const SAFETY_NET: Duration = Duration::from_secs(1);

impl Patience {
    /// For `ranks` threads on `cores` cores. Who spins while those he waits for have no core only
    /// delays them.
    pub(super) fn new(ranks: usize, cores: usize) -> Patience {
        if ranks <= cores {
            Patience { spins: 1000, yields: 50 }
        } else {
            Patience { spins: 0, yields: 2 }
        }
    }
}

impl Limit {
    pub(super) fn new(duration: Duration) -> Limit {
        Limit { duration, until: None }
    }

    fn left(&mut self) -> Duration {
        let now = Instant::now();
        match self.until {
            Some(until) => until.saturating_duration_since(now),
            None => {
                // A deadline beyond the end of time is none.
                self.until = now.checked_add(self.duration);
                self.duration
            }
        }
    }
}

impl Parking {
    /// Waits until `ready` gives something; `None` when the limit is reached, for ever without one.
    /// `ready` is called often and, at the end, with a lock held: it only looks.
    pub(super) fn wait<R>(
        &self,
        patience: Patience,
        mut limit: Option<&mut Limit>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        for _ in 0..patience.spins {
            if let Some(result) = ready() {
                return Some(result);
            }
            hint::spin_loop();
        }
        for _ in 0..patience.yields {
            if let Some(result) = ready() {
                return Some(result);
            }
            thread::yield_now();
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Note [No lost wake-up]. The waker changes the state, then looks for sleepers; the sleeper
        // announces itself, then looks at the state; each with a fence in between. So either the
        // waker sees the sleeper, or the sleeper sees the change. In the first case the waker takes
        // the lock before it notifies, and the sleeper holds the lock from its look until it sleeps:
        // the notification comes before the look, which then sees the change, or after falling
        // asleep.
        fence(Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let result = loop {
            if let Some(result) = ready() {
                break Some(result);
            }
            let left = limit.as_mut().map_or(SAFETY_NET, |limit| limit.left());
            let nap = left.min(SAFETY_NET);
            if nap.is_zero() {
                break None;
            }
            guard = self.woken.wait_timeout(guard, nap).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Makes all sleepers look again. Called after every change that somebody may wait for.
    pub(super) fn wake(&self) {
        if self.has_sleepers() {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }

    /// Whether somebody sleeps who may not have seen the changes made so far.
    pub(super) fn has_sleepers(&self) -> bool {
        // Note [No lost wake-up].
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit() {
        let mut limit = Limit::new(Duration::from_millis(5));
        let parking = Parking::default();
        let patience = Patience::new(2, 1);
        assert_eq!(parking.wait(patience, Some(&mut limit), || None::<()>), None);
        // The limit is one of several waits together.
        assert_eq!(parking.wait(patience, Some(&mut limit), || None::<()>), None);
        assert!(!parking.has_sleepers());
    }

    #[test]
    fn sleepers_are_woken_by_every_change() {
        let (parking, flag) = (Parking::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let ready = || flag.load(Ordering::Acquire).then_some(());
                    parking.wait(Patience::new(8, 1), None, ready)
                });
            }
            while !parking.has_sleepers() {
                thread::yield_now();
            }
            flag.store(true, Ordering::Release);
            parking.wake();
        });
        assert!(!parking.has_sleepers());
    }
}
