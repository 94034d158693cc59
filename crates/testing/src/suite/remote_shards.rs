//! Sharded tensors with references to shards of other ranks, between threads and between processes.

use std::{
    net::{SocketAddr, TcpListener},
    process, thread,
    time::{Duration, Instant},
};

use dtensor::{DType, World, WorldKind};
use dtensor_sharded::{
    ChunkShardingSpec, Error, ProcessGroup, ShardedTensor, Spec, TensorOptions, full,
    rpc::{self, Agent, Secret, init_rpc, init_rpc_with_addresses},
};

use super::{faults, tensors::text};

/// Shards are fetched as they are now, references are stale after a reshard, and nothing is left of them.
pub(super) fn fetched(world: &World) -> Result<(), String> {
    with_workers(world, |agent| {
        let (rank, n) = (world.rank(), world.size());
        let options = TensorOptions::on(world).init_rrefs(agent);
        // Two shards on rank 0, and one on each of the others.
        let ranks = (0..n).chain([0]);
        let spec = ChunkShardingSpec::over_ranks(0, ranks).map_err(text)?;
        let mut x = full(spec, &[2 * n + 2, 3], rank as f32, DType::F32, options).map_err(text)?;
        for round in 0..3 {
            world.group().barrier().map_err(text)?;
            for (other, shards) in x.remote_shards().map_err(text)? {
                if shards.len() != 1 + usize::from(*other == 0) {
                    return Err(format!("{} shards of rank {other}", shards.len()));
                }
                for shard in shards {
                    let got = shard.to_here(None).map_err(text)?;
                    let got = got.tensor().to_vec::<f32>().map_err(text)?;
                    let want = (other + 10 * round) as f32;
                    if got != vec![want; got.len()] {
                        return Err(format!("{shard}: {got:?}, not {want}"));
                    }
                }
            }
            world.group().barrier().map_err(text)?;
            x.fill_constant((rank + 10 * (round + 1)) as f32).map_err(text)?;
        }
        let old: Vec<_> = x.remote_shards().map_err(text)?.values().flatten().cloned().collect();
        let columns = ChunkShardingSpec::over_ranks(1, (0..n).rev()).map_err(text)?;
        x.reshard(columns).map_err(text)?;
        for stale in &old {
            match stale.to_here(None) {
                Err(Error::StaleShard { .. }) => {}
                other => return Err(format!("{stale}: {other:?}")),
            }
        }
        let copy = x.clone();
        for shard in copy.remote_shards().map_err(text)?.values().flatten() {
            shard.to_here(None).map_err(text)?;
        }
        world.group().barrier().map_err(text)
    })
}

/// Placements name workers, for tensors on all ranks and on some.
pub(super) fn named(world: &World) -> Result<(), String> {
    with_workers(world, |agent| {
        let n = world.size();
        let spec = |dim: isize, first: usize| -> Result<Spec, String> {
            let places: Vec<String> =
                (first..n).rev().map(|rank| format!("worker{rank}/cpu")).collect();
            let places: Vec<&str> = places.iter().map(String::as_str).collect();
            Ok(ChunkShardingSpec::new(dim, &places).map_err(text)?.into())
        };
        for first in 0..n.min(2) {
            let ranks: Vec<usize> = (first..n).collect();
            let group = ProcessGroup::new(world, &ranks).map_err(text)?;
            let options = TensorOptions::on(&group).init_rrefs(agent);
            let mut x = full(spec(0, first)?, &[5, 4], 2.0, DType::F64, options).map_err(text)?;
            x.reshard(spec(1, first)?).map_err(text)?;
            if group.rank().is_some() {
                let whole = x.full_tensor().and_then(|whole| Ok(whole.to_vec::<f64>()?));
                if whole.map_err(text)? != [2.0; 20] {
                    return Err("other values after the reshard".to_string());
                }
            }
            for (rank, shards) in x.remote_shards().map_err(text)? {
                let got = shards[0].to_here(None).map_err(text)?;
                if shards[0].owner().id != *rank || got.metadata() != shards[0].metadata() {
                    return Err(format!("{} is not of rank {rank}", shards[0]));
                }
            }
            world.group().barrier().map_err(text)?;
        }
        Ok(())
    })
}

