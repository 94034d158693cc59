//! The caller's side of a call.

use std::{
    error::{self, Error as _},
    sync::OnceLock,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, uri::PathAndQuery};
use tokio::{runtime::Handle, time};
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use crate::{
    Error, Options, RefId, Result, Secret,
    codec::Raw,
    control,
    proof::Proof,
    wire::{self, First},
    worker::Workers,
};

/// How much a stream may have on its way that nobody has taken yet: enough that a fast reader never waits for
/// the permission to send.
const STREAM_WINDOW: u32 = 8 << 20;
/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// The longest piece that a connection moves at once. Larger ones cost fewer headers and wake-ups.
const FRAME: u32 = 1 << 20;

/// The other workers, each with a connection that is made when it is first needed, and again when it was
/// lost.
pub(crate) struct Peers {
    me: usize,
    workers: Workers,
    channels: Vec<OnceLock<Channel>>,
    runtime: Handle,
    secret: Secret,
    options: Options,
}

/// An answer of which the head is here.
pub(crate) struct Answer {
    pub(crate) head: Bytes,
    pub(crate) body_length: u64,
    pub(crate) body: Streaming<Bytes>,
}

impl Peers {
    pub(crate) fn new(
        me: usize,
        workers: Workers,
        runtime: Handle,
        secret: Secret,
        options: Options,
    ) -> Peers {
        let channels = workers.all().iter().map(|_| OnceLock::new()).collect();
        Peers { me, workers, channels, runtime, secret, options }
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Calls a method, and returns when the head of the answer is here. It is for the caller to bound the
    /// wait.
    pub(crate) async fn open(
        &self,
        worker: usize,
        method: &str,
        request: Bytes,
        patience: Duration,
    ) -> Result<Answer> {
        let name = || self.name(worker);
        let limit = self.options.max_message;
        if request.len() > limit {
            let (bytes, limit) = (request.len() as u64, limit as u64);
            return Err(Error::TooLarge { worker: name(), method: method.into(), bytes, limit });
        }
        let bad_method = || Error::BadMethod { method: method.into() };
        let path = PathAndQuery::try_from(format!("{}{method}", wire::PATH)).ok();
        let path = path.filter(|_| wire::is_method(method)).ok_or_else(bad_method)?;
        let failed = |status: Status| self.error(worker, method, &status);
        // A first message has a head, the others are pieces of a body.
        let longest = Options::LONGEST_CHUNK.max(limit) + wire::PREFIX;
        let mut grpc = Grpc::new(self.channel(worker)?).max_decoding_message_size(longest);
        grpc.ready().await.map_err(|error| lost(name(), &error))?;
        let (request, proof) = self.signed(worker, &path, request, patience)?;
        let unproven = |status: Status| self.refusal(worker, method, &status, proof);
        let answer = grpc.server_streaming(request, path, Raw).await.map_err(unproven)?;
        if !proof.is_shown_by(answer.metadata().as_ref()) {
            return Err(self.impostor(worker));
        }
        let mut body = answer.into_inner();
        let first = body.message().await.map_err(failed)?.and_then(wire::read_first);
        match first {
            Some(First::Reply { head, .. }) if head.len() > limit => {
                let (bytes, limit) = (head.len() as u64, limit as u64);
                Err(Error::TooLarge { worker: name(), method: method.into(), bytes, limit })
            }
            Some(First::Reply { body: body_length, head }) => {
                Ok(Answer { head, body_length, body })
            }
            Some(First::Failed(message)) => Err(Error::Remote {
                worker: name(),
                method: method.into(),
                message: message.into(),
            }),
            Some(First::NoSuchObject(local_id)) => {
                let id = RefId { created_on: worker, local_id };
                Err(Error::NoSuchObject { worker: name(), id })
            }
            None => Err(Error::BadAnswer {
                worker: name(),
                method: method.into(),
                what: "the answer has no beginning".into(),
            }),
        }
    }

    /// A call that every worker answers at once. Only within the runtime, whose clock it needs.
    pub(crate) async fn control(
        &self,
        worker: usize,
        method: control::Method,
        request: Bytes,
    ) -> Result<Bytes> {
        let (method, patience) = (method.name(), self.options.timeout);
        match time::timeout(patience, self.open(worker, method, request, patience)).await {
            Ok(answer) => answer.map(|answer| answer.head),
            Err(_) => Err(self.timed_out(worker, method, patience)),
        }
    }

    pub(crate) fn timed_out(&self, worker: usize, method: &str, waited: Duration) -> Error {
        Error::TimedOut { worker: self.name(worker), method: method.into(), waited }
    }

    /// What a status says of a worker.
    pub(crate) fn error(&self, worker: usize, method: &str, status: &Status) -> Error {
        let (worker, method) = (self.name(worker), method.into());
        match status.code() {
            Code::Unauthenticated => Error::Refused { worker },
            Code::Unimplemented => Error::NoSuchMethod { worker, method },
            Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument => {
                Error::RefusedMessage { worker, method, why: status.message().into() }
            }
            _ => lost(worker, status),
        }
    }

    pub(crate) fn name(&self, worker: usize) -> Box<str> {
        match self.workers.by_id(worker) {
            Ok(info) => info.name.clone(),
            Err(_) => worker.to_string().into(),
        }
    }

    /// What an answer says that has no body. It says nothing if it does not show the secret, except that the
    /// caller has not shown it either, or that nobody was there to answer.
    fn refusal(&self, worker: usize, method: &str, status: &Status, proof: Proof) -> Error {
        let is_proven = proof.is_shown_by(status.metadata().as_ref());
        match status.code() {
            Code::Unauthenticated => Error::Refused { worker: self.name(worker) },
            _ if is_proven => self.error(worker, method, status),
            // Of the connection, and not of what came over it.
            _ if status.source().is_some() => lost(self.name(worker), status),
            _ => self.impostor(worker),
        }
    }

    /// Lost, because who is there is somebody else.
    fn impostor(&self, worker: usize) -> Error {
        let why = "who answers at its address does not know the secret of the run";
        Error::Lost { worker: self.name(worker), why: why.into() }
    }

    /// The request, which says who calls, and that it may; and what the answer has to show.
    fn signed(
        &self,
        worker: usize,
        path: &PathAndQuery,
        request: Bytes,
        patience: Duration,
    ) -> Result<(Request<Bytes>, Proof)> {
        let mut headers = HeaderMap::new();
        headers.insert(wire::CALLER, (self.me as u64).into());
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        headers.insert(wire::PATIENCE, patience.into());
        let proof = Proof::sign(&self.secret, worker, path.as_str(), &mut headers)?;
        let mut request = Request::new(request);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        Ok((request, proof))
    }

    fn channel(&self, worker: usize) -> Result<Channel> {
        self.workers.by_id(worker)?;
        if let Some(channel) = self.channels[worker].get() {
            return Ok(channel.clone());
        }
        let endpoint = self.endpoint(worker)?;
        // It has a task that makes the connection, and connects when it is first used.
        let _runtime = self.runtime.enter();
        Ok(self.channels[worker].get_or_init(|| endpoint.connect_lazy()).clone())
    }

    fn endpoint(&self, worker: usize) -> Result<Endpoint> {
        let address = self.workers.addresses()[worker];
        let Options { timeout, keepalive, .. } = self.options;
        let endpoint = Endpoint::from_shared(format!("{}://{address}", self.scheme()))
            .map_err(|error| lost(self.name(worker), &error))?
            .connect_timeout(timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(keepalive)
            .keep_alive_timeout(keepalive)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.options.tls {
            return tls.for_client(endpoint);
        }
        Ok(endpoint)
    }

    fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.options.tls.is_some() {
            return "https";
        }
        "http"
    }
}

/// An error with all of its causes.
pub(crate) fn in_full(error: &(dyn error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

fn lost(worker: Box<str>, why: &(dyn error::Error + 'static)) -> Error {
    Error::Lost { worker, why: in_full(why).into() }
}
