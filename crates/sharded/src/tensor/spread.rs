//! The same elements on other ranks than those of the tensor's group.

use std::sync::Arc;

use super::{ShardedTensor, moves::Moves};
use crate::{ProcessGroup, Result, Shard, ShardedTensorMetadata};

impl ShardedTensor {
    /// The shards of this rank once the elements lie as `to` says. All ranks of `group` call it, and it has all
    /// ranks that the elements leave or reach: one exchange, in which every element that moves is sent once.
    pub(crate) fn spread(
        &self,
        op: &'static str,
        to: &ShardedTensorMetadata,
        group: &ProcessGroup,
    ) -> Result<Vec<Arc<Shard>>> {
        if self.metadata().shards_metadata == to.shards_metadata {
            return Ok(self.shared_shards());
        }
        let (spec, metadata) = (self.sharding_spec().clone(), Arc::clone(self.shared_metadata()));
        let there = ShardedTensor::assemble(spec, metadata, self.shared_shards(), group.clone());
        Moves::new(&there, to).run(op)
    }
}
