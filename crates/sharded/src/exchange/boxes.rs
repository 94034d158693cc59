//! Elements of boxes, one after the other, as they are sent.

use std::{ops::Range, sync::Arc};

use dtensor_comm::ValuesMut;
use dtensor_dtype::DType;
use dtensor_local::Tensor;

use crate::{Error, Result, Shard, ShardMetadata};

/// The elements of shards, one shard after the other, in one dim.
pub(crate) fn pack_shards(dtype: DType, shards: &[Arc<Shard>]) -> Result<Tensor> {
    if let [only] = shards
        && only.tensor().is_contiguous()
    {
        return Ok(only.tensor().reshape(&[only.tensor().numel()])?);
    }
    let tensors: Vec<Tensor> = shards.iter().map(|shard| shard.tensor().clone()).collect();
    Ok(Tensor::pack(dtype, &tensors)?)
}

/// The whole tensor of which `packed` has the elements, one shard after the other.
pub(crate) fn unpack_shards(
    packed: &Tensor,
    shards: &[&ShardMetadata],
    size: &[usize],
) -> Result<Tensor> {
    if are_in_order(shards, size) {
        return Ok(packed.reshape(size)?);
    }
    let mut whole = Tensor::empty(size, packed.dtype())?;
    let mut at = 0;
    for shard in shards.iter().filter(|shard| !shard.is_empty()) {
        let values = packed.narrow(0, at, shard.numel())?.reshape(shard.sizes())?;
        whole.slice_assign_in_place(&shard.index_box().0, &values)?;
        at += shard.numel();
    }
    Ok(whole)
}

/// The part of a tensor in a box: one range per dim.
pub(crate) fn view(tensor: &Tensor, ranges: &[Range<usize>]) -> Result<Tensor> {
    let mut view = tensor.clone();
    for (dim, range) in ranges.iter().enumerate() {
        if range.len() != tensor.shape()[dim] {
            view = view.narrow(dim as isize, range.start, range.len())?;
        }
    }
    Ok(view)
}

/// A tensor of one dim whose elements a call receives.
pub(crate) fn received(
    op: &'static str,
    n: usize,
    dtype: DType,
    call: impl FnOnce(ValuesMut<'_>) -> Result<(), dtensor_comm::CommError>,
) -> Result<Tensor> {
    Tensor::from_bytes_with(&[n], dtype, |bytes| {
        ValuesMut::from_bytes(dtype, bytes).and_then(call).map_err(Error::comm(op))
    })
}

/// Whether the elements of the shards, one after the other, are those of the whole in their order.
fn are_in_order(shards: &[&ShardMetadata], size: &[usize]) -> bool {
    let mut reached = 0;
    for shard in shards.iter().filter(|shard| !shard.is_empty()) {
        // Consecutive: after the first dim of which it has more than one index, it has all of the others.
        let mut inner = shard.sizes().iter().zip(size).skip_while(|(own, _)| **own == 1).skip(1);
        let place =
            shard.offsets().iter().zip(size).fold(0, |at, (offset, size)| at * size + offset);
        if place != reached || !inner.all(|(own, size)| own == size) {
            return false;
        }
        reached += shard.numel();
    }
    true
}
