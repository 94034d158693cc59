//! Workers that are ranks of a world.

use std::net::SocketAddr;

use dtensor_comm::{Group, World, WorldKind};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Bound, Serving};
use crate::{
    Agent, Error, Options, Result, Secret, WorkerInfo,
    worker::{Workers, check_name},
};

/// Makes every rank of a world a worker, whose number is its rank. All ranks call it, each with a name of its
/// own.
///
/// The ranks tell each other where they listen, and rank 0 gives them the secret of the run, over the world.
/// What is wrong on one rank is the same error on all.
///
/// ```
/// use dtensor_comm::Runner;
/// use dtensor_rpc::{Options, Reply, init_rpc};
///
/// Runner::threads(2).run(|world| {
///     let agent = init_rpc(world, &format!("worker{}", world.rank()), Options::default())?;
///     agent.register("greet", |context, name| {
///         Ok(Reply::new([&b"hello "[..], &name, b" from ", context.me().name.as_bytes()].concat()))
///     })?;
///     world.group().barrier()?;
///     let other = agent.worker(["worker1", "worker0"][world.rank()])?;
///     let answer = agent.call(other.id, "greet", "you", None)?;
///     assert_eq!(answer, format!("hello you from {}", other.name));
///     agent.shutdown()?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// })?;
/// # Ok::<(), dtensor_comm::RunError>(())
/// ```
pub fn init_rpc(world: &World, name: &str, options: Options) -> Result<Agent> {
    if world.kind() == WorldKind::Fake && world.size() > 1 {
        let what = "a fake world has no other ranks to call; run it on threads or under mpirun";
        return Err(Error::BadOptions { what: what.into() });
    }
    init_rpc_on(&world.group(), name, options)
}

/// As [`init_rpc`], for the ranks of a group: the number of a worker is its rank in the group.
pub fn init_rpc_on(group: &Group, name: &str, options: Options) -> Result<Agent> {
    let group = group.tag("init_rpc");
    let me = WorkerInfo { id: group.rank(), name: name.into() };
    let made = ready(&me, &options);
    let (bound, own) = match made {
        Ok((bound, secret)) => {
            let record = Record { name: me.name.clone(), address: bound.address };
            (Some((bound, secret)), Ok(record))
        }
        Err(error) => (None, Err(error)),
    };
    let records = all_records(&group, own)?;
    let workers =
        Workers::new(records.into_iter().map(|record| (record.name, record.address)).collect())?;
    // Without an error on any rank there is one here.
    let Some((bound, secret)) = bound else { return Err(Error::BadOptions { what: name.into() }) };
    let mut bytes = *secret.as_bytes();
    group.broadcast(&mut bytes, 0).map_err(Error::comm)?;
    // What a rank must not send in the clear, it does not send to those who would listen either.
    let addresses = workers.addresses();
    let started =
        addresses.iter().try_for_each(|address| options.check_reachable(*address)).and_then(|()| {
            Serving::start(bound, (me, addresses.len()), Secret::from_bytes(bytes), options)
        });
    let (started, told) = match started {
        Ok(started) => (Some(started), Ok(())),
        Err(error) => (None, Err(error)),
    };
    all_records(&group, told)?;
    let Some(started) = started else { return Err(Error::BadOptions { what: name.into() }) };
    Ok(started.into_agent(workers))
}

/// What a rank tells the others.
#[derive(Serialize, Deserialize)]
struct Record {
    name: Box<str>,
    address: SocketAddr,
}

/// Everything that can be wrong on one rank alone.
fn ready(me: &WorkerInfo, options: &Options) -> Result<(Bound, Secret)> {
    check_name(&me.name)?;
    options.check()?;
    let bound = Bound::new(options.bind, options)?;
    options.check_reachable(bound.address)?;
    Ok((bound, Secret::random()?))
}

#[derive(Serialize, Deserialize)]
enum Told<T> {
    Fine(T),
    Wrong(Error),
}

/// The records of all ranks, or the error of the first that has one. A rank on which something is wrong takes
/// part and tells that, so that nobody waits for it.
fn all_records<T: Serialize + DeserializeOwned>(group: &Group, own: Result<T>) -> Result<Vec<T>> {
    let unreadable = |error: serde_json::Error| Error::Told {
        text: format!("init_rpc: a record of a rank: {error}").into(),
    };
    let own = match own {
        Ok(record) => Told::Fine(record),
        Err(error) => Told::Wrong(error.told()),
    };
    let own = serde_json::to_vec(&own).map_err(unreadable)?;
    let all = group.all_gather_lists(&own).map_err(Error::comm)?;
    let mut records = Vec::with_capacity(all.len());
    for (id, bytes) in all.into_iter().enumerate() {
        match serde_json::from_slice(&bytes).map_err(unreadable)? {
            Told::Fine(record) => records.push(record),
            Told::Wrong(error) => return Err(Error::OnWorker { id, error: Box::new(error) }),
        }
    }
    Ok(records)
}
