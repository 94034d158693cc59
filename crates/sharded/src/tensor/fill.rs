//! New elements for a tensor that is there.

use dtensor::Scalar;
use dtensor_local::{
    Tensor,
    random::{Distribution, Stream},
};

use super::ShardedTensor;
use crate::{
    Error, Result,
    construct::{random_shard, take_stream},
};

impl ShardedTensor {
    /// Takes the elements of another tensor that is cut in the same way, converted to the dtype of this one.
    /// Nothing is sent.
    pub fn copy_from(&mut self, other: &ShardedTensor) -> Result<()> {
        const OP: &str = "copy_from";
        self.process_group().check_same(OP, 1, other.process_group())?;
        // All shards, not only those of this rank: so every rank finds it.
        if self.size() != other.size()
            || self.metadata().shards_metadata != other.metadata().shards_metadata
        {
            return Err(Error::DifferentShards { op: OP.into() });
        }
        let from: Vec<Tensor> = other.local_shards().map(|shard| shard.tensor().clone()).collect();
        self.modify_shards(|number, _, tensor| Ok(tensor.copy_from(&from[number])?))
    }

    /// One value everywhere.
    pub fn fill_constant(&mut self, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        self.modify_shards(|_, _, tensor| {
            *tensor = tensor.full_like(value)?;
            Ok(())
        })
    }

    /// Values evenly in `low..high`. Random values do not depend on how the tensor is cut; see
    /// [`rand`](crate::rand).
    pub fn fill_uniform(&mut self, low: f64, high: f64) -> Result<()> {
        self.fill_random(Distribution::Uniform { low, high })
    }

    /// Gaussian values.
    pub fn fill_normal(&mut self, mean: f64, std: f64) -> Result<()> {
        self.fill_random(Distribution::Normal { mean, std })
    }

    fn fill_random(&mut self, distribution: Distribution) -> Result<()> {
        // What is wrong is so on every rank, also on one that has nothing to fill.
        Tensor::random(&[0], self.dtype(), distribution, Stream::default())?;
        let stream = take_stream();
        let metadata = self.shared_metadata().clone();
        let (size, properties) = (&metadata.size, &metadata.tensor_properties);
        self.modify_shards(|_, shard, tensor| {
            if !tensor.is_meta() {
                *tensor = random_shard(shard, size, properties, distribution, stream)?;
            }
            Ok(())
        })
    }
}
