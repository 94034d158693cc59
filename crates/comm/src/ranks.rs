//! Running a program on many ranks: starting them, catching what they end with, and blaming the right
//! one.

use std::{
    any::Any,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use crate::{
    CommError, RunError, World, WorldKind,
    launch::Launch,
    threads,
    transport::{FirstCause, Settings},
};

/// How one rank's part of the program ended.
enum RankEnd<T> {
    Returned(T),
    Failed { error: Option<Box<dyn Error + Send + Sync>>, recorder: String },
}

/// Runs `body` on `ranks` threads.
pub(crate) fn run_threads<T, E, F>(
    settings: &Settings,
    ranks: usize,
    stack_bytes: Option<usize>,
    body: &F,
) -> Result<Vec<T>, RunError>
where
    T: Send,
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Fn(&World) -> Result<T, E> + Sync,
{
    let state = threads::new_world(settings, ranks);
    let ends = thread::scope(|scope| {
        let mut handles = Vec::with_capacity(ranks);
        let mut not_started = None;
        for rank in 0..ranks {
            let connection = threads::connect(&state, rank);
            let mut builder = thread::Builder::new().name(format!("rank {rank}"));
            if let Some(bytes) = stack_bytes {
                builder = builder.stack_size(bytes);
            }
            let spawned = builder.spawn_scoped(scope, move || {
                run_rank(World::new(WorldKind::Threads, connection), body).0
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    // Those that run already must not wait for those that never will.
                    let cause = format!("could not be started as a thread: {error}").into();
                    let failure = CommError::RankFailed { rank, cause, table: None };
                    threads::connect(&state, rank).transport.leave(Err(failure));
                    not_started = Some(RankEnd::Failed { error: None, recorder: String::new() });
                    break;
                }
            }
        }
        // `run_rank` catches panics, so no thread ends with one; if it did, that is its failure.
        let joined = handles.into_iter().map(|handle| {
            let lost = |_| RankEnd::Failed { error: None, recorder: String::new() };
            handle.join().unwrap_or_else(lost)
        });
        joined.chain(not_started).collect()
    });
    collect(ranks, 0, ends, threads::first_cause(&state))
}

/// Runs `body` as one of the processes that a launcher started.
#[cfg(feature = "mpi")]
pub(crate) fn run_launched<T, E, F>(
    settings: &Settings,
    _: Launch,
    body: &F,
) -> Result<Vec<T>, RunError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Fn(&World) -> Result<T, E>,
{
    let connection = crate::mpi::connect(settings).map_err(RunError::before)?;
    let (rank, size) = (connection.rank, connection.size);
    let (end, first) = run_rank(World::new(WorldKind::Mpi, connection), body);
    collect(size, rank, vec![end], first)
}

/// Runs `body` as the only process that a launcher started, or says what is missing for more.
#[cfg(not(feature = "mpi"))]
pub(crate) fn run_launched<T, E, F>(
    settings: &Settings,
    launch: Launch,
    body: &F,
) -> Result<Vec<T>, RunError>
where
    T: Send,
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Fn(&World) -> Result<T, E> + Sync,
{
    if launch == Launch::Processes(1) {
        return run_threads(settings, 1, None, body);
    }
    Err(RunError::before(CommError::CannotRun(
        format!(
            "a launcher started {launch}, but this program was built without MPI: build it with \
             `--features mpi`, or run it without the launcher (ranks are threads then)"
        )
        .into(),
    )))
}

/// One rank's part, from its first call to its good-bye.
fn run_rank<T, E>(
    world: World,
    body: &(impl Fn(&World) -> Result<T, E> + ?Sized),
) -> (RankEnd<T>, Option<FirstCause>)
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let rank = world.rank();
    // Unwind safety: what a panic may leave half done is the rank's own, and is dropped; the state
    // shared with other ranks is only changed by code that does not panic.
    let ended = catch_unwind(AssertUnwindSafe(|| body(&world)));
    let (outcome, cause) = match ended {
        Ok(Ok(value)) => return (RankEnd::Returned(value), world.leave(Ok(()))),
        Ok(Err(error)) => {
            let error = error.into();
            let cause = format!("returned an error: {error}");
            (Some(error), cause)
        }
        Err(payload) => (None, format!("panicked: {}", panic_message(&*payload))),
    };
    let first = world.leave(Err(CommError::RankFailed { rank, cause: cause.into(), table: None }));
    (RankEnd::Failed { error: outcome, recorder: world.recorder().to_string() }, first)
}

/// The results, or the first cause. `ends` are the ranks of this process, from rank `first_rank` on.
fn collect<T>(
    size: usize,
    first_rank: usize,
    ends: Vec<RankEnd<T>>,
    first: Option<FirstCause>,
) -> Result<Vec<T>, RunError> {
    let (mut values, mut failures) = (Vec::with_capacity(ends.len()), Vec::new());
    for (i, end) in ends.into_iter().enumerate() {
        match end {
            RankEnd::Returned(value) => values.push(value),
            RankEnd::Failed { error, recorder } => failures.push((first_rank + i, error, recorder)),
        }
    }
    // Where all ranks are ours, how they ended says it all. A process that is one of several knows of
    // the others by the first cause: there is one if any of them failed.
    if failures.is_empty() && (values.len() == size || first.is_none()) {
        return Ok(values);
    }
    let (blamed, cause) = match first {
        Some(FirstCause { rank, error }) => (rank, error),
        None => (first_rank, CommError::CannotRun("a rank ended without a result".into())),
    };
    if failures.is_empty() {
        return Err(RunError::new(blamed, size, cause, None, String::new()));
    }
    // The rank that the first cause came from, if it is one of ours, else the first that failed.
    let at = failures.iter().position(|(rank, ..)| *rank == blamed).unwrap_or(0);
    let (rank, error, recorder) = failures.swap_remove(at);
    Err(RunError::new(rank, size, cause, error, recorder))
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_string()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(a value that is no text)".to_string()
    }
}
