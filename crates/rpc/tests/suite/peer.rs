//! Whoever speaks like a worker and is none. It is built from the description of the form alone.

use std::{
    future::pending,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes};
use dtensor_rpc::{Agent, Options, Secret, init_rpc_with_addresses};
use http::{HeaderMap, HeaderName, HeaderValue, uri::PathAndQuery};
use tokio::runtime::{Builder, Runtime};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataMap,
    server,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower_service::Service;

use crate::support::free_addresses;

/// The first message of a reply without a head and a body.
pub const EMPTY: &[u8] = &[0; 9];

/// What a request, or the answer to one, shows: `says` is `request` or `answer`.
pub fn proof(
    secret: &Secret,
    says: &str,
    callee: usize,
    path: &str,
    headers: &HeaderMap,
) -> String {
    let mut hasher = blake3::Hasher::new_keyed(secret.as_bytes());
    hasher.update(format!("dtensor-rpc {says}").as_bytes());
    hasher.update(&(callee as u64).to_le_bytes());
    let header = |name| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    for part in [path.as_bytes(), header("dtensor-worker"), header("dtensor-nonce")] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize().to_hex().to_string()
}

/// The headers of a request of one who knows the secret.
pub fn signed(secret: &Secret, callee: usize, caller: &str, path: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(caller) = HeaderValue::from_str(caller) {
        headers.insert("dtensor-worker", caller);
    }
    headers.insert("dtensor-nonce", HeaderValue::from_static("once"));
    let proof = proof(secret, "request", callee, path, &headers);
    headers.insert("dtensor-proof", proof.parse().unwrap());
    headers
}

/// All messages of an answer, or what it was refused with.
pub async fn ask(
    channel: Channel,
    path: &str,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<Vec<Bytes>, Code> {
    let mut grpc = client::Grpc::new(channel);
    grpc.ready().await.map_err(|_| Code::Unavailable)?;
    let mut request = Request::new(Bytes::from(body));
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    let path: PathAndQuery = path.parse().unwrap();
    let answer = grpc.server_streaming(request, path, Raw).await;
    let mut stream = answer.map_err(|status| status.code())?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| status.code())? {
        messages.push(message);
    }
    Ok(messages)
}

/// The same, on a connection of its own.
pub fn ask_once(address: SocketAddr, path: &str, headers: HeaderMap) -> Result<Vec<Bytes>, Code> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        ask(endpoint.connect_lazy(), path, headers, Vec::new()).await
    })
}

/// A server at the address of a worker. It is gone when it is dropped.
pub struct Peer {
    heard: Heard,
    runtime: Option<Runtime>,
}

/// What it answers to a method; `None` is never to answer.
type Says = dyn Fn(&str) -> Option<Result<Bytes, Status>> + Send + Sync;
/// Paths and headers of requests.
type Heard = Arc<Mutex<Vec<(String, HeaderMap)>>>;

impl Peer {
    /// One that knows the secret, or does not.
    pub fn listen(
        address: SocketAddr,
        id: usize,
        secret: Option<Secret>,
        says: impl Fn(&str) -> Option<Result<Bytes, Status>> + Send + Sync + 'static,
    ) -> Peer {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = bind(address);
        listener.set_nonblocking(true).unwrap();
        let heard = Heard::default();
        let service = PeerService { id, secret, says: Arc::new(says), heard: Arc::clone(&heard) };
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let served =
                Server::builder().serve_with_incoming(service, TcpIncoming::from(listener));
            served.await
        });
        Peer { heard, runtime: Some(runtime) }
    }

    pub fn heard(&self) -> Vec<(String, HeaderMap)> {
        self.heard.lock().unwrap().clone()
    }

    /// How often it was asked for a method.
    pub fn n_heard(&self, method: &str) -> usize {
        self.heard.lock().unwrap().iter().filter(|(path, _)| path.ends_with(method)).count()
    }

    /// The only worker besides worker 0, which is real. `says` is asked for what workers do not say when they meet.
    pub fn beside(
        options: Options,
        says: impl Fn(&str) -> Option<Result<Bytes, Status>> + Send + Sync + 'static,
    ) -> (Agent, Peer, Secret) {
        let (addresses, secret) = (free_addresses(2), Secret::random().unwrap());
        let peer =
            Peer::listen(addresses[1], 1, Some(secret.clone()), move |method| match method {
                "rpc.hello" => {
                    Some(Ok([EMPTY, br#"{"worker":{"id":1,"name":"peer"}}"#].concat().into()))
                }
                "rpc.met" => Some(Ok(EMPTY.into())),
                other => says(other),
            });
        let (address, other) = (addresses[0], secret.clone());
        let met = thread::spawn(move || say(address, &other, "rpc.met"));
        let made = init_rpc_with_addresses("real", 0, &addresses, secret.clone(), options);
        met.join().unwrap();
        (made.unwrap(), peer, secret)
    }
}

/// Tells worker 0, as worker 1, until it hears.
pub fn say(address: SocketAddr, secret: &Secret, method: &str) {
    let path = format!("/dtensor.Rpc/{method}");
    let patience = Instant::now() + Duration::from_secs(30);
    while ask_once(address, &path, signed(secret, 0, "1", &path)).is_err() {
        assert!(Instant::now() < patience, "nobody hears {method}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A worker that was there a moment ago may not be quite gone.
fn bind(address: SocketAddr) -> TcpListener {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct PeerService {
    id: usize,
    secret: Option<Secret>,
    says: Arc<Says>,
    heard: Heard,
}

impl Service<http::Request<Body>> for PeerService {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (path, headers) = (request.uri().path().to_string(), request.headers().clone());
        self.heard.lock().unwrap().push((path.clone(), headers.clone()));
        // Who does not know the secret has to guess.
        let secret = self.secret.clone().unwrap_or_else(|| Secret::random().unwrap());
        let shown = proof(&secret, "answer", self.id, &path, &headers);
        let said = (self.says)(path.trim_start_matches("/dtensor.Rpc/"));
        Box::pin(async move {
            let mut response = match said {
                None => pending().await,
                Some(Ok(message)) => server::Grpc::new(Raw).unary(Said(message), request).await,
                Some(Err(status)) => status.into_http(),
            };
            let name = HeaderName::from_static("dtensor-proof");
            response.headers_mut().insert(name, shown.parse().unwrap());
            Ok(response)
        })
    }
}

struct Said(Bytes);

impl server::UnaryService<Bytes> for Said {
    type Response = Bytes;
    type Future = std::future::Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.clone())))
    }
}

#[derive(Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
