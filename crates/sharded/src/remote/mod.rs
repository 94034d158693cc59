//! References to the shards of other ranks.
//!
//! A rank publishes each of its shards in a [`Cell`], which the agent of the rank owns and other workers have
//! forks of. What changes the tensor changes the cell, so a fetch sees the present value; a tensor that is
//! dropped leaves its cells to those who still have forks.

mod cell;
mod exchange;
mod fetch;
mod options;
mod shard;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use dtensor_rpc::Agent;

use crate::{Error, ProcessGroup, Result, ShardedTensor};

pub use fetch::FetchedShard;
pub use options::TensorOptions;
pub use shard::RemoteShard;

pub(crate) use cell::Published;
use exchange::{Exchange, exchange, offer};

/// The shards of other ranks, by rank of the world: those of each in its own order. Ranks without shards are
/// not listed.
pub type RemoteShards = BTreeMap<usize, Vec<RemoteShard>>;

/// That references are wanted, and those that there are.
pub(crate) struct Remote {
    agent: Agent,
    /// Empty until the ranks have exchanged them.
    exchanged: OnceLock<Exchange>,
}

impl Remote {
    /// Of a tensor whose ranks have not exchanged references yet.
    pub(crate) fn wanted(agent: &Agent) -> Arc<Remote> {
        Arc::new(Remote { agent: agent.clone(), exchanged: OnceLock::new() })
    }

    fn exchanged(agent: &Agent, exchange: Exchange) -> Arc<Remote> {
        Arc::new(Remote { agent: agent.clone(), exchanged: exchange.into() })
    }
}

impl ShardedTensor {
    /// References to the shards of all other ranks of the world, if the tensor was made with
    /// [`TensorOptions::init_rrefs`]. A rank outside of the group has them too.
    ///
    /// A clone, or what [`detach`](ShardedTensor::detach), [`to`](ShardedTensor::to),
    /// [`cpu`](ShardedTensor::cpu), [`type_as`](ShardedTensor::type_as),
    /// [`resharded`](ShardedTensor::resharded) or [`from_bytes`](ShardedTensor::from_bytes) give, has
    /// references of its own. Making it sends nothing: the ranks exchange them when it is asked for them the
    /// first time, and for that all ranks of the world ask. What [`zeros_like`](ShardedTensor::zeros_like)
    /// and its kin, [`shard_tensor`](crate::shard_tensor) and operations give has none.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, TensorOptions, full, rpc};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let agent = rpc::init_rpc(world, ["left", "right"][world.rank()], rpc::Options::default())?;
    ///     let rows = ChunkShardingSpec::over_ranks(0, 0..2)?;
    ///     let mut x = full(rows, &[4, 3], 1.0, DType::F32, TensorOptions::on(world).init_rrefs(&agent))?;
    ///     x.fill_constant(world.rank() as f32)?;
    ///     world.group().barrier()?;
    ///
    ///     let other = 1 - world.rank();
    ///     let theirs = &x.remote_shards()?[&other][0];
    ///     assert_eq!(theirs.to_here(None)?.tensor().to_vec::<f32>()?, [other as f32; 6]);
    ///     agent.shutdown()?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn remote_shards(&self) -> Result<&RemoteShards> {
        Ok(self.references("remote_shards")?.others())
    }

    /// References to the shards of this rank, as other ranks have them: in the same order, and with the same
    /// numbers. As [`remote_shards`](ShardedTensor::remote_shards), whatever rank asks.
    pub fn own_references(&self) -> Result<Vec<RemoteShard>> {
        Ok(self.references("own_references")?.own())
    }

    /// Whether it has [remote shards](ShardedTensor::remote_shards), or will have them when it is asked.
    pub fn has_remote_shards(&self) -> bool {
        self.remote().is_some()
    }

    /// What a tensor that is made from this one has.
    pub(crate) fn own_remote(&self) -> Option<Arc<Remote>> {
        self.remote().map(|remote| Remote::wanted(&remote.agent))
    }

    /// What other ranks can see of this one's shards, if they can.
    pub(crate) fn published(&self) -> Option<Arc<Published>> {
        Some(self.remote()?.exchanged.get()?.published())
    }

    /// Another tensor that takes the place of this one, with references in place of its own: what there are
    /// become stale.
    pub(crate) fn with_new_references(
        &self,
        op: &'static str,
        there: ShardedTensor,
    ) -> Result<ShardedTensor> {
        let Some(remote) = self.remote() else { return Ok(there) };
        let Some(old) = remote.exchanged.get() else {
            return Ok(there.with_remote(self.own_remote()));
        };
        // First all ranks meet. One outside of the group may fetch until then: if its fetch had to wait for the
        // change, and the change for that rank, both would wait in vain.
        let offered = offer(op, self.process_group().world(), &remote.agent, Ok(&there))?;
        // From here on who fetches waits: a rank that has its new references must find all old ones stale, also
        // those of a rank that is not as far yet.
        let old = old.published();
        old.begin_all();
        match offered.taken() {
            Ok(new) => {
                old.retire();
                Ok(there.with_remote(Some(Remote::exchanged(&remote.agent, new))))
            }
            Err(error) => {
                old.end_all(self.base().shared_shards());
                Err(error)
            }
        }
    }

    fn references(&self, op: &'static str) -> Result<&Exchange> {
        let remote = self.remote().ok_or_else(|| Error::NoRemoteShards { op: op.into() })?;
        if let Some(exchanged) = remote.exchanged.get() {
            return Ok(exchanged);
        }
        let made = exchange(op, self.process_group().world(), &remote.agent, Ok(self))?;
        Ok(remote.exchanged.get_or_init(|| made))
    }
}

/// A tensor that was made, or not, with references if they are wanted. A rank that could not make it tells
/// the others, which would wait for its references otherwise.
pub(crate) fn with_references(
    op: &'static str,
    made: Result<ShardedTensor>,
    group: &ProcessGroup,
    init_rrefs: bool,
) -> Result<ShardedTensor> {
    let agent = match group.rpc() {
        Some(agent) if init_rrefs => agent,
        _ => return made,
    };
    // Then nobody can be told anything any more.
    if let Err(Error::Comm { .. }) = made {
        return made;
    }
    let exchanged = exchange(op, group.world(), agent, made.as_ref().map_err(Error::clone))?;
    Ok(made?.with_remote(Some(Remote::exchanged(agent, exchanged))))
}
