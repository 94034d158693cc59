//! Other devices and dtypes.

use std::sync::Arc;

use dtensor::is_grad_enabled;
use dtensor_dtype::DType;
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::{
    Device, Error, Result, Shard, ShardMetadata, ShardedTensorMetadata, construct::check_gradients,
    infer_sharding_spec, ops::sharded_result, spec::mesh_and_placements,
};

impl ShardedTensor {
    /// The same tensor in the memory of the processes.
    pub fn cpu(&self) -> Result<ShardedTensor> {
        self.to_device(Device::CPU)
    }

    /// The same tensor with another element type. If it wants gradients, they pass back where its cut is a
    /// [layout](ShardedTensor::to_dtensor). Otherwise it is a leaf, as nothing can be computed with gradients in
    /// such a cut, and so is the result: it wants gradients of its own.
    pub fn to_dtype(&self, dtype: DType) -> Result<ShardedTensor> {
        const OP: &str = "to_dtype";
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let metadata = self.metadata_with_dtype(OP, dtype)?;
        if self.requires_grad() && is_grad_enabled() && self.is_layout(OP) {
            let there = sharded_result(&self.to_dtensor_as(OP)?.to_dtype(dtype)?, self)?;
            return Ok(there.with_remote(self.own_remote()));
        }
        let there = self.with_tensors(metadata, |shard| Ok(shard.tensor().to_dtype(dtype)?))?;
        Ok(there.with_remote(self.own_remote()))
    }

    /// The same tensor with the element type of another.
    pub fn type_as(&self, other: &ShardedTensor) -> Result<ShardedTensor> {
        self.to_dtype(other.dtype())
    }

    /// The same tensor on a kind of device, on every rank: `cpu`, or `meta`, where it loses its values. From
    /// there it cannot come back, and other devices this build does not have.
    pub fn to_device(&self, device: Device) -> Result<ShardedTensor> {
        const OP: &str = "to_device";
        device.check_available(OP)?;
        let shards = &self.metadata().shards_metadata;
        let is_on = |shard: &ShardMetadata| {
            shard.placement().is_some_and(|placement| placement.device() == device)
        };
        if shards.iter().all(is_on) {
            return Ok(self.clone());
        }
        if device == Device::CPU {
            return Err(Error::Unsupported {
                op: OP.into(),
                what: "shards on meta have no values to bring to cpu".into(),
                way_out: "make the tensor anew with empty".into(),
            });
        }
        let moved = |shard: &ShardMetadata| match shard.placement() {
            Some(placement) => shard.clone().with_placement(placement.with_device(device)),
            None => shard.clone(),
        };
        let metadata = ShardedTensorMetadata {
            shards_metadata: shards.iter().map(moved).collect(),
            ..self.metadata().clone()
        };
        let spec = infer_sharding_spec(&metadata.shards_metadata)?;
        let made = |shard: &Shard| -> Result<Arc<Shard>> {
            let tensor = Tensor::meta(shard.tensor().shape(), self.dtype())?;
            Ok(Arc::new(Shard::new(tensor, moved(shard.metadata()))?))
        };
        let local = self.local_shards().map(made).collect::<Result<Vec<_>>>()?;
        let group = self.process_group().clone();
        let there = ShardedTensor::assemble(spec, Arc::new(metadata), local, group);
        Ok(there.with_remote(self.own_remote()))
    }

    /// The same tensor on another device, or with another element type, or both.
    pub fn to(&self, device: Option<Device>, dtype: Option<DType>) -> Result<ShardedTensor> {
        let there = match device {
            Some(device) => self.to_device(device)?,
            None => self.clone(),
        };
        match dtype {
            Some(dtype) => there.to_dtype(dtype),
            None => Ok(there),
        }
    }

    /// Whether there can be a distributed tensor that is cut in the same way. The same on every rank.
    fn is_layout(&self, op: &'static str) -> bool {
        let cut = || mesh_and_placements(self.metadata(), self.process_group());
        self.value().is_some() || (self.check_values(op).is_ok() && cut().is_some())
    }

    pub(crate) fn metadata_with_dtype(
        &self,
        op: &'static str,
        dtype: DType,
    ) -> Result<Arc<ShardedTensorMetadata>> {
        let mut metadata = self.metadata().clone();
        metadata.tensor_properties = metadata.tensor_properties.dtype(dtype);
        check_gradients(op, &metadata.tensor_properties)?;
        Ok(Arc::new(metadata))
    }
}
