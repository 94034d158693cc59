//! New tensors that are cut as this one: of the same size, dtype and group, and with gradients if this one has
//! some.

use dtensor::Scalar;
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::Result;

impl ShardedTensor {
    /// Any values.
    pub fn empty_like(&self) -> Result<ShardedTensor> {
        self.like(|tensor| Ok(tensor.empty_like()?))
    }

    /// Zeros.
    pub fn zeros_like(&self) -> Result<ShardedTensor> {
        self.like(|tensor| Ok(tensor.zeros_like()?))
    }

    /// Ones.
    pub fn ones_like(&self) -> Result<ShardedTensor> {
        self.like(|tensor| Ok(tensor.ones_like()?))
    }

    /// One value, cast to the dtype.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<ShardedTensor> {
        let value = value.into();
        self.like(|tensor| Ok(tensor.full_like(value)?))
    }

    /// Values evenly in `0..1`; see [`rand`](crate::rand).
    pub fn rand_like(&self) -> Result<ShardedTensor> {
        let mut new = self.empty_like()?;
        new.fill_uniform(0.0, 1.0)?;
        Ok(new)
    }

    /// Gaussian values of mean 0 and standard deviation 1.
    pub fn randn_like(&self) -> Result<ShardedTensor> {
        let mut new = self.empty_like()?;
        new.fill_normal(0.0, 1.0)?;
        Ok(new)
    }

    fn like(&self, make: impl Fn(&Tensor) -> Result<Tensor>) -> Result<ShardedTensor> {
        self.with_tensors(self.shared_metadata().clone(), |shard| make(shard.tensor()))
    }
}
