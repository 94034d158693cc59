//! Saving behind the back of the program: a snapshot is taken at once, and written while the program goes on.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use dtensor_comm::World;

use crate::{
    Error, FileRecord, NewCheckpoint, Progress, Result, SaveOptions, Saved, State,
    formats::native_write::Part,
    save::{
        self, After, ByNotes, Give, Meter, PlannedFile, Prepared, SignsOfLife, Summary, finish,
        write_file,
    },
    storage,
};

/// Saves a state as [`save`](crate::save()) does, but returns as soon as it has a copy of what this rank writes. All ranks of
/// the world call it, with the same state.
///
/// Whoever saves again and again keeps an [`AsyncSaver`], which keeps the memory for the copy, and waits for the save before. Here, a
/// save to a place where another one is under way is [`Error::Busy`].
pub fn async_save(
    world: &World,
    state: &State,
    path: &str,
    options: &SaveOptions,
) -> Result<AsyncSave> {
    AsyncSaver::new().save(world, state, path, options)
}

/// Saves in the background, one state at a time.
///
/// What a rank writes is copied into memory that is kept for the next save, so that only the first one allocates: as many bytes
/// as this rank writes, which is one copy of the state over all ranks. A thread then writes the copy. It makes none of the
/// world's calls, which the program needs for itself; the ranks meet through small files beside the checkpoint.
///
/// Dropping a saver and the handles of its last save waits until that is over, so that a program which ends does not lose a
/// checkpoint.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, zeros};
/// use dtensor_checkpoint::{AsyncSaver, Error, SaveOptions, State};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("model");
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let mut weight = zeros(&[1000], DType::F32, &mesh, &[Shard(0)])?;
///     let mut saver = AsyncSaver::new();
///     for _step in 0..3 {
///         let mut state = State::new();
///         state.insert("weight", weight.clone())?;
///         let saving = saver.save(world, &state, path.to_str().unwrap(), &SaveOptions::default())?;
///         weight = weight.add(1.0)?;     // goes on meanwhile
///         assert_eq!(saving.wait()?.tensors, 1);
///     }
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
#[derive(Default)]
pub struct AsyncSaver {
    when_busy: WhenBusy,
    pool: Pool,
    last: Option<AsyncSave>,
}

/// What to do about a save while another one is under way. All ranks have to want the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBusy {
    /// Wait for the one before.
    #[default]
    Wait,
    /// Give [`Error::Busy`] on every rank, if any of them is busy.
    Refuse,
}

/// A save that is under way. Clones are the same one.
#[derive(Clone)]
#[must_use = "whether a checkpoint was saved is known when it has been waited for"]
pub struct AsyncSave {
    shared: Arc<Shared>,
    /// Waits for the thread when the last handle is dropped.
    _thread: Arc<Joined>,
}

impl AsyncSaver {
    /// A saver that has saved nothing yet, and waits when it is busy.
    pub fn new() -> AsyncSaver {
        AsyncSaver::default()
    }

    /// With something else to do when it is busy.
    #[must_use]
    pub fn when_busy(mut self, when_busy: WhenBusy) -> AsyncSaver {
        self.when_busy = when_busy;
        self
    }

    /// Takes a copy of what this rank writes, and writes it in the background. All ranks of the world call it, with the same
    /// state.
    ///
    /// What is wrong with the state or the place is an error here, on all ranks. What goes wrong later is an error of
    /// [`AsyncSave::wait`], on all ranks as well.
    pub fn save(
        &mut self,
        world: &World,
        state: &State,
        path: &str,
        options: &SaveOptions,
    ) -> Result<AsyncSave> {
        self.save_then(world, state, path, options, Box::new(|| Ok(())))
    }

    /// Whether a save is under way on this rank.
    pub fn is_busy(&self) -> bool {
        self.last.as_ref().is_some_and(|last| !last.is_done())
    }

    /// Bytes of memory that are kept for the next save.
    pub fn kept_bytes(&self) -> usize {
        lock(&self.pool).iter().map(Vec::capacity).sum()
    }

    /// As [`save`](AsyncSaver::save); rank 0 does something else after the commit.
    pub(crate) fn save_then(
        &mut self,
        world: &World,
        state: &State,
        path: &str,
        options: &SaveOptions,
        after: Box<After<'static>>,
    ) -> Result<AsyncSave> {
        if let (WhenBusy::Wait, Some(last)) = (self.when_busy, &self.last) {
            // Its error belongs to its own handle.
            let _ = last.wait();
        }
        let busy = self.last.as_ref().filter(|last| !last.is_done());
        let id = save::begin_agreement(world, path, state, busy.map(|last| &*last.shared.place))?;
        let destination = storage::destination(path);
        let destination = destination.as_deref().map_err(Error::clone);
        let prepared = save::prepare(world, state, destination, options, &id, |new| {
            new.begin()?;
            new.begin_notes().inspect_err(|_| new.remove_notes())
        })?;
        let Prepared { new, files, summary } = prepared;
        let snapshot = take_snapshot(&files, mem::take(&mut *lock(&self.pool)));
        let shared = Arc::new(Shared {
            place: path.to_owned(),
            meter: Meter::new(summary.written, options.progress.clone()),
            outcome: Mutex::default(),
            over: Condvar::new(),
        });
        let job = Job {
            rank: world.rank(),
            patience: options.patience,
            // The tensors are let go: a snapshot needs the plans alone.
            files: files
                .into_iter()
                .map(|file| PlannedFile { sources: Vec::new(), ..file })
                .collect(),
            new,
            summary,
            snapshot,
            after,
            pool: Arc::clone(&self.pool),
            shared: Arc::clone(&shared),
        };
        let thread = Arc::new(Joined(Mutex::new(start(job))));
        let saving = AsyncSave { shared, _thread: thread };
        self.last = Some(saving.clone());
        Ok(saving)
    }
}

