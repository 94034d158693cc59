//! The ranks tell each other where their shards are.

use std::sync::Arc;

use dtensor::World;
use dtensor_rpc::{Agent, Share};

use super::{
    RemoteShard, RemoteShards,
    cell::{Cell, OwnedCell, Published},
    fetch,
};
use crate::{
    Error, ProcessGroup, Result, ShardMetadata, ShardedTensor,
    construct::by_member,
    exchange::{agree, all_records},
};

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

/// What the ranks have offered each other, and nobody has taken yet.
pub(super) struct Offered<'a> {
    op: &'static str,
    world: &'a World,
    agent: &'a Agent,
    tensor: &'a ShardedTensor,
    published: Published,
    /// Of every rank.
    shares: Vec<Vec<Share>>,
}

/// All ranks of the world call it, each with the tensor or with the reason why it has none, which is then the
/// error of all.
pub(super) fn exchange(
    op: &'static str,
    world: &World,
    agent: &Agent,
    made: Result<&ShardedTensor>,
) -> Result<Exchange> {
    offer(op, world, agent, made)?.taken()
}

/// The first half of an [`exchange`]. When it returns, all ranks have called it.
pub(super) fn offer<'a>(
    op: &'static str,
    world: &'a World,
    agent: &'a Agent,
    made: Result<&'a ShardedTensor>,
) -> Result<Offered<'a>> {
    let own = made.and_then(|tensor| Ok((tensor, publish(op, world, agent, tensor)?)));
    let told = own.as_ref().map(|(_, (_, shares))| shares.clone()).map_err(Error::clone);
    match (all_records(op, &ProcessGroup::of_world(world), told), own) {
        (Ok(shares), Ok((tensor, (published, _)))) => {
            Ok(Offered { op, world, agent, tensor, published, shares })
        }
        (Err(error), own) => {
            // Nobody has adopted what was shared.
            if let Ok((_, (published, _))) = own {
                published.revoke();
            }
            Err(plain(error))
        }
        (Ok(_), Err(error)) => Err(error),
    }
}

impl Offered<'_> {
    /// The second half: all ranks take what the others have offered, or none does.
    pub(super) fn taken(self) -> Result<Exchange> {
        let Offered { op, world, agent, tensor, published, shares } = self;
        let others = adopted(op, agent, tensor, shares);
        match agree(op, &ProcessGroup::of_world(world), others) {
            Ok(others) => {
                let metadata = tensor.local_shards().map(|shard| shard.metadata().clone());
                let (metadata, published) = (metadata.collect(), Arc::new(published));
                Ok(Exchange { agent: agent.clone(), published, metadata, others })
            }
            Err(error) => {
                // A rank on which something was wrong has not adopted all, and so will not give all back.
                published.revoke();
                Err(plain(error))
            }
        }
    }
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

/// References to what the other ranks have published, if that is what the tensor has there.
fn adopted(
    op: &'static str,
    agent: &Agent,
    tensor: &ShardedTensor,
    records: Vec<Vec<Share>>,
) -> Result<RemoteShards> {
    let own = tensor.process_group().world_rank();
    let world = ProcessGroup::of_world(tensor.process_group().world());
    let by_rank = by_member(tensor.metadata(), &world).into_iter().zip(records);
    let mut others = RemoteShards::new();
    for (rank, (shards, shares)) in by_rank.enumerate().filter(|(rank, _)| *rank != own) {
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
