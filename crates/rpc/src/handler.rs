//! What a worker does when it is called.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    Error, RefId, Result, WorkerInfo,
    refs::{Object, Objects},
    wire,
};

/// The answer to a call: a head, which is small, and a body, which may be large.
///
/// A body is sent in pieces, straight from the memory that its [`Bytes`] share, and received into memory that
/// the caller has ready.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(crate) head: Bytes,
    pub(crate) body: Vec<Bytes>,
}

impl Reply {
    /// An answer without a body.
    pub fn new(head: impl Into<Bytes>) -> Reply {
        Reply { head: head.into(), body: Vec::new() }
    }

    /// The same with a body: the segments, one after the other.
    #[must_use]
    pub fn with_body(self, segments: impl IntoIterator<Item = Bytes>) -> Reply {
        Reply { body: segments.into_iter().collect(), ..self }
    }

    pub(crate) fn body_length(&self) -> u64 {
        self.body.iter().map(|segment| segment.len() as u64).sum()
    }
}

/// Why a handler gives no answer. The caller gets it as [`Error::Remote`] or [`Error::NoSuchObject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub(crate) FailureKind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Failed(Box<str>),
    NoSuchObject(u64),
}

impl Failure {
    /// In words.
    pub fn new(text: impl fmt::Display) -> Failure {
        Failure(FailureKind::Failed(text.to_string().into()))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}

/// What a handler knows besides the request.
pub struct CallContext<'a> {
    pub(crate) me: &'a WorkerInfo,
    pub(crate) caller: usize,
    pub(crate) deadline: Instant,
    pub(crate) objects: &'a Objects,
}

impl CallContext<'_> {
    /// The worker that is called.
    pub fn me(&self) -> &WorkerInfo {
        self.me
    }

    /// The worker that calls, by its own account.
    pub fn caller(&self) -> usize {
        self.caller
    }

    /// How long the caller still waits. What takes longer is for nobody.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// An object that this worker [owns](crate::Agent::own), by its number.
    pub fn object<T: Object>(&self, id: RefId) -> Result<Arc<T>, Failure> {
        let missing = Failure(FailureKind::NoSuchObject(id.local_id));
        if id.created_on != self.me.id {
            return Err(missing);
        }
        self.objects.get(id.local_id).and_then(|any| any.downcast().ok()).ok_or(missing)
    }
}

pub(crate) type Handler = dyn Fn(&CallContext<'_>, Bytes) -> Result<Reply, Failure> + Send + Sync;

/// Handlers by the names of their methods.
#[derive(Default)]
pub(crate) struct Handlers(RwLock<HashMap<Box<str>, Arc<Handler>>>);

impl Handlers {
    /// Whether the method was free. One that has a handler keeps it.
    pub(crate) fn add(&self, method: &str, handler: Arc<Handler>) -> Result<bool> {
        if !wire::is_method(method) {
            return Err(Error::BadMethod { method: method.into() });
        }
        let mut handlers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if handlers.contains_key(method) {
            return Ok(false);
        }
        handlers.insert(method.into(), handler);
        Ok(true)
    }

    pub(crate) fn get(&self, method: &str) -> Option<Arc<Handler>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(method).cloned()
    }
}
