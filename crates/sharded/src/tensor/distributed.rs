//! To distributed tensors and back, without copies.

use std::sync::Arc;

use dtensor::{DTensor, Gradients, LocalOptions};
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::{
    Error, ProcessGroup, Result, Shard, ShardedTensorMetadata, Spec, TensorProperties,
    exchange::view,
    spec::{mesh_and_placements, of_layout},
};

impl ShardedTensor {
    /// The same as a distributed tensor, sharing its elements: if every rank has one shard, and these are
    /// chunks of one dim in the order of the ranks, or a grid of chunks of several. With gradients, it is the
    /// same leaf every time.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, ShardedTensor, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let x = ones(ChunkShardingSpec::over_ranks(1, 0..2)?, &[3, 5], DType::F32, world)?;
    ///     let y = x.to_dtensor()?;
    ///     assert_eq!(y.layout().to_string(), "[S(1)]");
    ///     assert!(ShardedTensor::from_dtensor(&y)?.equal(&x)?);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn to_dtensor(&self) -> Result<DTensor> {
        self.to_dtensor_as("to_dtensor")
    }

    /// As [`to_dtensor`](ShardedTensor::to_dtensor), in the name of an operation.
    pub(crate) fn to_dtensor_as(&self, op: &'static str) -> Result<DTensor> {
        if let Some(value) = self.value() {
            return Ok(value.clone());
        }
        self.check_values(op)?;
        let (mesh, placements) = mesh_and_placements(self.metadata(), self.process_group())
            .ok_or_else(|| Error::Unsupported {
                op: op.into(),
                what: format!("{:?} is no layout on a mesh", self.sharding_spec()).into(),
                way_out: "reshard it first to chunks of one dim, in the order of the ranks".into(),
            })?;
        let local = match self.base().shared_shards() {
            [only] => only.tensor().clone(),
            _ => Tensor::empty(&[0], self.dtype())?,
        };
        let options = LocalOptions { shape: Some(self.size().to_vec()), ..LocalOptions::default() };
        let made = DTensor::from_local_with(&local, &mesh, &placements, &options)?;
        let made = if self.requires_grad() { made.requires_grad()? } else { made };
        Ok(self.value.get_or_init(|| made).clone())
    }

    /// A distributed tensor as a sharded one on the ranks of its mesh, sharing its elements. Every axis must
    /// cut: a copy or a pending reduction is no shard. One axis gives chunks, several give a list of boxes.
    pub fn from_dtensor(tensor: &DTensor) -> Result<ShardedTensor> {
        let mut ranks: Vec<usize> = tensor.mesh().mesh().ranks().collect();
        ranks.sort_unstable();
        ShardedTensor::of_dtensor(tensor, ProcessGroup::new(tensor.mesh().world(), &ranks)?)
    }

    /// As [`from_dtensor`](ShardedTensor::from_dtensor), on the group of these ranks that is there already.
    pub(crate) fn of_dtensor(tensor: &DTensor, group: ProcessGroup) -> Result<ShardedTensor> {
        let (layout, mesh) = (tensor.layout(), tensor.mesh());
        let (spec, shards) = of_layout("from_dtensor", layout)?;
        let properties = TensorProperties::new(tensor.dtype()).requires_grad(tensor.needs_grad());
        let metadata = ShardedTensorMetadata {
            shards_metadata: shards,
            size: tensor.shape().to_vec(),
            tensor_properties: properties,
        };
        let local = tensor.to_local();
        let mut own = Vec::new();
        for shard in metadata.shards_of(mesh.world().rank()) {
            let part = match mesh.coord() {
                Some(coord) if !shard.is_empty() => {
                    let place = layout.local_box(coord, &shard.index_box());
                    let ranges = place.map(|place| place.0).unwrap_or_default();
                    view(&local, &ranges)?.contiguous()
                }
                _ => local.clone(),
            };
            own.push(Arc::new(Shard::new(part, shard.clone())?));
        }
        let sharded = ShardedTensor::assemble(spec, Arc::new(metadata), own, group);
        Ok(sharded.with_value(tensor.clone()))
    }

    /// The gradient that a walk has found for this tensor, cut as it is, if there is one.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, full};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mut x = full(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3], 2.0, DType::F64, world)?;
    ///     x.set_requires_grad(true)?;
    ///     let loss = x.to_dtensor()?.square()?.sum(&[], false)?;
    ///     let gradient = x.gradient(&loss.backward()?)?.unwrap();
    ///     assert_eq!(gradient.full_tensor()?.to_vec::<f64>()?, [4.0; 3]);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn gradient(&self, gradients: &Gradients) -> Result<Option<ShardedTensor>> {
        let Some(found) = self.value().and_then(|leaf| gradients.get(leaf)) else {
            return Ok(None);
        };
        let gradient = ShardedTensor::of_dtensor(found, self.process_group().clone())?;
        // As it is said here, which may be another spec for the same boxes.
        let spec: Spec = self.sharding_spec().clone();
        match gradient.metadata().shards_metadata == self.metadata().shards_metadata {
            true => Ok(Some(gradient)),
            false => Ok(Some(gradient.resharded(spec)?)),
        }
    }
}
