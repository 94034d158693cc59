//! From the shards of this rank and the metadata of all.

use std::sync::Arc;

use super::{check_properties, matched, settle};
use crate::{
    ProcessGroup, Result, Shard, ShardedTensor, ShardedTensorBase, ShardedTensorMetadata, Spec,
    TensorOptions, remote,
};

impl ShardedTensor {
    /// The tensor that `metadata` describe, of which every rank brings the shards that lie on it; without a
    /// spec, it follows from the metadata.
    ///
    /// Nothing is sent. The metadata must be the same on every rank; a shard that is not what they say is
    /// refused on the rank that has it.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Shard, ShardedTensor, ShardingSpec, Tensor};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let columns = ChunkShardingSpec::over_ranks(1, 0..2)?;
    ///     let metadata = columns.build_metadata(&[4, 3], &DType::F32.into())?;
    ///     let own = metadata.shards_metadata[world.rank()].clone();
    ///     let shard = Shard::new(Tensor::full(own.sizes(), 1.0_f32)?, own)?;
    ///     let x = ShardedTensor::from_local_shards_and_metadata(vec![shard], metadata, None, world)?;
    ///     assert_eq!(x.sharding_spec().as_chunk(), Some(&columns));
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn from_local_shards_and_metadata(
        shards: Vec<Shard>,
        metadata: ShardedTensorMetadata,
        spec: Option<Spec>,
        options: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        const OP: &str = "from_local_shards_and_metadata";
        let TensorOptions { group, init_rrefs } = options.into();
        let made = settle(OP, metadata, spec).and_then(|(spec, metadata)| {
            let shards = shards.into_iter().map(Arc::new).collect();
            on_group(OP, spec, metadata, shards, &group)
        });
        remote::with_references(OP, made, &group, init_rrefs)
    }

    /// The tensor of some shards and metadata, on a group: what
    /// [`from_local_shards_and_metadata`](ShardedTensor::from_local_shards_and_metadata) makes of them.
    pub fn from_base(
        base: ShardedTensorBase,
        options: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        const OP: &str = "from_base";
        let TensorOptions { group, init_rrefs } = options.into();
        let made = check_properties(OP, &base.metadata().tensor_properties).and_then(|()| {
            let (metadata, shards) = (base.metadata().clone(), base.shared_shards().to_vec());
            on_group(OP, base.sharding_spec().clone(), metadata, shards, &group)
        });
        remote::with_references(OP, made, &group, init_rrefs)
    }
}

fn on_group(
    op: &'static str,
    spec: Spec,
    metadata: ShardedTensorMetadata,
    shards: Vec<Arc<Shard>>,
    group: &ProcessGroup,
) -> Result<ShardedTensor> {
    let shards_metadata = group.placed(op, metadata.shards_metadata)?;
    let metadata = ShardedTensorMetadata { shards_metadata, ..metadata };
    let shards = matched(op, shards, &metadata, group.world_rank())?;
    Ok(ShardedTensor::assemble(spec, Arc::new(metadata), shards, group.clone()))
}
