//! Whether tensors are the same.

use dtensor_comm::ReduceOp;
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::{Device, Error, Result, ShardPlacement, TensorProperties};

impl ShardedTensor {
    /// Whether both are cut in the same way and have the same elements. The answer is the same on every rank.
    pub fn equal(&self, other: &ShardedTensor) -> Result<bool> {
        self.all_shards("equal", other, |a, b| Ok(a.equal(b)?))
    }

    /// Whether both are cut in the same way and differ by no more than `absolute + relative * |other|`
    /// anywhere. As `torch.allclose`.
    pub fn allclose(
        &self,
        other: &ShardedTensor,
        relative: f64,
        absolute: f64,
        equal_nan: bool,
    ) -> Result<bool> {
        self.all_shards("allclose", other, |a, b| Ok(a.allclose(b, relative, absolute, equal_nan)?))
    }

    fn all_shards(
        &self,
        op: &'static str,
        other: &ShardedTensor,
        same: impl Fn(&Tensor, &Tensor) -> Result<bool>,
    ) -> Result<bool> {
        let group = self.process_group();
        group.check_same(op, 1, other.process_group())?;
        // The metadata are the same on every rank, and so is this answer.
        if !self.has_same_metadata(other) {
            return Ok(false);
        }
        self.check_values(op)?;
        // What is wrong with the arguments is so on every rank, also on one that has nothing to compare.
        let nothing = Tensor::zeros(&[0], self.dtype())?;
        same(&nothing, &nothing)?;
        if group.rank().is_none() {
            return Ok(true);
        }
        let mut everywhere = [1_i64];
        for (a, b) in self.local_shards().zip(other.local_shards()) {
            everywhere[0] &= i64::from(same(a.tensor(), b.tensor())?);
        }
        let members = group.group(op)?;
        members.all_reduce(&mut everywhere, ReduceOp::Min).map_err(Error::comm(op))?;
        Ok(everywhere[0] == 1)
    }

    /// Whether shards, size and properties are the same; the strides of what a tensor was once made from do not
    /// count.
    fn has_same_metadata(&self, other: &ShardedTensor) -> bool {
        let properties = |tensor: &ShardedTensor| TensorProperties {
            strides: None,
            ..tensor.metadata().tensor_properties.clone()
        };
        self.size() == other.size()
            && self.metadata().shards_metadata == other.metadata().shards_metadata
            && properties(self) == properties(other)
    }

    /// An error if some shard, on whatever rank, has no values.
    pub(crate) fn check_values(&self, op: &'static str) -> Result<()> {
        let places = self.metadata().shards_metadata.iter().filter_map(|shard| shard.placement());
        match places.map(ShardPlacement::device).find(|device| *device != Device::CPU) {
            None => Ok(()),
            Some(device) => Err(Error::Unsupported {
                op: op.into(),
                what: format!("there are shards on {device}, which have no values here").into(),
                way_out: "make the tensor anew on cpu".into(),
            }),
        }
    }
}
