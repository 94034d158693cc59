//! Where a tensor is made, and with what.

use dtensor::World;
use dtensor_rpc::Agent;

use crate::ProcessGroup;

/// The ranks that a tensor is made on, and whether they get references to each other's shards.
///
/// A [`ProcessGroup`], or a [`World`] for all of its ranks, is as good where nothing else is wanted.
#[derive(Clone, Debug)]
pub struct TensorOptions {
    pub(crate) group: ProcessGroup,
    /// If so, the group has an agent.
    pub(crate) init_rrefs: bool,
}

impl TensorOptions {
    /// On these ranks, without references.
    pub fn on(group: impl Into<ProcessGroup>) -> TensorOptions {
        TensorOptions { group: group.into(), init_rrefs: false }
    }

    /// The same with references to the [shards of other ranks](crate::ShardedTensor::remote_shards), through
    /// an agent whose workers are the ranks of the world. Then *all ranks of the world* make the tensor, also
    /// those that are not in the group: they tell each other where their shards are, or what went wrong,
    /// which is the same error on all.
    ///
    /// Ranks outside of the group cannot know what the members bring: for
    /// [`from_local_shards`](crate::ShardedTensor::from_local_shards) and
    /// [`from_local_rows`](crate::ShardedTensor::from_local_rows) the group has all ranks then.
    ///
    /// Placements may then name workers, as with [`ProcessGroup::with_rpc`].
    #[must_use]
    pub fn init_rrefs(self, agent: &Agent) -> TensorOptions {
        TensorOptions { group: self.group.with_rpc(agent), init_rrefs: true }
    }
}

impl From<&World> for TensorOptions {
    fn from(world: &World) -> TensorOptions {
        TensorOptions::on(world)
    }
}

impl From<ProcessGroup> for TensorOptions {
    fn from(group: ProcessGroup) -> TensorOptions {
        TensorOptions::on(group)
    }
}

impl From<&ProcessGroup> for TensorOptions {
    fn from(group: &ProcessGroup) -> TensorOptions {
        TensorOptions::on(group)
    }
}

impl From<&TensorOptions> for TensorOptions {
    fn from(options: &TensorOptions) -> TensorOptions {
        options.clone()
    }
}
