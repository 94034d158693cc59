//! Whoever else finds the port.

use std::{
    future::pending,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use dtensor_rpc::{Error, Options, Reply, Secret, init_rpc_with_addresses};
use http::uri::PathAndQuery;
use proptest::prelude::*;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Endpoint,
};

use crate::support::{echoing, free_addresses, hasty, spmd, worker};

#[test]
fn a_request_without_the_secret_is_refused_before_its_body_is_read() {
    spmd(2, |world| {
        let agent = worker(world, Options::default())?;
        let n_called = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_called);
        agent.register("count", move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Reply::default())
        })?;
        world.group().barrier()?;
        if world.rank() == 0 {
            let address = agent.address();
            let guess = "0".repeat(64);
            for secret in [None, Some(""), Some("0"), Some(&*guess)] {
                for method in ["count", "rpc.delete", "nothing"] {
                    // Of the body not one byte is ever sent: who waited for it would wait for ever.
                    let status = without_a_body(address, method, secret);
                    assert_eq!(status.code(), Code::Unauthenticated, "{secret:?} {status}");
                }
            }
        }
        world.group().barrier()?;
        assert_eq!(n_called.load(Ordering::Relaxed), 0);
        world.group().barrier()?;
        agent.call(1 - world.rank(), "count", "", None)?;
        world.group().barrier()?;
        assert_eq!(n_called.load(Ordering::Relaxed), 1);
        Ok(agent.shutdown()?)
    });
}

#[test]
fn workers_of_different_runs_refuse_each_other() {
    let addresses = free_addresses(2);
    spmd(2, |world| {
        let id = world.rank();
        let met =
            init_rpc_with_addresses(&format!("w{id}"), id, &addresses, Secret::random()?, hasty());
        world.group().barrier()?;
        let error = met.unwrap_err();
        // Unless the other was gone before it was asked.
        assert!(matches!(error, Error::Refused { .. } | Error::Missing { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn garbage_on_the_port_does_no_harm() {
    spmd(2, |world| {
        let agent = echoing(world, Options::default())?;
        if world.rank() == 0 {
            let address = agent.address();
            let config = ProptestConfig {
                cases: 96,
                failure_persistence: None,
                ..ProptestConfig::default()
            };
            let bytes = (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..600));
            let mut runner = proptest::test_runner::TestRunner::new(config);
            let tried = runner.run(&bytes, |(speaks_http, bytes)| {
                throw(address, speaks_http, &bytes);
                Ok(())
            });
            tried.map_err(|error| error.to_string())?;
            // A frame of HTTP/2 that announces more than there is, and headers without an end.
            throw(address, true, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
            throw(address, true, &[0, 0, 4, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
            assert_eq!(agent.call(0, "echo", "still here", None)?, "still here");
        }
        world.group().barrier()?;
        assert_eq!(agent.call(1 - world.rank(), "echo", "and here", None)?, "and here");
        Ok(agent.shutdown()?)
    });
}

#[test]
fn who_connects_and_says_nothing_keeps_nobody_from_calling() {
    spmd(2, |world| {
        let agent = echoing(world, Options::default())?;
        let silent: Vec<TcpStream> =
            (0..50).map(|_| TcpStream::connect(agent.address()).unwrap()).collect();
        world.group().barrier()?;
        assert_eq!(agent.call(1 - world.rank(), "echo", "x", None)?, "x");
        drop(silent);
        Ok(agent.shutdown()?)
    });
}

/// Without a greeting there are no pings either, and nobody who would notice.
#[test]
fn who_does_not_show_the_secret_is_hung_up_on_and_workers_are_not() {
    spmd(2, |world| {
        let agent = worker(world, hasty())?;
        let address = agent.address();
        agent.register("wait", move |_, _| {
            // Later than the call that waits for this: when they are hung up on, it would be as well.
            hung_up_on(address, b"");
            hung_up_on(address, GREETING);
            hung_up_on(address, &GREETING[..5]);
            Ok(Reply::new("done"))
        })?;
        world.group().barrier()?;
        let long = Some(Duration::from_secs(50));
        assert_eq!(agent.call(1 - world.rank(), "wait", "", long)?, "done");
        world.group().barrier()?;
        agent.shutdown_now();
        Ok(())
    });
}

/// The greeting of HTTP/2, and settings that set nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns when the other side hangs up.
fn hung_up_on(address: SocketAddr, said: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    stream.write_all(said).unwrap();
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("still connected: {error}"),
        }
    }
}

/// Writes bytes, after the greeting of HTTP/2 or without it, and waits until the worker hangs up or a moment
/// has passed.
fn throw(address: SocketAddr, speaks_http: bool, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let greeting = if speaks_http { GREETING } else { b"" };
    // The worker may hang up at any time.
    let _ = stream.write_all(greeting).and_then(|()| stream.write_all(bytes));
    let _ = stream.read(&mut [0; 64]);
}

/// What a worker says to a request whose body never comes.
fn without_a_body(address: SocketAddr, method: &str, secret: Option<&str>) -> Status {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path: PathAndQuery = format!("/dtensor.Rpc/{method}").parse().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let mut request = Request::new(Never);
        if let Some(secret) = secret {
            request.metadata_mut().insert("dtensor-secret", secret.parse().unwrap());
        }
        request.metadata_mut().insert("dtensor-worker", 1.into());
        let answer = grpc.streaming(request, path, Raw);
        let answer = tokio::time::timeout(Duration::from_secs(30), answer).await;
        answer.expect("the worker waits for the body").expect_err("the worker answered")
    })
}

/// A stream of messages that has none, and no end.
struct Never;

impl tokio_stream::Stream for Never {
    type Item = Bytes;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Bytes>> {
        std::pin::pin!(pending()).poll(context)
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