/// The last rank is killed: whoever fetches its shard is told so, by its name.
pub(super) fn killed_owner(world: &World) -> Result<(), String> {
    let (rank, last) = (world.rank(), world.size() - 1);
    if world.kind() != WorldKind::Mpi || last == 0 {
        return Err("killing a rank needs several processes: use mpirun".to_string());
    }
    let agent = worker(world)?;
    let spec = ChunkShardingSpec::over_ranks(0, 0..=last).map_err(text)?;
    let options = TensorOptions::on(world).init_rrefs(&agent);
    let x = full(spec, &[2 * last + 2], rank as f32, DType::F32, options).map_err(text)?;
    let shards = x.remote_shards().map_err(text)?;
    for shard in shards.values().flatten() {
        shard.to_here(None).map_err(text)?;
    }
    world.group().barrier().map_err(text)?;
    if rank == last {
        return Err(faults::kill_self());
    }
    // A moment may pass before the kill is carried out.
    let patience = Instant::now() + Duration::from_secs(30);
    let error = loop {
        match shards[&last][0].to_here(None) {
            Ok(_) if Instant::now() < patience => {}
            Ok(_) => return Err("a killed rank still gives its shard".to_string()),
            Err(error) => break error,
        }
    };
    let want = format!("worker{last}");
    match &error {
        Error::Rpc { source, .. } => match &**source {
            rpc::Error::Lost { worker, .. } if **worker == *want => {}
            other => return Err(format!("not the error that was expected: {other}")),
        },
        other => return Err(format!("not the error that was expected: {other}")),
    }
    Ok(())
}

/// The last rank is stopped: whoever fetches its shard gives up when it has said that it would, and says whom it was
/// waiting for.
pub(super) fn stopped_owner(world: &World) -> Result<(), String> {
    let (rank, last) = (world.rank(), world.size() - 1);
    if world.kind() != WorldKind::Mpi || last == 0 {
        return Err("stopping a rank needs several processes: use mpirun".to_string());
    }
    let agent = worker(world)?;
    let spec = ChunkShardingSpec::over_ranks(0, 0..=last).map_err(text)?;
    let options = TensorOptions::on(world).init_rrefs(&agent);
    let x = full(spec, &[2 * last + 2], rank as f32, DType::F32, options).map_err(text)?;
    let shards = x.remote_shards().map_err(text)?;
    let own = [i64::from(process::id())];
    let processes = world.group().all_gather_lists(&own).map_err(text)?;
    for shard in shards.values().flatten() {
        shard.to_here(None).map_err(text)?;
    }
    world.group().barrier().map_err(text)?;
    if rank == last {
        return Err(faults::stop_self());
    }
    // A moment may pass before it stops.
    let patience = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match shards[&last][0].to_here(Some(Duration::from_millis(300))) {
            Ok(_) if Instant::now() < patience => {}
            Ok(_) => break None,
            Err(error) => break Some(error),
        }
    };
    let survivors: Vec<usize> = (0..last).collect();
    world.subgroup(&survivors).map_err(text)?.barrier().map_err(text)?;
    if rank == 0 {
        faults::kill(processes[last][0])?;
    }
    let error = error.ok_or("a stopped rank still gives its shard")?;
    match &error {
        Error::Rpc { source, .. } => match &**source {
            rpc::Error::TimedOut { worker, .. } if **worker == *format!("worker{last}") => Ok(()),
            other => Err(format!("not the error that was expected: {other}")),
        },
        other => Err(format!("not the error that was expected: {other}")),
    }
}

/// Without the world: workers have each other's addresses and a secret, and nothing else.
pub(super) fn by_address(world: &World) -> Result<(), String> {
    let (rank, n) = (world.rank(), world.size());
    // Kept until all have one, or two would get the same.
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let own = listener.local_addr().map_err(text)?.to_string();
    let addresses = world.group().all_gather_lists(own.as_bytes()).map_err(text)?;
    drop(listener);
    let addresses = addresses.iter().map(|bytes| String::from_utf8_lossy(bytes).parse());
    let addresses: Vec<SocketAddr> = addresses.collect::<Result<_, _>>().map_err(text)?;
    let mut secret = *Secret::random().map_err(text)?.as_bytes();
    world.group().broadcast(&mut secret, 0).map_err(text)?;
    let (name, secret) = (format!("worker{rank}"), Secret::from_bytes(secret));
    let agent = init_rpc_with_addresses(&name, rank, &addresses, secret, rpc::Options::default());
    let agent = agent.map_err(text)?;
    with_agent(world, &agent, |agent| {
        let last = agent.worker(&format!("worker{}", n - 1)).map_err(text)?;
        if last.id != n - 1 {
            return Err(format!("{last:?} is not the last of {n}"));
        }
        let options = TensorOptions::on(world).init_rrefs(agent);
        let spec = ChunkShardingSpec::over_ranks(0, 0..n).map_err(text)?;
        let x = full(spec, &[2 * n], rank as f32, DType::F32, options).map_err(text)?;
        check_values(&x)?;
        world.group().barrier().map_err(text)
    })
}

