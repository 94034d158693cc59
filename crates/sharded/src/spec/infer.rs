//! The spec that shards were made with.

use dtensor_layout::chunk;

use super::{ChunkShardingSpec, EnumerableShardingSpec, Spec};
use crate::{Result, ShardMetadata, ShardPlacement};

/// The spec of a list of shards: chunks of a dim, if they are that, in the order of their offsets; else the
/// list itself.
///
/// One shard alone, or a grid, is a list. Empty chunks may begin at the end of the dim, as here, or beyond it,
/// as in PyTorch.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, ShardingSpec, infer_sharding_spec};
///
/// let chunks = ChunkShardingSpec::over_ranks(1, [2, 0, 1])?;
/// let built = chunks.build_metadata(&[4, 7], &DType::F32.into())?;
/// assert_eq!(infer_sharding_spec(&built.shards_metadata)?.as_chunk(), Some(&chunks));
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
pub fn infer_sharding_spec(shards: &[ShardMetadata]) -> Result<Spec> {
    match chunks(shards) {
        Some((dim, placements)) => {
            Ok(ChunkShardingSpec::with_placements(dim as isize, placements)?.into())
        }
        None => Ok(EnumerableShardingSpec::new(shards.to_vec())?.into()),
    }
}

/// The dim that they are chunks of, and their places in the order of the chunks.
fn chunks(shards: &[ShardMetadata]) -> Option<(usize, Vec<ShardPlacement>)> {
    let first = shards.first()?;
    if shards.iter().any(|shard| shard.n_dims() != first.n_dims()) {
        return None;
    }
    let begins_later = |dim: &usize| shards.iter().any(|shard| shard.offsets()[*dim] != 0);
    let mut dims = (0..first.n_dims()).filter(begins_later);
    let (Some(dim), None) = (dims.next(), dims.next()) else { return None };
    let other_sizes_differ = |shard: &&ShardMetadata| {
        (0..first.n_dims()).any(|d| d != dim && shard.sizes()[d] != first.sizes()[d])
    };
    if shards.iter().any(|shard| other_sizes_differ(&shard)) {
        return None;
    }
    let mut order: Vec<&ShardMetadata> = shards.iter().collect();
    order.sort_by_key(|shard| (shard.offsets()[dim], shard.sizes()[dim] == 0));
    let sizes = order.iter().map(|shard| shard.sizes()[dim]);
    let length = sizes.reduce(usize::saturating_add)?;
    let step = length.div_ceil(order.len());
    let fits = |(index, shard): (usize, &&ShardMetadata)| {
        let range = chunk(length, order.len(), index);
        let offset = shard.offsets()[dim];
        shard.sizes()[dim] == range.len()
            && (offset == range.start || offset == step.saturating_mul(index))
    };
    if !order.iter().enumerate().all(fits) {
        return None;
    }
    let placements = order.iter().map(|shard| shard.placement().cloned());
    Some((dim, placements.collect::<Option<_>>()?))
}
