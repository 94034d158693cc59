//! From one tensor per rank and a spec.

use std::sync::Arc;

use dtensor_local::Tensor;

use super::planned;
use crate::{
    Error, ProcessGroup, Result, Shard, ShardMetadata, ShardedTensor, Spec, TensorOptions,
    TensorProperties, remote,
};

impl ShardedTensor {
    /// The tensor of this size, cut by a spec, of which every rank has its shard already. A rank with several
    /// shards uses the tensor for each; one without a shard has no use for it.
    ///
    /// Nothing is sent: a tensor that is not of the size of its shard is refused on the rank that has it.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, Runner, ShardedTensor, Tensor};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mine = Tensor::full(&[5, 4], world.rank() as f32)?;
    ///     let rows = ChunkShardingSpec::over_ranks(0, 0..2)?;
    ///     let x = ShardedTensor::from_local_tensor(&mine, rows, &[10, 4], world)?;
    ///     assert_eq!(x.local_tensor()?.shape(), [5, 4]);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn from_local_tensor(
        local: &Tensor,
        spec: impl Into<Spec>,
        size: &[usize],
        options: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        const OP: &str = "from_local_tensor";
        let TensorOptions { group, init_rrefs } = options.into();
        let made = made(OP, local, spec.into(), size, &group);
        remote::with_references(OP, made, &group, init_rrefs)
    }
}

fn made(
    op: &'static str,
    local: &Tensor,
    spec: Spec,
    size: &[usize],
    group: &ProcessGroup,
) -> Result<ShardedTensor> {
    let rank = group.world_rank();
    let metadata = planned(op, &spec, size, &TensorProperties::new(local.dtype()), group)?;
    if !local.is_contiguous() {
        return Err(Error::NotContiguous { op: op.into() });
    }
    let made = |shard: &ShardMetadata| match local.shape() == shard.sizes() {
        true => Ok(Arc::new(Shard::new(local.clone(), shard.clone())?)),
        false => Err(Error::Incompatible {
            op: op.into(),
            rank,
            property: "size".into(),
            want: format!("{:?}", shard.sizes()).into(),
            got: format!("{:?}", local.shape()).into(),
        }),
    };
    let own = metadata.shards_of(rank).map(made).collect::<Result<Vec<_>>>()?;
    Ok(ShardedTensor::assemble(spec, metadata, own, group.clone()))
}
