//! The server's side of a call.

use std::{
    convert::Infallible,
    future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::task::spawn_blocking;
use tokio_stream::Stream;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc, ServerStreamingService},
};
use tower_service::Service;

use crate::{
    CallContext, Failure, Options, Reply, Secret, WorkerInfo,
    accept::Admission,
    codec::Raw,
    control,
    handler::{FailureKind, Handler, Handlers},
    proof::Proof,
    refs::Objects,
    together::Gathering,
    wire,
};

/// What every call to a worker has before it.
pub(crate) struct Served {
    pub(crate) me: WorkerInfo,
    /// How many workers there are, this one among them.
    pub(crate) n_workers: usize,
    pub(crate) secret: Secret,
    pub(crate) options: Options,
    pub(crate) handlers: Handlers,
    pub(crate) objects: Arc<Objects>,
    /// The workers that know the names of all.
    pub(crate) met: Gathering,
    /// The workers that leave.
    pub(crate) leaving: Gathering,
}

impl Served {
    /// Who has said by this method that it takes part.
    pub(crate) fn gathering(&self, method: control::Method) -> Option<&Gathering> {
        match method {
            control::Method::Met => Some(&self.met),
            control::Method::Leave => Some(&self.leaving),
            control::Method::Hello | control::Method::Delete => None,
        }
    }
}

/// One service for all methods.
#[derive(Clone)]
pub(crate) struct RpcService(pub(crate) Arc<Served>);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl Service<http::Request<Body>> for RpcService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// The body of a request is not looked at before it is known that a worker of this run sends it, and for
    /// a method that there is.
    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (me, path, headers) = (self.0.me.id, request.uri().path(), request.headers());
        let Some(proof) = Proof::of_request(&self.0.secret, me, path, headers) else {
            let refused =
                Status::unauthenticated("not a worker of this run, or not called by its number");
            return Box::pin(future::ready(Ok(refused.into_http())));
        };
        if let Some(connection) = request.extensions().get::<Admission>() {
            connection.admit();
        }
        let call = Call::new(&self.0, &request);
        Box::pin(async move {
            let mut response = match call {
                Err(status) => status.into_http(),
                Ok(call) => {
                    let limit = call.served.options.max_message;
                    let mut grpc = Grpc::new(Raw).max_decoding_message_size(limit);
                    grpc.server_streaming(call, request).await
                }
            };
            proof.show(response.headers_mut());
            Ok(response)
        })
    }
}

/// A call that may be answered.
struct Call {
    served: Arc<Served>,
    method: Method,
    caller: usize,
    deadline: Instant,
}

#[derive(Clone)]
enum Method {
    Control(control::Method),
    Handler(Arc<Handler>),
}

impl Call {
    /// Judged by the head of the request alone.
    fn new(served: &Arc<Served>, request: &http::Request<Body>) -> Result<Call, Status> {
        let number = |name: &str| request.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let caller = number(wire::CALLER).and_then(|caller| usize::try_from(caller).ok());
        let caller = caller.filter(|caller| *caller < served.n_workers);
        let caller =
            caller.ok_or_else(|| Status::invalid_argument("the caller has no worker's number"))?;
        let longest = served.options.timeout;
        let patience = number(wire::PATIENCE).map_or(longest, Duration::from_millis);
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now + longest);
        let method = request.uri().path().strip_prefix(wire::PATH).and_then(|method| {
            let control = control::Method::of(method).map(Method::Control);
            control.or_else(|| served.handlers.get(method).map(Method::Handler))
        });
        let method = method.ok_or_else(|| Status::unimplemented("there is no such method"))?;
        Ok(Call { served: Arc::clone(served), method, caller, deadline })
    }
}

impl ServerStreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (served, method) = (Arc::clone(&self.served), self.method.clone());
        let (caller, deadline, request) = (self.caller, self.deadline, request.into_inner());
        Box::pin(async move {
            let Options { chunk, max_message, .. } = served.options;
            let answer = match method {
                // At once, whatever the handlers are doing.
                Method::Control(method) => method.answer(&served, caller, &request),
                Method::Handler(handler) => {
                    // Handlers may compute and wait, which the threads that move messages must not.
                    let run = move || {
                        let Served { me, objects, .. } = &*served;
                        let context = CallContext { me, caller, deadline, objects };
                        handler(&context, request)
                    };
                    spawn_blocking(run).await.unwrap_or_else(|error| Err(ended(error)))
                }
            };
            let answer = bounded(answer, max_message);
            let first = wire::first_message(&answer);
            let body = wire::pieces(answer.map(|reply| reply.body).unwrap_or_default(), chunk);
            let messages = std::iter::once(first).chain(body).map(Ok);
            let messages: Answers = Box::pin(tokio_stream::iter(messages));
            Ok(Response::new(messages))
        })
    }
}

/// The same, if its head can be sent; and as much of a text as can be.
fn bounded(answer: Result<Reply, Failure>, limit: usize) -> Result<Reply, Failure> {
    match answer {
        Ok(reply) if reply.head.len() > limit => {
            let length = reply.head.len();
            Err(Failure::new(format!(
                "the head of the reply has {length} bytes, more than {limit}; send them as a body"
            )))
        }
        Err(Failure(FailureKind::Failed(text))) if text.len() > limit => {
            Err(Failure::new(&text[..text.floor_char_boundary(limit)]))
        }
        other => other,
    }
}

/// What became of a handler that did not return.
fn ended(error: tokio::task::JoinError) -> Failure {
    let text = match error.try_into_panic() {
        Err(_) => "the worker is shutting down".to_string(),
        Ok(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("the handler panicked: {}", text.unwrap_or_default())
        }
    };
    Failure::new(text)
}
