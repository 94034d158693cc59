//! Whoever else finds the port.

use std::{
    future::pending,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dtensor_rpc::{Error, Options, Reply, Secret, init_rpc_with_addresses};
use http::uri::PathAndQuery;
use proptest::prelude::*;
use tonic::{Code, Request, Status, client::Grpc, transport::Endpoint};

use crate::{
    peer::{Peer, Raw, ask_once},
    support::{echoing, free_addresses, hasty, spmd, worker},
};

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
            for proof in [None, Some(""), Some("0"), Some(&*guess)] {
                for method in ["count", "rpc.delete", "nothing"] {
                    // Of the body not one byte is ever sent: who waited for it would wait for ever.
                    let status = without_a_body(address, method, proof);
                    assert_eq!(status.code(), Code::Unauthenticated, "{proof:?} {status}");
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

/// What it hears would be the secret if requests carried it, and then all workers would be its own.
#[test]
fn who_listens_where_a_worker_was_learns_nothing_and_is_not_believed() {
    let (addresses, secret) = (free_addresses(3), Secret::random().unwrap());
    spmd(3, |world| {
        let id = world.rank();
        let name = format!("w{id}");
        let options = Options::default();
        let agent = init_rpc_with_addresses(&name, id, &addresses, secret.clone(), options)?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        if id == 2 {
            agent.shutdown_now();
        }
        world.group().barrier()?;
        if id == 0 {
            let impostor = Peer::listen(addresses[2], 2, None, |method| {
                Some(match method {
                    "echo" => Ok(Bytes::from_static(b"\0\0\0\0\0\0\0\0\0forged")),
                    "absent" => Err(Status::unimplemented("forged")),
                    "refused" => Err(Status::invalid_argument("forged")),
                    _ => Err(Status::unavailable("forged")),
                })
            });
            for method in ["echo", "absent", "refused", "other"] {
                // The first calls may find the end of the old connection.
                let error = loop {
                    let error = agent.call(2, method, "x", None).unwrap_err();
                    if impostor.n_heard(method) > 0 {
                        break error;
                    }
                };
                let Error::Lost { worker, why } = &error else { panic!("{method}: {error}") };
                assert_eq!(&**worker, "w2");
                assert!(why.contains("does not know the secret"), "{error}");
            }
            let digits: String = secret.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
            for (path, headers) in impostor.heard() {
                assert!(headers.values().all(|value| value.as_bytes() != digits.as_bytes()));
                // The same again, to workers that are still there.
                for address in &addresses[..2] {
                    let said = ask_once(*address, &path, headers.clone());
                    assert_eq!(said, Err(Code::Unauthenticated));
                }
            }
        }
        world.group().barrier()?;
        agent.shutdown_now();
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

/// More than are kept, of a kind that waits as long as it may. Those who are called by workers still answer, also
/// over connections that are made in the crowd.
#[test]
fn a_crowd_that_does_not_show_the_secret_is_thinned_out_and_workers_are_let_in() {
    const CROWD: usize = 400;
    spmd(2, |world| {
        let agent = echoing(world, Options::default())?;
        if world.rank() == 0 {
            assert_eq!(agent.call(1, "echo", "before", None)?, "before");
        }
        let crowd: Vec<TcpStream> = (0..CROWD)
            .map(|_| {
                let mut stream = TcpStream::connect(agent.address())?;
                stream.write_all(GREETING)?;
                Ok(stream)
            })
            .collect::<io::Result<_>>()?;
        world.group().barrier()?;
        // Of rank 0 over its old connection, of rank 1 over a new one.
        assert_eq!(agent.call(1 - world.rank(), "echo", "within", None)?, "within");
        for stream in &crowd[..100] {
            until_hung_up(stream);
        }
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
pub const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns when the other side hangs up.
pub fn hung_up_on(address: SocketAddr, said: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(said).unwrap();
    until_hung_up(&stream);
}

fn until_hung_up(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
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
pub fn throw(address: SocketAddr, speaks_http: bool, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let greeting = if speaks_http { GREETING } else { b"" };
    // The worker may hang up at any time.
    let _ = stream.write_all(greeting).and_then(|()| stream.write_all(bytes));
    let _ = stream.read(&mut [0; 64]);
}

/// What a worker says to a request whose body never comes.
fn without_a_body(address: SocketAddr, method: &str, proof: Option<&str>) -> Status {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path: PathAndQuery = format!("/dtensor.Rpc/{method}").parse().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let mut request = Request::new(Never);
        if let Some(proof) = proof {
            request.metadata_mut().insert("dtensor-proof", proof.parse().unwrap());
        }
        request.metadata_mut().insert("dtensor-nonce", "once".parse().unwrap());
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
