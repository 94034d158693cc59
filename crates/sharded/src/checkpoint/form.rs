//! Sharded tensors as distributed ones, which are what checkpoints are made of.

use dtensor::{DTensor, DeviceMesh, Placement};
use dtensor_local::Tensor;

use crate::{
    ChunkShardingSpec, Error, ProcessGroup, Result, ShardedTensor, ShardingSpec,
    ops::is_cut_everywhere, spec::mesh_and_placements,
};

/// The distributed tensor by which a sharded one is saved and loaded. It follows from the metadata alone, so
/// that every rank finds the same.
pub(super) enum Form {
    /// It is one already.
    Same(DTensor),
    /// Cut as it is, on the ranks that have shards: nothing moves.
    Layout(DeviceMesh, Vec<Placement>),
    /// Chunks of a dim on all ranks of the world: elements move once on the way there and once on the way back.
    Chunks(DeviceMesh, usize),
}

impl Form {
    /// Of a tensor with values and known places.
    pub(super) fn of(op: &'static str, tensor: &ShardedTensor) -> Result<Form> {
        tensor.check_values(op)?;
        let (metadata, group) = (tensor.metadata(), tensor.process_group());
        if let Some(value) = tensor.value() {
            return Ok(Form::Same(value.detach()));
        }
        let mut owners = Vec::with_capacity(metadata.shards_metadata.len());
        for shard in &metadata.shards_metadata {
            owners.push(group.owner_of(op, shard.placement())?);
        }
        owners.sort_unstable();
        owners.dedup();
        let owners = match owners == group.world_ranks() {
            true => group.clone(),
            false => ProcessGroup::new(group.world(), &owners)?,
        };
        if let Some((mesh, placements)) = mesh_and_placements(metadata, &owners) {
            return Ok(Form::Layout(mesh, placements));
        }
        let (mesh, placement) = chunks(op, tensor.size(), group)?;
        Ok(Form::Chunks(mesh, placement))
    }

    /// The elements in this form. All ranks of the world call it.
    pub(super) fn filled(self, op: &'static str, tensor: &ShardedTensor) -> Result<DTensor> {
        let (mesh, placements, shards) = match self {
            Form::Same(tensor) => return Ok(tensor),
            Form::Layout(mesh, placements) => (mesh, placements, tensor.shared_shards()),
            Form::Chunks(mesh, dim) => {
                let world = ProcessGroup::of_world(mesh.world());
                let spec = ChunkShardingSpec::over_ranks(dim as isize, 0..world.size())?;
                let properties = &tensor.metadata().tensor_properties;
                let to = spec.build_metadata(tensor.size(), properties)?;
                let shards = tensor.spread(op, &to, &world)?;
                (mesh, vec![Placement::Shard(dim)], shards)
            }
        };
        let local = match &*shards {
            [only] => only.tensor().clone(),
            // A rank that is not on the mesh.
            _ => Tensor::empty(&[0], tensor.dtype())?,
        };
        Ok(DTensor::from_local_with_shape(&local, &mesh, &placements, tensor.size())?)
    }

    /// Any values in this form, to be overwritten. Nothing is sent.
    pub(super) fn blank(&self, tensor: &ShardedTensor) -> Result<DTensor> {
        let empty = |mesh: &DeviceMesh, placements: &[Placement]| {
            dtensor::empty(tensor.size(), tensor.dtype(), mesh, placements)
        };
        Ok(match self {
            Form::Same(tensor) => tensor.empty_like()?,
            Form::Layout(mesh, placements) => empty(mesh, placements)?,
            Form::Chunks(mesh, dim) => empty(mesh, &[Placement::Shard(*dim)])?,
        })
    }
}

/// Gives a sharded tensor the elements of a distributed one of its size, in whatever layout that is. All ranks
/// of the world call it.
pub(super) fn fill(op: &'static str, tensor: &mut ShardedTensor, from: &DTensor) -> Result<()> {
    let world = ProcessGroup::of_world(tensor.process_group().world());
    let from = match is_cut_everywhere(from) {
        true => from.detach(),
        // Of copies one is enough, and a pending value is none yet.
        false if from.n_dims() == 0 => {
            let first = from.mesh().mesh().ranks().min().unwrap_or(0);
            let alone = ProcessGroup::new(world.world(), &[first])?;
            from.detach().redistribute_to(&line(op, &alone)?, &[Placement::Replicate])?
        }
        false => {
            let (mesh, dim) = chunks(op, from.shape(), &world)?;
            from.detach().redistribute_to(&mesh, &[Placement::Shard(dim)])?
        }
    };
    let from = ShardedTensor::of_dtensor(&from, world.clone())?;
    let dtype = tensor.dtype();
    let shards = from.spread(op, tensor.metadata(), &world)?;
    tensor.modify_shards(|number, _, own| {
        *own = shards[number].tensor().to_dtype(dtype)?;
        Ok(())
    })
}

/// A mesh of all ranks of the world and the dim that is cut on it: the first of which every rank gets
/// something, or else the longest.
fn chunks(op: &'static str, size: &[usize], group: &ProcessGroup) -> Result<(DeviceMesh, usize)> {
    let world = ProcessGroup::of_world(group.world());
    let reaches_all = (0..size.len()).find(|dim| size[*dim] >= world.size());
    let dim = reaches_all.or_else(|| (0..size.len()).max_by_key(|dim| size[*dim])).unwrap_or(0);
    Ok((line(op, &world)?, dim))
}

/// The ranks of a group that are equally spaced, as a mesh.
fn line(op: &'static str, group: &ProcessGroup) -> Result<DeviceMesh> {
    let no_mesh = || Error::refused(op, format!("{group:?} is no mesh"), "number ranks from 0");
    group.line().ok_or_else(no_mesh)
}
