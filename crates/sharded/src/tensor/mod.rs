//! The sharded tensor.

mod base;
mod compare;
mod distributed;
mod fill;
mod gather;
mod kaiming;
mod like;
mod moves;
mod properties;
mod reshard;
mod spread;
mod to;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use dtensor::DTensor;
use dtensor_local::Tensor;

use crate::{
    Error, ProcessGroup, Result, Shard, ShardMetadata, ShardedTensorMetadata, Spec, remote::Remote,
};

pub use base::ShardedTensorBase;
pub use kaiming::{Fan, Nonlinearity};

/// A tensor of which boxes lie on the ranks of a group: every rank has its own boxes, and knows where all are.
///
/// Every element lies in one box. How it is cut is said by a [`Spec`]; where each box lies, by its
/// [`ShardMetadata`]. A value: a clone has the same elements and goes its own way. Cloning is cheap; what
/// changes a tensor copies what another one has as well.
///
/// It has an [identity](ShardedTensor::id), and [shards that can be shared](ShardedTensor::shared_shards).
pub struct ShardedTensor {
    id: ShardedTensorId,
    base: ShardedTensorBase,
    group: ProcessGroup,
    /// The same as a distributed tensor, once somebody has asked for it: what operations gave, or the leaf that
    /// gradients belong to.
    value: Arc<OnceLock<DTensor>>,
    /// References to the shards of other ranks, where they are wanted.
    remote: Option<Arc<Remote>>,
}

/// What tells one [`ShardedTensor`] of this process from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardedTensorId(u64);

impl ShardedTensor {
    /// Which tensor of this process it is: no other has the same, not even a clone. Ids of one tensor on
    /// different ranks may differ.
    pub fn id(&self) -> ShardedTensorId {
        self.id
    }

    /// All shards, the size, and what the elements are. The same on every rank.
    pub fn metadata(&self) -> &ShardedTensorMetadata {
        self.base.metadata()
    }

    /// How it is cut.
    pub fn sharding_spec(&self) -> &Spec {
        self.base.sharding_spec()
    }

    /// The ranks that it lies on.
    pub fn process_group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The shards of this rank, in the order of the metadata. None on a rank that is not in the group.
    pub fn local_shards(&self) -> impl ExactSizeIterator<Item = &Shard> {
        self.base.local_shards()
    }

    /// The shards of this rank, to be kept or read elsewhere. They do not change with the tensor.
    pub fn shared_shards(&self) -> Vec<Arc<Shard>> {
        self.base.shared_shards().to_vec()
    }

    /// The elements of this rank, if it has exactly one shard.
    pub fn local_tensor(&self) -> Result<&Tensor> {
        match self.base.shared_shards() {
            [only] => Ok(only.tensor()),
            shards => Err(Error::OneShardNeeded {
                op: "local_tensor".into(),
                rank: self.group.world_rank(),
                got: shards.len(),
            }),
        }
    }

    /// Puts together what belongs together: `shards` are those of this rank, in the order of the metadata.
    pub(crate) fn assemble(
        spec: Spec,
        metadata: Arc<ShardedTensorMetadata>,
        shards: Vec<Arc<Shard>>,
        group: ProcessGroup,
    ) -> ShardedTensor {
        let base = ShardedTensorBase::assemble(spec, metadata, shards);
        let (id, value) = (ShardedTensorId::next(), Arc::default());
        ShardedTensor { id, base, group, value, remote: None }
    }

    /// A tensor in the same boxes whose shards `make` gives from those of this one. `metadata` may differ in
    /// what the elements are.
    pub(crate) fn with_tensors(
        &self,
        metadata: Arc<ShardedTensorMetadata>,
        mut make: impl FnMut(&Shard) -> Result<Tensor>,
    ) -> Result<ShardedTensor> {
        let remade = |shard: &Shard| -> Result<Arc<Shard>> {
            Ok(Arc::new(Shard::new(make(shard)?, shard.metadata().clone())?))
        };
        let shards = self.local_shards().map(remade).collect::<Result<Vec<_>>>()?;
        let spec = self.sharding_spec().clone();
        Ok(ShardedTensor::assemble(spec, metadata, shards, self.group.clone()))
    }

    /// Changes the elements of this rank. What was computed from them before does not change.
    pub(crate) fn modify_shards(
        &mut self,
        change: impl FnMut(usize, &ShardMetadata, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        // Dropped first, so that it does not keep the elements from being changed in place.
        self.forget_value();
        let Some(published) = self.published() else { return self.base.modify_shards(change) };
        published.begin_all();
        let changed = self.base.modify_shards(change);
        published.end_all(self.base.shared_shards());
        changed
    }

    /// The elements of one shard, taken out so that they can be changed in place; to be put back.
    pub(crate) fn take_shard(&mut self, number: usize) -> Result<Tensor> {
        self.forget_value();
        if let Some(published) = self.published() {
            published.begin(number);
        }
        self.base.take_shard(number)
    }

    /// Puts the elements of one shard back.
    pub(crate) fn put_shard(&mut self, number: usize, elements: Tensor) -> Result<()> {
        let put = self.base.put_shard(number, elements);
        // Whatever came of it: who fetches it waits until then.
        if let (Some(published), Some(shard)) =
            (self.published(), self.base.shared_shards().get(number))
        {
            published.end(number, shard);
        }
        put
    }

    pub(crate) fn shared_metadata(&self) -> &Arc<ShardedTensorMetadata> {
        self.base.shared_metadata()
    }

    /// The same as a distributed tensor, if there is one already.
    pub(crate) fn value(&self) -> Option<&DTensor> {
        self.value.get()
    }

    /// With the distributed tensor that has the same elements.
    pub(crate) fn with_value(self, value: DTensor) -> ShardedTensor {
        ShardedTensor { value: Arc::new(value.into()), ..self }
    }

    pub(crate) fn forget_value(&mut self) {
        self.value = Arc::default();
    }

    /// The same tensor, not another one: for operations, so that gradients find the way back to it.
    pub(crate) fn handle(&self) -> ShardedTensor {
        let (base, group) = (self.base.clone(), self.group.clone());
        let (value, remote) = (Arc::clone(&self.value), self.remote.clone());
        ShardedTensor { id: self.id, base, group, value, remote }
    }

    /// With references, or the wish for them.
    pub(crate) fn with_remote(self, remote: Option<Arc<Remote>>) -> ShardedTensor {
        ShardedTensor { remote, ..self }
    }

    pub(crate) fn remote(&self) -> Option<&Arc<Remote>> {
        self.remote.as_ref()
    }

    pub(crate) fn base_mut(&mut self) -> &mut ShardedTensorBase {
        &mut self.base
    }

    pub(crate) fn base(&self) -> &ShardedTensorBase {
        &self.base
    }
}

/// Another tensor with the same elements, and an id of its own. One that wants gradients has its own; what
/// was computed was computed from the same. One with [remote shards](ShardedTensor::remote_shards) has its
/// own.
impl Clone for ShardedTensor {
    fn clone(&self) -> ShardedTensor {
        let (base, group) = (self.base.clone(), self.group.clone());
        let value = if self.is_leaf() { Arc::default() } else { Arc::clone(&self.value) };
        let remote = self.own_remote();
        ShardedTensor { id: ShardedTensorId::next(), base, group, value, remote }
    }
}

impl fmt::Debug for ShardedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardedTensor({:?})", self.metadata())
    }
}

impl ShardedTensorId {
    fn next() -> ShardedTensorId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: that no two are the same is all that counts.
        ShardedTensorId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for ShardedTensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
