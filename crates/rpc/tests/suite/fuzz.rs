//! Whoever knows the secret, and says anything.

use std::sync::Arc;

use bytes::Bytes;
use dtensor_rpc::{Agent, Failure, Options, RefId, Reply, Secret, init_rpc_with_addresses};
use http::uri::PathAndQuery;
use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};
use tonic::{Code, Request, client::Grpc, transport::Endpoint};

use crate::{
    hostile::Raw,
    support::{self, free_addresses},
};

/// Requests that were not made by an agent: of every method, with any body, from any caller.
#[test]
fn well_formed_requests_of_anything_get_an_answer_and_do_no_harm() {
    let (agent, secret) = alone().unwrap();
    let owned = agent.own(Arc::new("treasure".to_string())).unwrap();
    owned.share(&[0]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let channel = runtime.block_on(async {
        Endpoint::from_shared(format!("http://{}", agent.address())).unwrap().connect().await
    });
    let channel = channel.unwrap();
    let config =
        ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let tried = TestRunner::new(config).run(&request(), |(method, caller, body)| {
        let answered = runtime.block_on(answer(channel.clone(), &secret, method, &caller, body));
        match answered {
            // What a handler fails with is an answer, too.
            Ok(_) | Err(Code::InvalidArgument | Code::Unimplemented) => Ok(()),
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
        (1_u64..5).prop_map(|caller| caller.to_string()),
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

/// All messages of an answer, or what it was refused with.
async fn answer(
    channel: tonic::transport::Channel,
    secret: &Secret,
    method: &str,
    caller: &str,
    body: Vec<u8>,
) -> Result<Vec<Bytes>, Code> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let digits: String = secret.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut request = Request::new(Bytes::from(body));
    request.metadata_mut().insert("dtensor-secret", digits.parse().unwrap());
    if let Ok(caller) = caller.parse() {
        request.metadata_mut().insert("dtensor-worker", caller);
    }
    let path: PathAndQuery = format!("/dtensor.Rpc/{method}").parse().unwrap();
    let answer = grpc.server_streaming(request, path, Raw).await;
    let mut stream = answer.map_err(|status| status.code())?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| status.code())? {
        messages.push(message);
    }
    Ok(messages)
}
