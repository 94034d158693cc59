//! Sharded tensors with references to shards of other ranks, between threads and between processes.

use std::time::{Duration, Instant};

use dtensor::{DType, World, WorldKind};
use dtensor_sharded::{
    ChunkShardingSpec, Error, ProcessGroup, Spec, TensorOptions, full,
    rpc::{self, Agent, init_rpc},
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

/// Runs a program of workers that leave together, and looks for what they left behind.
fn with_workers(
    world: &World,
    body: impl FnOnce(&Agent) -> Result<(), String>,
) -> Result<(), String> {
    let agent = worker(world)?;
    body(&agent)?;
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
