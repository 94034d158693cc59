//! Running a program on many ranks: the options.

use std::{error::Error, time::Duration};

use crate::{
    CommError, RunError, World,
    launch::{cores, launched, variable},
    ranks::{run_launched, run_threads},
    transport::Settings,
};

/// Runs `body` once per rank and returns the results of the ranks of this process, in rank order.
///
/// Under mpirun (and built with the feature `mpi`) this process is one rank, and there is one result.
/// Otherwise the ranks are threads of this process: as many as `DTENSOR_RANKS` says, else one per
/// core. [`Runner`] has the options.
///
/// ```
/// use dtensor_comm::{CommError, ReduceOp, RunError};
///
/// fn main() -> Result<(), RunError> {
///     dtensor_comm::run(|world| {
///         let mut ranks = [1_i64];
///         world.group().all_reduce(&mut ranks, ReduceOp::Sum)?;
///         assert_eq!(ranks[0], world.size() as i64);
///         Ok::<_, CommError>(())
///     })?;
///     Ok(())
/// }
/// ```
///
/// # Errors
/// See [`Runner::run`].
pub fn run<T, E, F>(body: F) -> Result<Vec<T>, RunError>
where
    T: Send,
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Fn(&World) -> Result<T, E> + Sync,
{
    Runner::new().run(body)
}

/// The options of a run.
#[derive(Clone, Debug)]
#[must_use = "a runner does nothing until `run`"]
pub struct Runner {
    ranks: Option<usize>,
    /// Whether the environment is ignored.
    threads_only: bool,
    deadline: Option<Duration>,
    checks: Option<bool>,
    native_reductions: bool,
    max_message_bytes: usize,
    stack_bytes: Option<usize>,
}

impl Runner {
    /// The options of [`run`].
    pub fn new() -> Runner {
        Runner {
            ranks: None,
            threads_only: false,
            deadline: None,
            checks: None,
            native_reductions: false,
            // Counts of MPI are `int`s. A round number below 2^31 keeps pieces aligned for every
            // dtype.
            max_message_bytes: 1 << 30,
            stack_bytes: None,
        }
    }

    /// `ranks` threads of this process, whatever the environment says. For tests.
    pub fn threads(ranks: usize) -> Runner {
        Runner { ranks: Some(ranks), threads_only: true, ..Runner::new() }
    }

    /// Number of ranks if they are threads and `DTENSOR_RANKS` does not say otherwise. The default is
    /// the number of cores.
    pub fn ranks(self, ranks: usize) -> Runner {
        Runner { ranks: Some(ranks), ..self }
    }

    /// Longest time that a rank waits for others in one call before it gives up with
    /// [`CommError::Deadline`]. The default is `DTENSOR_DEADLINE` (seconds), else 300 s: longer than a
    /// rank may reasonably be late, for instance because it writes a checkpoint, and short enough that
    /// a job that hangs does not hang all night.
    pub fn deadline(self, deadline: Duration) -> Runner {
        Runner { deadline: Some(deadline), ..self }
    }

    /// Whether the calls of the ranks are compared before data moves, on MPI. (On threads they always
    /// are: it costs nothing there.) The default is `DTENSOR_CHECKS` (0 or 1), else on in debug builds.
    ///
    /// What it costs, measured with two processes on one host: 1.1 us per call (an all-reduce of 8
    /// bytes takes 2.2 us instead of 1.1), and nothing that could be measured at 64 MiB.
    pub fn checks(self, checks: bool) -> Runner {
        Runner { checks: Some(checks), ..self }
    }

    /// Lets MPI reduce in its own order where it can: faster on some networks, but the bits may then
    /// differ from those of threads, between runs and between libraries. Off by default.
    pub fn native_reductions(self, native: bool) -> Runner {
        Runner { native_reductions: native, ..self }
    }

    /// Longest message, in bytes, that is handed to MPI in one piece; longer ones are split. The
    /// default is 1 GiB, because MPI counts with 32 bits. Tests reach the split with little data.
    pub fn max_message_bytes(self, bytes: usize) -> Runner {
        Runner { max_message_bytes: bytes.max(8), ..self }
    }

    /// Stack of each thread that is a rank. The default is that of the standard library.
    pub fn stack_bytes(self, bytes: usize) -> Runner {
        Runner { stack_bytes: Some(bytes), ..self }
    }

    /// Runs `body` once per rank and returns the results of the ranks of this process, in rank order.
    ///
    /// Threads are scoped: `body` may borrow from the caller.
    ///
    /// # Errors
    /// If a rank panics or returns an error, the others are stopped at the call they wait in or at
    /// their next one, and the run ends with the first cause, the rank it came from and that rank's
    /// flight recorder. Also if the run cannot begin, for instance under mpirun without the feature
    /// `mpi`.
    pub fn run<T, E, F>(self, body: F) -> Result<Vec<T>, RunError>
    where
        T: Send,
        E: Into<Box<dyn Error + Send + Sync>>,
        F: Fn(&World) -> Result<T, E> + Sync,
    {
        let settings = self.settings().map_err(RunError::before)?;
        if !self.threads_only
            && let Some(launch) = launched()
        {
            return run_launched(&settings, launch, &body);
        }
        let ranks = self.thread_ranks().map_err(RunError::before)?;
        run_threads(&settings, ranks, self.stack_bytes, &body)
    }

    fn settings(&self) -> Result<Settings, CommError> {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => match variable("DTENSOR_DEADLINE", "seconds, as 300 or 0.5")? {
                Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| {
                    CommError::CannotRun(format!("DTENSOR_DEADLINE={seconds}: {error}").into())
                })?,
                None => Duration::from_secs(300),
            },
        };
        let checks = match self.checks {
            Some(checks) => checks,
            None => match variable::<u8>("DTENSOR_CHECKS", "0 or 1")? {
                Some(checks) => checks != 0,
                None => cfg!(debug_assertions),
            },
        };
        Ok(Settings {
            deadline,
            checks,
            native_reductions: self.native_reductions,
            max_message_bytes: self.max_message_bytes,
        })
    }

    fn thread_ranks(&self) -> Result<usize, CommError> {
        let from_environment =
            if self.threads_only { None } else { variable("DTENSOR_RANKS", "a number of ranks")? };
        let ranks = from_environment.or(self.ranks).unwrap_or_else(cores);
        if ranks == 0 {
            return Err(CommError::CannotRun("0 ranks: a world has at least one".into()));
        }
        Ok(ranks)
    }
}

impl Default for Runner {
    fn default() -> Runner {
        Runner::new()
    }
}
