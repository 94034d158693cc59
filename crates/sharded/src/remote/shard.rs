//! One reference.

use std::{fmt, sync::Arc, time::Duration};

use dtensor_dtype::DType;
use dtensor_rpc::{Agent, RefId, UserRef, WorkerInfo};

use super::{
    FetchedShard,
    cell::{Published, Unavailable},
    fetch::fetch,
};
use crate::{Error, Result, ShardMetadata};

/// A reference to a shard, which keeps it alive on its owner, also when the owner drops the tensor. Cloning
/// is cheap; when the last clone is dropped, the owner is told.
///
/// When the tensor is [resharded](crate::ShardedTensor::reshard), it has other shards, and this is
/// [stale](Error::StaleShard).
#[derive(Clone)]
pub struct RemoteShard {
    metadata: ShardMetadata,
    end: End,
}

#[derive(Clone)]
enum End {
    Owner { agent: Agent, published: Arc<Published>, number: usize },
    User { reference: Arc<UserRef>, dtype: DType },
}

impl RemoteShard {
    pub(super) fn own(
        agent: &Agent,
        published: &Arc<Published>,
        number: usize,
        metadata: &ShardMetadata,
    ) -> RemoteShard {
        let (agent, published) = (agent.clone(), Arc::clone(published));
        RemoteShard { metadata: metadata.clone(), end: End::Owner { agent, published, number } }
    }

    pub(super) fn of_other(
        reference: UserRef,
        metadata: &ShardMetadata,
        dtype: DType,
    ) -> RemoteShard {
        let reference = Arc::new(reference);
        RemoteShard { metadata: metadata.clone(), end: End::User { reference, dtype } }
    }

    /// Which box, and where.
    pub fn metadata(&self) -> &ShardMetadata {
        &self.metadata
    }

    /// The worker that has it. Its number is the rank in the world.
    pub fn owner(&self) -> &WorkerInfo {
        match &self.end {
            End::Owner { agent, .. } => agent.me(),
            End::User { reference, .. } => reference.owner(),
        }
    }

    /// Whether that is this worker.
    pub fn is_owner(&self) -> bool {
        matches!(self.end, End::Owner { .. })
    }

    /// Whether the owner has counted this reference. It has, before anybody else knew of it.
    pub fn confirmed_by_owner(&self) -> bool {
        true
    }

    /// The number of the shard among the objects of its owner.
    pub fn id(&self) -> Option<RefId> {
        match &self.end {
            End::Owner { published, number, .. } => Some(published.cells.get(*number)?.owned.id()),
            End::User { reference, .. } => Some(reference.id()),
        }
    }

    /// A copy of the present value. Without a timeout, that of the agent's
    /// [options](dtensor_rpc::Options::timeout) is meant. An owner that is gone is an error that names it.
    ///
    /// What the owner writes later is seen by the next call, not in what this one gave. A fetch sees a change
    /// as a whole or not at all; in which order fetches and changes come is for the program to say, by a
    /// barrier for instance.
    pub fn to_here(&self, timeout: Option<Duration>) -> Result<FetchedShard> {
        match &self.end {
            End::Owner { agent, .. } => {
                self.local(timeout.unwrap_or(agent.options().timeout), "to_here")
            }
            End::User { reference, dtype } => fetch(reference, &self.metadata, *dtype, timeout),
        }
    }

    /// The present value, on its owner.
    pub fn local_value(&self) -> Result<FetchedShard> {
        const OP: &str = "local_value";
        match &self.end {
            End::Owner { agent, .. } => self.local(agent.options().timeout, OP),
            End::User { reference, .. } => Err(Error::NotTheOwner {
                op: OP.into(),
                owner: reference.owner().name.clone(),
                me: reference.agent().me().name.clone(),
            }),
        }
    }

    fn local(&self, patience: Duration, op: &'static str) -> Result<FetchedShard> {
        let changing =
            || Error::BadState { op: op.into(), what: "the shard is being changed".into() };
        let End::Owner { published, number, .. } = &self.end else { return Err(changing()) };
        let cell = published.cells.get(*number).ok_or_else(changing)?;
        match cell.cell.read(patience) {
            Ok((shard, requires_grad)) => Ok(FetchedShard::new((*shard).clone(), requires_grad)),
            Err(Unavailable::Changing) => Err(changing()),
            Err(Unavailable::Stale) => Err(Error::StaleShard {
                shard: Box::new(self.metadata.clone()),
                owner: self.owner().name.clone(),
            }),
        }
    }
}

impl fmt::Display for RemoteShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of worker {}", self.metadata, self.owner().name)?;
        match self.id() {
            Some(id) => write!(f, ", object {id}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for RemoteShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteShard({self})")
    }
}