/// Every rank fetches from every other by several threads.
pub(super) fn fetched_at_once(world: &World) -> Result<(), String> {
    const THREADS: usize = 4;
    const TIMES: usize = 4;
    with_workers(world, |agent| {
        let (rank, n) = (world.rank(), world.size());
        let options = TensorOptions::on(world).init_rrefs(agent);
        let spec = ChunkShardingSpec::over_ranks(0, 0..n).map_err(text)?;
        // Longer than a piece of a message, which has 1 MiB.
        let size = [n, 300_000];
        let x = full(spec, &size, rank as f32, DType::F32, options).map_err(text)?;
        let fetch = || (0..TIMES).try_for_each(|_| check_values(&x));
        let fetched = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(fetch)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        });
        world.group().barrier().map_err(text)?;
        fetched
    })
}

/// Workers of the run that ask for anything but a shard, by the method that gives shards.
pub(super) fn asked_for_garbage(world: &World) -> Result<(), String> {
    const METHOD: &str = "dtensor.sharded.shard";
    with_workers(world, |agent| {
        let (rank, n) = (world.rank(), world.size());
        let options = TensorOptions::on(world).init_rrefs(agent);
        let spec = ChunkShardingSpec::over_ranks(0, 0..n).map_err(text)?;
        let x = full(spec, &[2 * n], rank as f32, DType::F32, options).map_err(text)?;
        // Far from the numbers that there are.
        let mut random = u64::MAX / 3;
        for (round, other) in (0..64).flat_map(|round| (0..n).map(move |other| (round, other))) {
            let mut request: Vec<u8> = (0..round)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 56) as u8
                })
                .collect();
            if round % 4 == 0 {
                // In the right form, about what is not there.
                request = format!(r#"{{"created_on":{round},"local_id":{random}}}"#).into_bytes();
            }
            match agent.call(other, METHOD, request.clone(), None) {
                Err(rpc::Error::Remote { .. } | rpc::Error::NoSuchObject { .. }) => {}
                got => return Err(format!("{request:?} gives {got:?}")),
            }
        }
        check_values(&x)?;
        world.group().barrier().map_err(text)
    })
}

/// The shards of the others have their ranks as values.
fn check_values(x: &ShardedTensor) -> Result<(), String> {
    for (other, shards) in x.remote_shards().map_err(text)? {
        for shard in shards {
            let got = shard.to_here(None).map_err(text)?;
            let got = got.tensor().to_vec::<f32>().map_err(text)?;
            if got.is_empty() || got.iter().any(|value| *value != *other as f32) {
                return Err(format!("{shard} has other values than {other}"));
            }
        }
    }
    Ok(())
}

/// Runs a program of workers that leave together, and looks for what they left behind.
fn with_workers(
    world: &World,
    body: impl FnOnce(&Agent) -> Result<(), String>,
) -> Result<(), String> {
    with_agent(world, &worker(world)?, body)
}

fn with_agent(
    world: &World,
    agent: &Agent,
    body: impl FnOnce(&Agent) -> Result<(), String>,
) -> Result<(), String> {
    body(agent)?;
    agent.flush(None).map_err(text)?;
    world.group().barrier().map_err(text)?;
    let left = (agent.owned(), agent.forks(), agent.references());
    if left != (0, 0, 0) {
        return Err(format!("{left:?} objects, forks and references are left"));
    }
    agent.shutdown().map_err(text)
}

fn worker(world: &World) -> Result<Agent, String> {
    init_rpc(world, &format!("worker{}", world.rank()), rpc::Options::default()).map_err(text)
}
