//! From operations of distributed tensors back to sharded ones.

use std::sync::Arc;

use dtensor::{DTensor, DeviceMesh, Placement};
use dtensor_local::Tensor;

use crate::{Result, Shard, ShardedTensor};

/// The result of an operation as a sharded tensor. Where it is cut as `like`, it has its spec; where it is not
/// cut on some axis, it is cut there as `like` is, or along its first dim.
pub(crate) fn sharded_result(result: &DTensor, like: &ShardedTensor) -> Result<ShardedTensor> {
    let model = like.to_dtensor()?;
    let result = cut_everywhere(result, &model)?;
    let is_same = result.shape() == model.shape()
        && result.placements() == model.placements()
        && result.layout().order() == model.layout().order()
        && result.mesh() == model.mesh();
    if !is_same {
        return ShardedTensor::of_dtensor(&result, like.process_group().clone());
    }
    let mut metadata = like.metadata().clone();
    let properties = metadata.tensor_properties.dtype(result.dtype());
    metadata.tensor_properties = properties.requires_grad(result.needs_grad());
    let local = result.to_local().contiguous();
    let own = like
        .local_shards()
        .map(|shard| Ok(Arc::new(Shard::new(local.clone(), shard.metadata().clone())?)));
    let own = own.collect::<Result<Vec<_>>>()?;
    let (spec, group) = (like.sharding_spec().clone(), like.process_group().clone());
    Ok(ShardedTensor::assemble(spec, Arc::new(metadata), own, group).with_value(result))
}

/// A plain tensor that is the same on every rank, as copies on the mesh of a distributed tensor.
pub(crate) fn copies_beside(plain: &Tensor, mesh: &DeviceMesh) -> Result<DTensor> {
    let placements = vec![Placement::Replicate; mesh.n_axes()];
    Ok(DTensor::from_local_with_shape(plain, mesh, &placements, plain.shape())?)
}

/// Whether there are no copies and no pending reductions: every axis of more than one rank cuts.
pub(crate) fn is_cut_everywhere(tensor: &DTensor) -> bool {
    let is_cut = |(axis, placement): (usize, &Placement)| {
        placement.shard_dim().is_some() || tensor.mesh().mesh().axis_size(axis) == 1
    };
    tensor.placements().iter().enumerate().all(is_cut)
}

/// The same tensor without copies and pending reductions.
fn cut_everywhere(result: &DTensor, model: &DTensor) -> Result<DTensor> {
    if is_cut_everywhere(result) || result.n_dims() == 0 {
        return Ok(result.clone());
    }
    let placements =
        result.placements().iter().zip(model.placements()).map(|(own, model)| {
            match (own.shard_dim(), model.shard_dim()) {
                (Some(_), _) => *own,
                (None, Some(dim)) if dim < result.n_dims() => Placement::Shard(dim),
                _ => Placement::Shard(0),
            }
        });
    Ok(result.redistribute(&placements.collect::<Vec<_>>())?)
}
