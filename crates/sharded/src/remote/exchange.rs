//! The ranks tell each other where their shards are.

use std::sync::Arc;

use dtensor::World;
use dtensor_rpc::{Agent, Share};

use super::{
    RemoteShard, RemoteShards,
    cell::{Cell, OwnedCell, Published},
    fetch,
};
use crate::{Error, ProcessGroup, Result, ShardMetadata, ShardedTensor, exchange::all_records};

/// What a rank has after the ranks have told each other.
pub(super) struct Exchange {
    agent: Agent,
    published: Arc<Published>,
    /// The metadata of what is published, in its order.
    metadata: Vec<ShardMetadata>,
    others: RemoteShards,
}

impl Exchange {
    pub(super) fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    pub(super) fn others(&self) -> &RemoteShards {
        &self.others
    }

    pub(super) fn own(&self) -> Vec<RemoteShard> {
        let shards = self.metadata.iter().enumerate();
        shards
            .map(|(n, metadata)| RemoteShard::own(&self.agent, &self.published, n, metadata))
            .collect()
    }
}

/// All ranks of the world call it, each with the tensor or with the reason why it has none, which is then the
/// error of all.
pub(super) fn exchange(
    op: &'static str,
    world: &World,
    agent: &Agent,
    made: Result<&ShardedTensor>,
) -> Result<Exchange> {
    let own = made.and_then(|tensor| Ok((tensor, publish(op, world, agent, tensor)?)));
    let told = own.as_ref().map(|(_, (_, shares))| shares.clone()).map_err(Error::clone);
    let records = all_records(op, &ProcessGroup::of_world(world), told);
    let (records, (tensor, (published, _))) = match (records, own) {
        (Ok(records), Ok(own)) => (records, own),
        (Err(error), own) => {
            // Nobody has adopted what was shared.
            if let Ok((_, (published, _))) = own {
                published.cells.iter().for_each(|cell| cell.owned.revoke());
            }
            return Err(plain(error));
        }
        (Ok(_), Err(error)) => return Err(error),
    };
    let metadata = tensor.local_shards().map(|shard| shard.metadata().clone()).collect();
    let others = adopted(op, agent, tensor, records)?;
    Ok(Exchange { agent: agent.clone(), published: Arc::new(published), metadata, others })
}

/// Makes the shards of this rank ready to be fetched: with a fork for every other rank before anybody knows
/// of it.
fn publish(
    op: &'static str,
    world: &World,
    agent: &Agent,
    tensor: &ShardedTensor,
) -> Result<(Published, Vec<Share>)> {
    let (worker, workers) = (agent.id(), agent.workers().len());
    if (worker, workers) != (world.rank(), world.size()) {
        let (rank, ranks) = (world.rank(), world.size());
        return Err(Error::NotTheSameRank { op: op.into(), rank, ranks, worker, workers });
    }
    let rpc = Error::rpc(op);
    // Whichever tensor is first; the others find it there.
    agent.register(fetch::METHOD, fetch::answer).map_err(&rpc)?;
    let others: Vec<usize> = (0..world.size()).filter(|rank| *rank != world.rank()).collect();
    let (mut cells, mut shares) = (Vec::new(), Vec::new());
    for shard in tensor.base().shared_shards() {
        let cell = Arc::new(Cell::new(shard, tensor.requires_grad()));
        let owned = agent.own(Arc::clone(&cell)).map_err(&rpc)?;
        shares.push(owned.share(&others).map_err(&rpc)?);
        cells.push(OwnedCell { cell, owned });
    }
    Ok((Published { cells }, shares))
}

/// References to what the other ranks have published.
fn adopted(
    op: &'static str,
    agent: &Agent,
    tensor: &ShardedTensor,
    records: Vec<Vec<Share>>,
) -> Result<RemoteShards> {
    let own = tensor.process_group().world_rank();
    let mut others = RemoteShards::new();
    for (rank, shares) in records.into_iter().enumerate().filter(|(rank, _)| *rank != own) {
        let shards: Vec<&ShardMetadata> = tensor.metadata().shards_of(rank).collect();
        if shards.len() != shares.len() {
            let what = format!("rank {rank} has {} shards, not {}", shares.len(), shards.len());
            return Err(Error::BadState { op: op.into(), what: what.into() });
        }
        if shards.is_empty() {
            continue;
        }
        let adopt = |(share, metadata): (Share, &ShardMetadata)| {
            let reference = agent.adopt(share).map_err(Error::rpc(op))?;
            Ok(RemoteShard::of_other(reference, metadata, tensor.dtype()))
        };
        others.insert(rank, shares.into_iter().zip(shards).map(adopt).collect::<Result<_>>()?);
    }
    Ok(others)
}

/// What had been agreed on before is said once.
fn plain(error: Error) -> Error {
    match error {
        Error::Rank { error, .. } if matches!(*error, Error::Rank { .. }) => plain(*error),
        other => other,
    }
}
