//! The same program on every rank of a small world, in one process.

use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use dtensor_comm::{Runner, World};

/// What a rank's program may fail with: anything that `?` turns into an error.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Longest wait in one call. No test waits so long unless it hangs, and a test that hangs should say
/// so soon.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `body` on `n_ranks` ranks, threads of this process, and returns their results in rank order.
///
/// `body` may borrow from the test. It may fail by `?` and by panicking, so `assert!` works inside.
///
/// ```
/// use dtensor_comm::ReduceOp;
/// use dtensor_testing::spmd;
///
/// let sums = spmd(3, |world| {
///     let mut x = [world.rank() as f64];
///     world.group().all_reduce(&mut x, ReduceOp::Sum)?;
///     Ok(x[0])
/// });
/// assert_eq!(sums, [3.0; 3]);
/// ```
///
/// # Panics
/// If a rank fails or the ranks disagree: with the first cause, the rank it came from, and that rank's
/// last calls. The other ranks are stopped, so that nothing hangs.
#[track_caller]
pub fn spmd<T: Send>(n_ranks: usize, body: impl Fn(&World) -> Result<T, Failure> + Sync) -> Vec<T> {
    match Runner::threads(n_ranks).deadline(DEADLINE).run(body) {
        Ok(results) => results,
        Err(error) => panic!("{error}"),
    }
}

/// The text that `body` panics with: for tests of what a failing test says.
///
/// # Panics
/// If `body` does not panic, or panics without a text.
#[track_caller]
pub fn panic_text<T>(body: impl FnOnce() -> T) -> String {
    // Unwind safety: what `body` leaves half done is dropped with it.
    let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { panic!("there was no panic") };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().expect("a panic with a text").to_string(),
    }
}
