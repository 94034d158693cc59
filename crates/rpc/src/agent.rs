//! A worker's end of all calls.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicIsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::{
    CallContext, Error, Failure, Incoming, Options, OwnerRef, Reply, Result, Share, UserRef,
    WorkerInfo,
    block::block_until,
    client::Peers,
    refs::{Deletes, Object},
    runtime::OwnRuntime,
    service::Served,
};

/// One worker's handle to all workers. Cloning is cheap, and clones are the same worker.
///
/// There can be several in one process: nothing here is global. Calls block the thread that makes them, for a
/// bounded time. When the last handle is dropped, and with it the last [reference](UserRef), the worker stops
/// without a word; [`shutdown`](Agent::shutdown) waits for the others first.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

struct Inner {
    served: Arc<Served>,
    peers: Arc<Peers>,
    deletes: Deletes,
    address: SocketAddr,
    /// References to objects of others that are alive here.
    references: AtomicIsize,
    /// `None` after a shutdown. It takes all connections with it.
    runtime: Mutex<Option<OwnRuntime>>,
    is_stopped: AtomicBool,
}

impl Agent {
    /// Of what serves already.
    pub(crate) fn new(
        served: Arc<Served>,
        peers: Arc<Peers>,
        runtime: OwnRuntime,
        address: SocketAddr,
    ) -> Agent {
        let deletes = Deletes::start(runtime.handle(), Arc::clone(&peers));
        Agent(Arc::new(Inner {
            served,
            peers,
            deletes,
            address,
            references: AtomicIsize::new(0),
            runtime: Mutex::new(Some(runtime)),
            is_stopped: AtomicBool::new(false),
        }))
    }

    /// This worker.
    pub fn me(&self) -> &WorkerInfo {
        &self.0.served.me
    }

    /// The number of this worker.
    pub fn id(&self) -> usize {
        self.me().id
    }

    /// The name of this worker.
    pub fn name(&self) -> &str {
        &self.me().name
    }

    /// All workers, this one among them, in the order of their numbers.
    pub fn workers(&self) -> &[WorkerInfo] {
        self.0.peers.workers().all()
    }

    /// The worker of this name.
    pub fn worker(&self, name: &str) -> Result<&WorkerInfo> {
        self.0.peers.workers().by_name(name)
    }

    /// The worker of this number.
    pub fn worker_by_id(&self, id: usize) -> Result<&WorkerInfo> {
        self.0.peers.workers().by_id(id)
    }

    /// Where the others reach this worker.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// What was chosen.
    pub fn options(&self) -> &Options {
        &self.0.served.options
    }

    /// Answers calls of a method from now on; `false`, and nothing changes, if the method has a handler
    /// already.
    ///
    /// Handlers run on threads of their own, several at a time. One that keeps an `Agent` keeps it from being
    /// dropped.
    pub fn register<F>(&self, method: &str, handler: F) -> Result<bool>
    where
        F: Fn(&CallContext<'_>, Bytes) -> Result<Reply, Failure> + Send + Sync + 'static,
    {
        self.0.served.handlers.add(method, Arc::new(handler))
    }

    /// Calls a method of a worker, which may be this one: the head of its answer, which has no body. Without
    /// a timeout, that of the [options](Options::timeout) is meant.
    pub fn call(
        &self,
        worker: usize,
        method: &str,
        request: impl Into<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Bytes> {
        let incoming = self.open(worker, method, request, timeout)?;
        let head = incoming.head().clone();
        // Also in what follows it keeps its word.
        incoming.read_into(&mut []).map(|()| head)
    }

    /// Calls a method of a worker whose answer has a body, to be [read](Incoming::read_into) into memory that
    /// is made for it.
    pub fn open(
        &self,
        worker: usize,
        method: &str,
        request: impl Into<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Incoming> {
        self.check_running(method)?;
        let (deadline, patience) = self.deadline(timeout);
        let answer = self.0.peers.open(worker, method, request.into(), patience);
        match block_until(deadline, answer) {
            Some(answer) => Ok(Incoming::new(self, worker, method, answer?, (deadline, patience))),
            None => Err(self.0.peers.timed_out(worker, method, patience)),
        }
    }

    /// Owns an object: from now on it has a number, and can be [shared](OwnerRef::share).
    pub fn own<T: Object>(&self, object: Arc<T>) -> Result<OwnerRef<T>> {
        self.check_running("own")?;
        Ok(OwnerRef::new(self.id(), &self.0.served.objects, object))
    }

    /// Takes a reference that another worker has shared with this one. Each share is adopted once.
    pub fn adopt(&self, share: Share) -> Result<UserRef> {
        self.check_running("adopt")?;
        UserRef::new(self, share)
    }

    /// Objects of this worker that somebody has: itself, or another worker.
    pub fn owned(&self) -> usize {
        self.0.served.objects.n_objects()
    }

    /// References that other workers have to objects of this one.
    pub fn forks(&self) -> usize {
        self.0.served.objects.n_forks()
    }

    /// References that this worker has to objects of others.
    pub fn references(&self) -> usize {
        usize::try_from(self.0.references.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Takes back all references that a worker has to objects of this one, and says how many there were: for a
    /// worker that is [lost](Error::Lost) and will not come back to drop them. Should it come back after all, its
    /// references are to [objects that there are not](Error::NoSuchObject).
    pub fn reclaim(&self, worker: usize) -> Result<usize> {
        self.check_running("reclaim")?;
        self.worker_by_id(worker)?;
        Ok(self.0.served.objects.reclaim(worker))
    }

    /// Returns when the owners of all references that were dropped here know it, or do not answer. Those are told
    /// as long as this agent lives, without anybody waiting for it.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<()> {
        const OP: &str = "flush";
        self.check_running(OP)?;
        let (deadline, patience) = self.deadline(timeout);
        match block_until(deadline, self.0.deletes.flushed()) {
            Some(()) => Ok(()),
            None => Err(self.unflushed(patience)),
        }
    }

    /// Stops at once, without a word to the others: their calls fail. Everything that is asked of this agent
    /// later is [`Error::ShutDown`].
    pub fn shutdown_now(&self) {
        self.0.stop();
    }

    pub(crate) fn check_running(&self, op: &str) -> Result<()> {
        match self.0.is_stopped.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::ShutDown { op: op.into(), worker: self.me().name.clone() }),
        }
    }

    /// When a wait ends that begins now.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> (Instant, Duration) {
        let (now, longest) = (Instant::now(), self.options().timeout);
        let patience = timeout.unwrap_or(longest);
        match now.checked_add(patience) {
            Some(deadline) => (deadline, patience),
            // Longer than there is time.
            None => (now + longest, longest),
        }
    }

    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.0.served
    }

    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.0.peers
    }

    pub(crate) fn deletes(&self) -> &Deletes {
        &self.0.deletes
    }

    pub(crate) fn counted_reference(&self, change: isize) {
        self.0.references.fetch_add(change, Ordering::Relaxed);
    }

    /// Owners do not answer that they have heard of references that were dropped here.
    pub(crate) fn unflushed(&self, waited: Duration) -> Error {
        let n_dropped = self.0.deletes.n_outstanding();
        let what = format!("flush of {n_dropped} dropped references");
        self.0.peers.timed_out(self.id(), &what, waited)
    }

    /// What tasks are started on, unless it is stopped.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        let runtime = self.0.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.as_ref().map(|runtime| runtime.handle().clone())
    }
}

impl Inner {
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(runtime);
        self.served.objects.clear();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("me", self.me())
            .field("workers", &self.workers().len())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
