//! Something long, and something that has to be done from time to time until it is over.

use std::{
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::Result;

/// Does `work` on a thread of its own. Meanwhile `meet` is called again and again, each time after `every` at the latest, with
/// whether the work is done, until it says that all is over: others wait for this rank, or this rank for others.
///
/// If `meet` fails, the work is still done to its end. If the work panics, so does this.
pub(crate) fn alongside(
    every: Duration,
    work: impl FnOnce() + Send,
    mut meet: impl FnMut(bool) -> Result<bool>,
) -> Result<()> {
    let work = Mutex::new(Some(work));
    let run = || {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.into_iter().for_each(|work| work());
    };
    let run = &run;
    thread::scope(|scope| {
        let (working, over) = mpsc::channel::<()>();
        let on_thread = move || {
            // Dropped at the end, also by a panic, which ends the waiting below.
            let _working = working;
            run();
        };
        let thread = thread::Builder::new().name("checkpoint-work".into());
        // Where there can be no more threads, the work is done before anybody is met.
        let mut thread = thread.spawn_scoped(scope, on_thread).inspect_err(|_| run()).ok();
        loop {
            let is_done = over.recv_timeout(every) != Err(RecvTimeoutError::Timeout);
            if is_done && let Some(Err(panic)) = thread.take().map(|thread| thread.join()) {
                resume_unwind(panic);
            }
            if meet(is_done)? {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc::channel,
    };

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn one_meets_until_the_work_is_done_and_the_others_say_so() {
        let (go_on, gone_on) = channel();
        let mut calls = Vec::new();
        let meet = |is_done: bool| {
            calls.push(is_done);
            if calls.len() == 3 {
                go_on.send(()).unwrap();
            }
            // Others take two calls longer.
            Ok(calls.iter().filter(|is_done| **is_done).count() == 3)
        };
        alongside(SHORT, move || gone_on.recv().unwrap(), meet).unwrap();
        assert_eq!(calls[..3], [false; 3]);
        assert_eq!(calls[calls.len() - 3..], [true; 3]);
    }

    #[test]
    fn a_panic_of_the_work_is_one_of_the_caller_and_nobody_is_met_after_it() {
        let work = || panic!("on purpose");
        let meet = |is_done: bool| {
            assert!(!is_done);
            Ok(false)
        };
        let panic = catch_unwind(AssertUnwindSafe(|| alongside(SHORT, work, meet))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
