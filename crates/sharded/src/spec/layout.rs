//! Specs and layouts of distributed tensors, where the one can say what the other says.

use dtensor::{DeviceMesh, Placement};
use dtensor_layout::{Layout, Mesh, chunk};

use super::{ChunkShardingSpec, EnumerableShardingSpec, Spec};
use crate::{
    Device, Error, ProcessGroup, Result, ShardMetadata, ShardPlacement, ShardedTensorMetadata,
};

/// The spec that cuts a tensor as a layout does: chunks on a mesh of one axis, else a list of boxes, one per
/// rank and box. Every axis must cut.
///
/// ```
/// use dtensor::{DType, Layout, Mesh};
/// use dtensor_sharded::{ChunkShardingSpec, sharding_spec_of_layout};
///
/// let mesh = Mesh::from_sizes(&[3]).unwrap();
/// let layout = Layout::parse(&[5, 2], DType::F32, &mesh, "[S(0)]").unwrap();
/// let spec = sharding_spec_of_layout(&layout)?;
/// assert_eq!(spec.as_chunk(), Some(&ChunkShardingSpec::over_ranks(0, 0..3)?));
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
pub fn sharding_spec_of_layout(layout: &Layout) -> Result<Spec> {
    Ok(of_layout("sharding_spec_of_layout", layout)?.0)
}

/// The layout of a distributed tensor that is cut as the metadata say, on the ranks of a group: if every rank
/// has one shard, and these are chunks of one dim in the order of the ranks, or a grid of chunks of several.
/// `None` if there is no such layout.
pub fn layout_of_metadata(
    metadata: &ShardedTensorMetadata,
    group: &ProcessGroup,
) -> Option<Layout> {
    let (mesh, placements) = mesh_and_placements(metadata, group)?;
    let dtype = metadata.tensor_properties.dtype;
    Layout::new(&metadata.size, dtype, mesh.mesh(), &placements).ok()
}

/// The mesh and the placements with which a distributed tensor has exactly these shards: one per rank, chunks
/// of one dim in the order of the ranks, or a grid of chunks of several dims whose ranks are a mesh. `None` if
/// there is no such.
pub(crate) fn mesh_and_placements(
    metadata: &ShardedTensorMetadata,
    group: &ProcessGroup,
) -> Option<(DeviceMesh, Vec<Placement>)> {
    let shards = one_per_member(metadata, group)?;
    let size = &metadata.size;
    if let [only] = &*shards {
        let is_whole = only.sizes() == size;
        return is_whole.then_some((group.line()?, vec![Placement::Replicate]));
    }
    let line = |dim: &usize| is_grid(&shards, size, &[(*dim, shards.len())]);
    if let Some(dim) = (0..size.len()).find(line) {
        return Some((group.line()?, vec![Placement::Shard(dim)]));
    }
    // The number of chunks of every dim that is cut.
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    for dim in 0..size.len() {
        let mut starts: Vec<usize> = shards.iter().map(|shard| shard.offsets()[dim]).collect();
        starts.sort_unstable();
        starts.dedup();
        if starts.len() > 1 {
            cuts.push((dim, starts.len()));
        }
    }
    let n_ranks = cuts.iter().try_fold(1, |n: usize, (_, parts)| n.checked_mul(*parts))?;
    if n_ranks != shards.len() || cuts.len() > MOST_CUT_DIMS {
        return None;
    }
    let axes = orders(&cuts).into_iter().find(|axes| is_grid(&shards, size, axes))?;
    let placements = axes.iter().map(|(dim, _)| Placement::Shard(*dim)).collect();
    Some((grid_mesh(&axes, group)?, placements))
}

