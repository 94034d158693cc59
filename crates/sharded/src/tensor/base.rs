//! Shards and metadata without ranks to communicate with.

use std::sync::Arc;

use dtensor_local::Tensor;

use crate::{Error, Result, Shard, ShardMetadata, ShardedTensorMetadata, Spec, construct};

/// Some shards of a tensor, and the metadata of all: what a [`ShardedTensor`](crate::ShardedTensor) is before
/// it has a group, or where none is needed, as in tools that read and write checkpoints. It may hold the shards
/// of several ranks.
#[derive(Clone, Debug)]
pub struct ShardedTensorBase {
    spec: Spec,
    metadata: Arc<ShardedTensorMetadata>,
    shards: Vec<Arc<Shard>>,
}

impl ShardedTensorBase {
    /// These shards of a tensor that is described by `metadata`; without a spec, it follows from those. Shards
    /// of any ranks are taken; whether they are what the metadata say is checked when a group is
    /// [added](crate::ShardedTensor::from_base).
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Shard, ShardedTensorBase, ShardingSpec, Tensor};
    ///
    /// let metadata = ChunkShardingSpec::over_ranks(0, [0, 1])?.build_metadata(&[4, 2], &DType::F32.into())?;
    /// let second = Shard::from_tensor_and_offsets(Tensor::full(&[2, 2], 1.0_f32)?, &[2, 0], 1)?;
    /// let base = ShardedTensorBase::new(vec![second], metadata, None)?;
    /// assert_eq!(base.local_shards().len(), 1);
    /// assert!(base.sharding_spec().as_chunk().is_some());
    /// # Ok::<(), dtensor_sharded::Error>(())
    /// ```
    pub fn new(
        shards: Vec<Shard>,
        metadata: ShardedTensorMetadata,
        spec: Option<Spec>,
    ) -> Result<ShardedTensorBase> {
        let (spec, metadata) = construct::settle("ShardedTensorBase", metadata, spec)?;
        let shards = shards.into_iter().map(Arc::new).collect();
        Ok(ShardedTensorBase { spec, metadata: Arc::new(metadata), shards })
    }

    /// All shards, the size, and what the elements are.
    pub fn metadata(&self) -> &ShardedTensorMetadata {
        &self.metadata
    }

    /// How the tensor is cut.
    pub fn sharding_spec(&self) -> &Spec {
        &self.spec
    }

    /// The shards that are here.
    pub fn local_shards(&self) -> impl ExactSizeIterator<Item = &Shard> {
        self.shards.iter().map(|shard| &**shard)
    }

    pub(super) fn assemble(
        spec: Spec,
        metadata: Arc<ShardedTensorMetadata>,
        shards: Vec<Arc<Shard>>,
    ) -> ShardedTensorBase {
        ShardedTensorBase { spec, metadata, shards }
    }

    pub(crate) fn shared_metadata(&self) -> &Arc<ShardedTensorMetadata> {
        &self.metadata
    }

    pub(crate) fn shared_shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    pub(crate) fn change_metadata(&mut self, change: impl FnOnce(&mut ShardedTensorMetadata)) {
        change(Arc::make_mut(&mut self.metadata));
    }

    /// Changes elements. Sizes and dtypes stay as they are.
    pub(super) fn modify_shards(
        &mut self,
        mut change: impl FnMut(usize, &ShardMetadata, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        for (number, shard) in self.shards.iter_mut().enumerate() {
            let shard = Arc::make_mut(shard);
            let metadata = shard.metadata().clone();
            shard.modify(|tensor| change(number, &metadata, tensor))?;
        }
        Ok(())
    }

    /// The elements of one shard, taken out so that nobody else has them; to be [put](Self::put_shard) back.
    pub(super) fn take_shard(&mut self, number: usize) -> Result<Tensor> {
        match self.shards.get_mut(number) {
            Some(shard) => Arc::make_mut(shard).take(),
            None => Err(Error::NoShards { op: "take_shard".into() }),
        }
    }

    /// The elements of one shard, if they are of its size and dtype; else zeros, and an error.
    pub(super) fn put_shard(&mut self, number: usize, elements: Tensor) -> Result<()> {
        match self.shards.get_mut(number) {
            Some(shard) => Arc::make_mut(shard).put(elements),
            None => Err(Error::NoShards { op: "put_shard".into() }),
        }
    }
}
