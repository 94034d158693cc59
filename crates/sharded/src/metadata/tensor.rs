//! All boxes of a tensor.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::{ShardMetadata, TensorProperties, volume};

/// The shards of a tensor, its size and what its elements are: everything but the values, and the same on every
/// rank. The order of the shards counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardedTensorMetadata {
    /// Every shard, wherever it lies.
    pub shards_metadata: Vec<ShardMetadata>,
    /// Size of every dim of the whole tensor.
    pub size: Vec<usize>,
    /// What the elements are.
    pub tensor_properties: TensorProperties,
}

impl ShardedTensorMetadata {
    /// The shards on a rank of the world, in their order.
    pub fn shards_of(&self, rank: usize) -> impl Iterator<Item = &ShardMetadata> {
        self.shards_metadata.iter().filter(move |shard| shard.rank() == Some(rank))
    }

    /// The shards in short, the same in every process of one build: what ranks compare to know that they cut
    /// a tensor in the same way. Specs of users can be compared in no other way.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.shards_metadata.hash(&mut hasher);
        hasher.finish()
    }

    /// Number of elements of the whole tensor.
    pub fn numel(&self) -> usize {
        usize::try_from(volume(&self.size)).unwrap_or(usize::MAX)
    }
}