/// The spec and the shards of a distributed tensor in this layout, one per rank and box, on the CPUs of the
/// ranks.
pub(crate) fn of_layout(op: &'static str, layout: &Layout) -> Result<(Spec, Vec<ShardMetadata>)> {
    let mesh = layout.mesh();
    let axes = layout.placements().iter().enumerate();
    if let Some((axis, placement)) = axes
        .filter(|(axis, _)| mesh.axis_size(*axis) > 1)
        .find(|(_, placement)| placement.shard_dim().is_none())
    {
        return Err(Error::Unsupported {
            op: op.into(),
            what: format!("the layout {layout} is {placement} on axis {axis}, not cut").into(),
            way_out: "redistribute it first: every element of a sharded tensor lies on one rank"
                .into(),
        });
    }
    let mut shards = Vec::with_capacity(mesh.size());
    for coord in mesh.coords() {
        let rank = mesh
            .rank_at(&coord)
            .map_err(|error| dtensor::Error::Layout { op, source: Box::new(error) })?;
        let placement = ShardPlacement::on_rank(rank, Device::CPU);
        let boxes = layout.boxes(&coord);
        if boxes.is_empty() {
            let (offsets, sizes) = (layout.local_offset(&coord), layout.local_shape(&coord));
            shards.push(ShardMetadata::new(&offsets, &sizes, Some(placement))?);
            continue;
        }
        for one in boxes {
            let offsets: Vec<usize> = one.0.iter().map(|range| range.start).collect();
            shards.push(ShardMetadata::new(&offsets, &one.shape(), Some(placement.clone()))?);
        }
    }
    let spec = match (layout.placements(), mesh.n_axes()) {
        ([Placement::Shard(dim)], 1) => {
            let placements = shards.iter().filter_map(|shard| shard.placement().cloned()).collect();
            ChunkShardingSpec::with_placements(*dim as isize, placements)?.into()
        }
        _ => EnumerableShardingSpec::of_checked(shards.clone()).into(),
    };
    Ok((spec, shards))
}

/// The shards in the order of the members, if every member has one, and all have the dims of the tensor.
fn one_per_member<'a>(
    metadata: &'a ShardedTensorMetadata,
    group: &ProcessGroup,
) -> Option<Vec<&'a ShardMetadata>> {
    let mut shards = vec![None; group.size()];
    for shard in &metadata.shards_metadata {
        if shard.n_dims() != metadata.size.len() {
            return None;
        }
        let place = &mut shards[group.group_rank_of(shard.rank()?)?];
        if place.replace(shard).is_some() {
            return None;
        }
    }
    shards.into_iter().collect()
}

/// Whether the shards are the chunks of the dims of `axes`, with their numbers of chunks; the last varies
/// fastest.
fn is_grid(shards: &[&ShardMetadata], size: &[usize], axes: &[(usize, usize)]) -> bool {
    shards.iter().enumerate().all(|(rank, shard)| {
        let mut rest = rank;
        let mut want: Vec<_> = size.iter().map(|size| 0..*size).collect();
        for (dim, parts) in axes.iter().rev() {
            want[*dim] = chunk(size[*dim], *parts, rest % parts);
            rest /= parts;
        }
        let is_same_size = want.iter().zip(shard.sizes()).all(|(want, size)| want.len() == *size);
        let is_same_place =
            want.iter().zip(shard.offsets()).all(|(want, offset)| want.start == *offset);
        is_same_size && (is_same_place || shard.is_empty())
    })
}

/// More cut dims than these are not tried in every order.
const MOST_CUT_DIMS: usize = 4;

/// Every order of a short list.
fn orders(list: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    if list.len() <= 1 {
        return vec![list.to_vec()];
    }
    let mut all = Vec::new();
    for (index, first) in list.iter().enumerate() {
        let rest = [&list[..index], &list[index + 1..]].concat();
        all.extend(orders(&rest).into_iter().map(|rest| [&[*first], &*rest].concat()));
    }
    all
}

fn grid_mesh(axes: &[(usize, usize)], group: &ProcessGroup) -> Option<DeviceMesh> {
    let (first, spacing) = group.spacing()?;
    let mut stride = spacing;
    let mut texts = Vec::with_capacity(axes.len());
    for (dim, parts) in axes.iter().rev() {
        texts.push(format!("dim{dim}={parts}:{stride}"));
        stride *= parts;
    }
    texts.reverse();
    let mesh: Mesh = format!("{}@{first}", texts.join(",")).parse().ok()?;
    DeviceMesh::from_mesh(group.world(), mesh).ok()
}
