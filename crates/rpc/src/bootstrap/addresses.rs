//! Workers that know each other's addresses.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{task::JoinSet, time};

use super::{Bound, Serving, peers};
use crate::{
    Agent, Error, Options, Result, Secret, WorkerInfo,
    block::block_until,
    client::Peers,
    control::{Hello, Method},
    service::Served,
    together::together,
    worker::{Workers, check_name},
};

/// How long a worker that is not there yet is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes this process, or this thread, worker `id` of those that listen on `addresses`, in the order of their
/// numbers; this one listens on its own. All of them have the same [`Secret`].
///
/// Returns when all workers have said their names, or with an error after the [timeout](Options::timeout)
/// that names those which have not.
pub fn init_rpc_with_addresses(
    name: &str,
    id: usize,
    addresses: &[SocketAddr],
    secret: Secret,
    options: Options,
) -> Result<Agent> {
    check_name(name)?;
    let own = *addresses.get(id).ok_or(Error::NoSuchId { id, size: addresses.len() })?;
    let options = Options { bind: own, advertise: None, ..options };
    options.check()?;
    addresses.iter().try_for_each(|address| options.check_reachable(*address))?;
    let me = WorkerInfo { id, name: name.into() };
    let (waited, bound) = (options.timeout, Bound::new(own, &options)?);
    let serving = Serving::start(bound, (me, addresses.len()), secret, options)?;

    // Until they have said their names, workers are called by their numbers.
    let numbered =
        addresses.iter().enumerate().map(|(id, address)| (id.to_string().into(), *address));
    let unnamed = Arc::new(peers(
        &serving.served,
        Workers::new(numbered.collect())?,
        serving.runtime.handle(),
    ));
    let meeting =
        serving.runtime.handle().spawn(meet(Arc::clone(&serving.served), unnamed, waited));
    let deadline = std::time::Instant::now() + 3 * waited;
    let names = match block_until(deadline, meeting) {
        Some(Ok(names)) => names?,
        _ => return Err(missing((0..addresses.len()).filter(|other| *other != id), waited)),
    };
    let workers = Workers::new(names.into_iter().zip(addresses.iter().copied()).collect())?;
    Ok(serving.into_agent(workers))
}

/// The names of all workers, when all know them: nobody leaves, because two are the same, before the others
/// could ask.
async fn meet(served: Arc<Served>, peers: Arc<Peers>, patience: Duration) -> Result<Vec<Box<str>>> {
    let names = names(&peers, patience).await?;
    let all_know = together(Method::Met, &served, &peers);
    // What has not come by then is missing.
    let _ = time::timeout(patience, all_know).await;
    match &*served.met.missing(&peers) {
        [] => Ok(names),
        others => Err(missing(others.iter().copied(), patience)),
    }
}

async fn names(peers: &Arc<Peers>, patience: Duration) -> Result<Vec<Box<str>>> {
    let n_workers = peers.workers().all().len();
    let mut asking = JoinSet::new();
    for id in 0..n_workers {
        let peers = Arc::clone(peers);
        asking.spawn(async move { (id, time::timeout(patience, ask(id, &peers)).await) });
    }
    let mut names: Vec<Option<Box<str>>> = vec![None; n_workers];
    while let Some(asked) = asking.join_next().await {
        if let Ok((id, Ok(name))) = asked {
            names[id] = Some(name?);
        }
    }
    match names.iter().all(Option::is_some) {
        true => Ok(names.into_iter().flatten().collect()),
        false => Err(missing((0..n_workers).filter(|id| names[*id].is_none()), patience)),
    }
}

/// The name of a worker, as soon as it listens.
async fn ask(id: usize, peers: &Peers) -> Result<Box<str>> {
    loop {
        match peers.control(id, Method::Hello, Bytes::new()).await {
            Ok(answer) => return named(id, &answer),
            Err(Error::Lost { .. } | Error::TimedOut { .. }) => time::sleep(PAUSE).await,
            Err(other) => return Err(other),
        }
    }
}

/// What it said, if it is the one that was asked.
fn named(id: usize, answer: &[u8]) -> Result<Box<str>> {
    let bad = |what: String| {
        let (worker, method) = (id.to_string().into(), Method::Hello.name().into());
        Error::BadAnswer { worker, method, what: what.into() }
    };
    let hello: Hello = serde_json::from_slice(answer).map_err(|error| bad(error.to_string()))?;
    match hello.worker.id == id {
        true => Ok(hello.worker.name),
        false => Err(bad(format!("at the address of worker {id} is worker {}", hello.worker.id))),
    }
}

fn missing(ids: impl Iterator<Item = usize>, waited: Duration) -> Error {
    Error::Missing { op: "init_rpc_with_addresses".into(), missing: ids.collect(), waited }
}
