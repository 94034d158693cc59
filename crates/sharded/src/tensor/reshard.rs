//! From one spec to another.

use std::sync::Arc;

use dtensor::is_grad_enabled;

use super::{ShardedTensor, moves::Moves};
use crate::{
    Error, Result, Shard, ShardedTensorMetadata, Spec,
    construct::{check_memory, planned},
    spec::mesh_and_placements,
};

const OP: &str = "reshard";

impl ShardedTensor {
    /// Cuts it in another way: by any spec, on ranks of its group. All ranks of the group call it with the
    /// same spec, or all get an error; all ranks of the world, if they have references to each other's
    /// [shards](ShardedTensor::remote_shards): they get new ones, and the old are stale.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, zeros};
    ///
    /// Runner::threads(3).run(|world| {
    ///     let mut x = zeros(ChunkShardingSpec::over_ranks(0, 0..3)?, &[5, 7], DType::F32, world)?;
    ///     x.reshard(ChunkShardingSpec::over_ranks(1, [2, 0, 1])?)?;
    ///     assert_eq!(x.local_tensor()?.shape(), [[5, 3], [5, 1], [5, 3]][world.rank()]);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn reshard(&mut self, spec: impl Into<Spec>) -> Result<()> {
        let there = match self.is_leaf() {
            true => self.moved(spec.into())?,
            false => self.resharded(spec)?,
        };
        let there = self.with_new_references(OP, there)?;
        *self = ShardedTensor { id: self.id, ..there };
        Ok(())
    }

    /// The same tensor, cut in another way; see [`reshard`](ShardedTensor::reshard). If it wants gradients,
    /// they pass back to this one; for that both specs must be [layouts](ShardedTensor::to_dtensor).
    pub fn resharded(&self, spec: impl Into<Spec>) -> Result<ShardedTensor> {
        let there = match self.requires_grad() && is_grad_enabled() {
            true => self.redistributed(spec.into()),
            false => self.moved(spec.into()),
        };
        Ok(there?.with_remote(self.own_remote()))
    }

    /// By way of distributed tensors, which know the way back.
    fn redistributed(&self, spec: Spec) -> Result<ShardedTensor> {
        let to = self.planned(&spec)?;
        let Some((mesh, placements)) = mesh_and_placements(&to, self.process_group()) else {
            let what = format!("gradients do not pass to {spec:?}, which is no layout on a mesh");
            let way_out = "detach the tensor first, or reshard a parameter in place";
            return Err(Error::refused(OP, what, way_out));
        };
        if self.process_group().rank().is_some() {
            // A redistribution does not say where to, and may look the same on ranks that mean different dims.
            let members = self.process_group().group(OP)?;
            members.about(Moves::new(self, &to).digest()).barrier().map_err(Error::comm(OP))?;
        }
        let there = self.to_dtensor_as(OP)?.redistribute_to(&mesh, &placements)?;
        let local = there.to_local().contiguous();
        let own = to.shards_of(self.process_group().world_rank());
        let own = own.map(|shard| Ok(Arc::new(Shard::new(local.clone(), shard.clone())?)));
        let own = own.collect::<Result<Vec<_>>>()?;
        let group = self.process_group().clone();
        Ok(ShardedTensor::assemble(spec, to, own, group).with_value(there))
    }

    /// What the tensor is to be, if that is possible: the same answer on every rank.
    fn planned(&self, spec: &Spec) -> Result<Arc<ShardedTensorMetadata>> {
        let properties = &self.metadata().tensor_properties;
        let to = planned(OP, spec, self.size(), properties, self.process_group())?;
        self.check_values(OP)?;
        check_memory(&to)?;
        Ok(to)
    }

    /// By one exchange of elements.
    fn moved(&self, spec: Spec) -> Result<ShardedTensor> {
        let (to, group) = (self.planned(&spec)?, self.process_group());
        let shards = match group.rank() {
            None => Vec::new(),
            Some(_) => Moves::new(self, &to).run(OP)?,
        };
        Ok(ShardedTensor::assemble(spec, to, shards, group.clone()))
    }
}
