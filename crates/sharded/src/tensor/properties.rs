//! What can be asked of a tensor without looking at its elements.

use dtensor_dtype::DType;

use super::ShardedTensor;
use crate::{Device, Result, TensorLayout, construct::check_gradients};

impl ShardedTensor {
    /// Size of every dim of the whole tensor.
    pub fn size(&self) -> &[usize] {
        &self.metadata().size
    }

    /// The same: size of every dim of the whole tensor.
    pub fn shape(&self) -> &[usize] {
        self.size()
    }

    /// Number of dims.
    pub fn n_dims(&self) -> usize {
        self.size().len()
    }

    /// Number of elements of the whole tensor.
    pub fn numel(&self) -> usize {
        self.metadata().numel()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.metadata().tensor_properties.dtype
    }

    /// Whether all elements are stored. They are.
    pub fn layout(&self) -> TensorLayout {
        self.metadata().tensor_properties.layout
    }

    /// Whether the elements of every shard are consecutive. They are.
    pub fn is_contiguous(&self) -> bool {
        true
    }

    /// Whether the elements are floats.
    pub fn is_floating_point(&self) -> bool {
        self.dtype().is_float()
    }

    /// Where the shards of this rank lie. A rank without shards says `cpu`.
    pub fn device(&self) -> Device {
        self.local_shards().next().map_or(Device::CPU, |shard| Device::of(shard.tensor()))
    }

    /// Whether the shards of this rank have no values.
    pub fn is_meta(&self) -> bool {
        self.device() == Device::META
    }

    /// Whether the elements are in locked memory. As the metadata say; this build has no such memory.
    pub fn is_pinned(&self) -> bool {
        self.metadata().tensor_properties.pin_memory
    }

    /// Whether gradients are wanted.
    pub fn requires_grad(&self) -> bool {
        self.metadata().tensor_properties.requires_grad
    }

    /// Says whether gradients are wanted; only floats have some. If so, operations on the tensor, and
    /// [`to_dtensor`](ShardedTensor::to_dtensor), begin at one leaf, of which
    /// [`gradient`](ShardedTensor::gradient) gives the gradient. A change of the elements is a new beginning.
    pub fn set_requires_grad(&mut self, requires_grad: bool) -> Result<()> {
        let properties = self.metadata().tensor_properties.clone().requires_grad(requires_grad);
        check_gradients("set_requires_grad", &properties)?;
        self.forget_value();
        self.base_mut().change_metadata(|metadata| metadata.tensor_properties = properties);
        if let Some(published) = self.published() {
            published.set_requires_grad(requires_grad);
        }
        Ok(())
    }

    /// Whether it was not computed from something that wants gradients.
    pub fn is_leaf(&self) -> bool {
        self.value().is_none_or(|value| value.is_leaf() || !value.needs_grad())
    }

    /// The same elements without gradients, and without a way back to what they were computed from.
    pub fn detach(&self) -> ShardedTensor {
        let mut detached = self.clone();
        detached.forget_value();
        if detached.requires_grad() {
            detached.base_mut().change_metadata(|metadata| {
                metadata.tensor_properties.requires_grad = false;
            });
        }
        detached
    }
}
