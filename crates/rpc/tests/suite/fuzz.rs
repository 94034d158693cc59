//! Whoever knows the secret, and says anything.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use dtensor_rpc::{
    Agent, CallContext, Failure, Options, RefId, Reply, Secret, init_rpc_with_addresses,
};
use http::{HeaderMap, HeaderValue};
use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};
use tonic::{Code, transport::Endpoint};

use crate::{
    hostile::throw,
    peer::{ask, signed},
    support::{self, free_addresses},
};

/// Requests that were not made by an agent: of every method, with any body, from any caller.
#[test]
fn well_formed_requests_of_anything_get_an_answer_and_do_no_harm() {
    let (agent, secret) = alone().unwrap();
    let owned = agent.own(Arc::new("treasure".to_string())).unwrap();
    // With nobody: what worker 0 says that it no longer has is not this.
    owned.share(&[7]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let channel = runtime.block_on(async {
        Endpoint::from_shared(format!("http://{}", agent.address())).unwrap().connect().await
    });
    let channel = channel.unwrap();
    let config =
        ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let tried = TestRunner::new(config).run(&request(), |(method, caller, body)| {
        let path = format!("/dtensor.Rpc/{method}");
        let headers = signed(&secret, 0, &caller, &path);
        let answered = runtime.block_on(ask(channel.clone(), &path, headers, body));
        match answered {
            // What a handler fails with is an answer, too.
            Ok(_) | Err(Code::InvalidArgument | Code::Unimplemented) => Ok(()),
            // Without a caller there is no proof.
            Err(Code::Unauthenticated) if caller.parse::<HeaderValue>().is_err() => Ok(()),
            Err(code) => Err(TestCaseError::fail(format!("{method}: {code:?}"))),
        }
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
    // The object is still there, and the worker as well.
    let id = serde_json::to_vec(&owned.id()).unwrap();
    assert_eq!(agent.call(0, "text", id, None).unwrap(), "treasure");
    assert_eq!((agent.owned(), agent.forks()), (1, 1));
    agent.shutdown_now();
}

/// Frames of HTTP/2 made by hand: heads as an agent sends them, some with a wrong proof, and after them whatever is no
/// message of gRPC.
#[test]
fn right_heads_and_wrong_bodies_do_no_harm() {
    let (agent, secret) = alone().unwrap();
    let n_guarded = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&n_guarded);
    let count = move |_: &CallContext<'_>, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::default())
    };
    agent.register("guarded", count).unwrap();
    let config =
        ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
    let tried = TestRunner::new(config).run(&frames(), |(knows, method, bodies)| {
        let method = if knows { method } else { "guarded" };
        let path = format!("/dtensor.Rpc/{method}");
        let secret = if knows { secret.clone() } else { Secret::from_bytes([7; 32]) };
        let mut sent = headers(&path, &signed(&secret, 0, "0", &path));
        for (ends, body) in bodies {
            sent.extend(frame(0, u8::from(ends), &body));
        }
        throw(agent.address(), true, &sent);
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
    assert_eq!(agent.call(0, "guarded", "", None).unwrap(), "");
    assert_eq!(n_guarded.load(Ordering::Relaxed), 1);
    // The frames are right: with the proof and a message, which is empty, they are a call.
    let path = "/dtensor.Rpc/guarded";
    let sent = [headers(path, &signed(&secret, 0, "0", path)), frame(0, 1, &[0; 5])].concat();
    while n_guarded.load(Ordering::Relaxed) == 1 {
        throw(agent.address(), true, &sent);
    }
    agent.shutdown_now();
}

/// Whether the secret is known, a method, and the data, each with whether it is the last.
fn frames() -> impl Strategy<Value = (bool, &'static str, Vec<(bool, Vec<u8>)>)> {
    let methods = ["rpc.hello", "rpc.delete", "rpc.met", "rpc.leave", "text"];
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    // Compressed or not, and of a length that may be that of what follows.
    let message = (0_u8..3, prop_oneof![0_u32..200, any::<u32>()], bytes()).prop_map(
        |(compressed, length, rest)| [&[compressed][..], &length.to_be_bytes(), &rest].concat(),
    );
    let bodies = proptest::collection::vec((any::<bool>(), prop_oneof![bytes(), message]), 0..4);
    (any::<bool>(), proptest::sample::select(methods.to_vec()), bodies)
}

/// A frame of the first stream.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Headers of a call, each as it stands: without tables and Huffman's code.
fn headers(path: &str, others: &HeaderMap) -> Vec<u8> {
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")];
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let others = others.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut block = Vec::new();
    for (name, value) in pseudo.into_iter().chain(grpc).chain(others) {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "{text}");
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    // The end of the headers, and not of the stream.
    frame(1, 4, &block)
}

/// A worker that is all there are.
fn alone() -> Result<(Agent, Secret), support::Failure> {
    let secret = Secret::random()?;
    let addresses = free_addresses(1);
    let agent =
        init_rpc_with_addresses("alone", 0, &addresses, secret.clone(), Options::default())?;
    agent.register("text", |context, request| {
        let id: RefId = serde_json::from_slice(&request)?;
        let text: Arc<String> = context.object(id)?;
        Ok::<_, Failure>(Reply::new(text.as_bytes().to_vec()))
    })?;
    Ok((agent, secret))
}

/// A method, a caller and a body: bytes of any kind, JSON that is nearly right, and right JSON about others.
fn request() -> impl Strategy<Value = (&'static str, String, Vec<u8>)> {
    let methods = ["rpc.hello", "rpc.delete", "rpc.met", "rpc.leave", "text", "nothing", ""];
    let callers = prop_oneof![
        any::<u64>().prop_map(|caller| caller.to_string()),
        (0_u64..3).prop_map(|caller| caller.to_string()),
        "[ -~]{0,8}",
    ];
    let right = |id: u64, serial: u64| {
        format!(r#"[{{"local_id":{id},"serial":{serial}}},{{"local_id":{serial},"serial":{id}}}]"#)
    };
    let right = (1_u64..6, 1_u64..6).prop_map(move |(id, serial)| right(id, serial).into_bytes());
    let wrong = (right.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |(mut text, at, byte)| {
            let at = at.index(text.len());
            text[at] = byte;
            text
        },
    );
    let nested = (1_usize..400).prop_map(|depth| "[".repeat(depth).into_bytes());
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    let bodies = prop_oneof![bytes, right, wrong, nested];
    (proptest::sample::select(methods.to_vec()), callers, bodies)
}