impl AsyncSave {
    /// How much of its part this rank has written.
    pub fn progress(&self) -> Progress {
        self.shared.meter.now()
    }

    /// Whether it is over, well or not.
    pub fn is_done(&self) -> bool {
        lock(&self.shared.outcome).is_some()
    }

    /// Waits until it is over on all ranks. The same error on all of them, or none.
    pub fn wait(&self) -> Result<Saved> {
        let mut outcome = lock(&self.shared.outcome);
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => {
                    let woken = self.shared.over.wait(outcome);
                    outcome = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl fmt::Debug for AsyncSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSaver")
            .field("when_busy", &self.when_busy)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AsyncSave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSave")
            .field("place", &self.shared.place)
            .field("progress", &self.progress())
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// What the thread and the handles share.
struct Shared {
    place: String,
    meter: Meter,
    outcome: Mutex<Option<Result<Saved>>>,
    over: Condvar,
}

/// A thread that is waited for when this is dropped.
struct Joined(Mutex<Option<JoinHandle<()>>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = lock(&self.0).take() {
            // A panic of it was told as the outcome.
            let _ = thread.join();
        }
    }
}

/// Memory for snapshots, one buffer per file.
type Pool = Arc<Mutex<Vec<Vec<u8>>>>;

/// Bytes of a snapshot between two signs of life.
const STRETCH: usize = 64 << 20;

/// What a thread has to do.
struct Job {
    rank: usize,
    patience: Duration,
    files: Vec<PlannedFile>,
    new: Box<dyn NewCheckpoint>,
    summary: Summary,
    snapshot: Result<Vec<Vec<u8>>>,
    after: Box<After<'static>>,
    pool: Pool,
    shared: Arc<Shared>,
}

impl Job {
    fn run(self) {
        let Job { rank, patience, files, new, summary, snapshot, after, pool, shared } = self;
        // Unwind safety: what a panic leaves half done is a file that nobody will look at.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let written = catch_unwind(AssertUnwindSafe(|| {
                write_snapshot(&*new, rank, &files, &snapshot, &shared.meter)
            }));
            let written = written.unwrap_or_else(|panic| Err(panicked(rank, &*panic)));
            if written.is_err() {
                files.iter().for_each(|file| new.discard(&file.name));
            }
            let mut meeting = ByNotes::new(&*new, rank, summary.n_ranks, patience);
            finish(&mut meeting, &*new, summary, written, &*after)
        }));
        let outcome = outcome.unwrap_or_else(|panic| Err(panicked(rank, &*panic)));
        // Before the outcome is known: the next save may come at once.
        if let Ok(buffers) = snapshot {
            *lock(&pool) = buffers;
        }
        drop(new);
        *lock(&shared.outcome) = Some(outcome);
        shared.over.notify_all();
    }
}

/// A thread that does the job; or none, if there can be no more threads, and then it is done already.
fn start(job: Job) -> Option<JoinHandle<()>> {
    let job = Arc::new(Mutex::new(Some(job)));
    let of_thread = Arc::clone(&job);
    let run = move || {
        let job = lock(&of_thread).take();
        job.into_iter().for_each(Job::run);
    };
    let thread = thread::Builder::new().name("checkpoint".into()).spawn(run);
    thread.inspect_err(|_| lock(&job).take().into_iter().for_each(Job::run)).ok()
}

/// The data of each file, in one piece, in memory that was used before.
fn take_snapshot(files: &[PlannedFile], mut buffers: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    buffers.resize_with(files.len(), Vec::new);
    for (file, buffer) in files.iter().zip(&mut buffers) {
        buffer.clear();
        let bytes = file.plan.size - file.plan.data_start;
        buffer.try_reserve_exact(bytes as usize).map_err(|error| Error::Io {
            doing: "reserve memory for a snapshot of",
            path: file.name.clone(),
            kind: std::io::ErrorKind::OutOfMemory,
            why: error.to_string(),
        })?;
        for (position, _) in file.plan.parts() {
            file.sources[position].read(&mut |bytes| {
                buffer.extend_from_slice(bytes);
                Ok(())
            })?;
        }
    }
    Ok(buffers)
}

fn write_snapshot(
    new: &dyn NewCheckpoint,
    rank: usize,
    files: &[PlannedFile],
    snapshot: &Result<Vec<Vec<u8>>>,
    meter: &Meter,
) -> Result<Vec<FileRecord>> {
    let buffers = snapshot.as_ref().map_err(Error::clone)?;
    let mut signs = SignsOfLife::new(new, rank);
    let write = |(file, buffer): (&PlannedFile, &Vec<u8>)| {
        let mut rest = buffer.as_slice();
        // The parts are asked for in the order of the file, which is that of the snapshot.
        let mut read = |_: usize, part: &Part, give: &mut Give<'_>| {
            let (part, others) = rest.split_at(part.bytes() as usize);
            rest = others;
            part.chunks(STRETCH).try_for_each(|bytes| {
                signs.give();
                give(bytes)
            })
        };
        write_file(new, &file.name, &file.plan, &mut read, meter)
    };
    files.iter().zip(buffers).map(write).collect()
}

fn panicked(rank: usize, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("panicked while it saved: {}", text.unwrap_or("(no text)"));
    Error::OnRank { rank, message }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
