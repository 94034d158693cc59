//! Everything that can be wrong with calls between workers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use dtensor_comm::CommError;
use serde::{Deserialize, Serialize};

use crate::RefId;

/// What a call gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call gave no result.
///
/// What is wrong when workers [meet](crate::init_rpc) is the same error on all of them. What goes wrong with
/// one worker later names that worker, and the others can still be called.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// A name that no worker can have.
    #[error(
        "the worker name `{name}` {why}; use letters, digits, `-`, `_` and `:`, fewer than 128 in all"
    )]
    BadName {
        /// The name.
        name: Box<str>,
        /// What is wrong with it.
        why: Box<str>,
    },
    /// Two workers of one name.
    #[error("the workers {first} and {second} are both named `{name}`; give each its own name")]
    DuplicateName {
        /// The name.
        name: Box<str>,
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
    },
    /// Options that cannot be.
    #[error("options: {what}")]
    BadOptions {
        /// What is wrong with them.
        what: Box<str>,
    },
    /// An address that others can reach, without encryption.
    #[error(
        "{address} is no loopback address, and what is sent there is not encrypted; configure TLS, or allow it with \
         `allow_plaintext`"
    )]
    Plaintext {
        /// The address.
        address: SocketAddr,
    },
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {why}")]
    CannotBind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        why: Box<str>,
    },
    /// The operating system gave no random bytes, or no threads.
    #[error("the operating system gives no random bytes: {why}")]
    NoRandomBytes {
        /// Why not.
        why: Box<str>,
    },
    /// Threads or connections that could not be made ready.
    #[error("cannot start: {why}")]
    CannotStart {
        /// Why not.
        why: Box<str>,
    },
    /// What was wrong with one worker when they met; the same error on all.
    #[error("worker {id}: {error}")]
    OnWorker {
        /// The worker.
        id: usize,
        /// What was wrong.
        error: Box<Error>,
    },
    /// Workers that did not come in time.
    #[error("{op}: after {waited:?} the workers {missing:?} have not come")]
    Missing {
        /// What the workers do together.
        op: Box<str>,
        /// Their ids.
        missing: Box<[usize]>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The ranks could not tell each other who they are.
    #[error("init_rpc: {source}")]
    #[serde(skip)]
    Comm {
        /// What happened.
        source: Arc<CommError>,
    },
    /// An error of the ranks, that another one tells.
    #[error("{text}")]
    Told {
        /// Its text.
        text: Box<str>,
    },

    /// The name of nobody.
    #[error("there is no worker named `{name}`")]
    NoSuchWorker {
        /// The name.
        name: Box<str>,
    },
    /// The number of nobody.
    #[error("there is no worker {id} among {size}; they count from 0")]
    NoSuchId {
        /// The number.
        id: usize,
        /// How many workers there are.
        size: usize,
    },
    /// A method whose name cannot be sent.
    #[error(
        "the method name `{method}` has other characters than letters, digits, `.`, `-` and `_`, or none"
    )]
    BadMethod {
        /// The name.
        method: Box<str>,
    },
    /// A method that the worker does not have.
    #[error("worker {worker} has no method `{method}`; register it there first")]
    NoSuchMethod {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
    },
    /// The worker does not know this one.
    #[error("worker {worker} refused the call: it belongs to another run, or has another number")]
    Refused {
        /// The worker.
        worker: Box<str>,
    },
    /// A message that is longer than allowed.
    #[error(
        "{method} of worker {worker}: a message of {bytes} bytes is longer than the limit of {limit}; send large data as a body"
    )]
    TooLarge {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A message that the worker found longer than it allows.
    #[error("{method} of worker {worker}: {why}")]
    RefusedMessage {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
        /// What it says.
        why: Box<str>,
    },
    /// The worker is gone, or was never there.
    #[error("worker {worker} cannot be reached: {why}")]
    Lost {
        /// The worker.
        worker: Box<str>,
        /// What the connection says.
        why: Box<str>,
    },
    /// No answer in time.
    #[error("{method} of worker {worker}: no answer within {waited:?}")]
    TimedOut {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
        /// The time that was allowed.
        waited: Duration,
    },
    /// What the method failed with, over there.
    #[error("{method} failed on worker {worker}: {message}")]
    Remote {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
        /// Its own words.
        message: Box<str>,
    },
    /// An object that its owner no longer has.
    #[error("worker {worker} has no object {id}: it was deleted")]
    NoSuchObject {
        /// The owner.
        worker: Box<str>,
        /// The object.
        id: RefId,
    },
    /// An answer that does not keep to its own announcement.
    #[error("{method} of worker {worker}: {what}")]
    BadAnswer {
        /// The worker.
        worker: Box<str>,
        /// The method.
        method: Box<str>,
        /// What is wrong with it.
        what: Box<str>,
    },
    /// A share of an object that this worker cannot take.
    #[error("a reference to {id} cannot be adopted: {why}")]
    BadShare {
        /// The object.
        id: RefId,
        /// Why not.
        why: Box<str>,
    },
    /// A call on an agent that was shut down.
    #[error("{op}: the agent of worker {worker} was shut down")]
    ShutDown {
        /// What was asked.
        op: Box<str>,
        /// This worker.
        worker: Box<str>,
    },
}

impl Error {
    /// What went wrong, whichever worker it was on when they met.
    pub fn cause(&self) -> &Error {
        match self {
            Error::OnWorker { error, .. } => error.cause(),
            other => other,
        }
    }

    pub(crate) fn comm(source: CommError) -> Error {
        Error::Comm { source: Arc::new(source) }
    }

    /// The same in a form that can be sent.
    pub(crate) fn told(self) -> Error {
        match self {
            Error::Comm { .. } => Error::Told { text: self.to_string().into() },
            other => other,
        }
    }
}
