//! Waiting for a future on a thread that belongs to nobody's runtime, for a bounded time.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

/// What the future gives, or `None` if it has not by the deadline.
///
/// Ranks are threads that block. This works on any thread, also on one of an async runtime, where that of a
/// runtime would panic; and it needs no timer, which a runtime that is shut down no longer has.
pub(crate) fn block_until<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // A wake between the poll and here is not lost: it makes this return at once.
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::{future, time::Duration};

    use super::*;

    #[test]
    fn a_future_that_is_ready_wins_over_a_deadline_that_has_passed() {
        assert_eq!(block_until(Instant::now(), future::ready(7)), Some(7));
    }

    #[test]
    fn a_future_that_never_comes_is_given_up() {
        let soon = Instant::now() + Duration::from_millis(2);
        assert_eq!(block_until(soon, future::pending::<()>()), None);
    }
}
