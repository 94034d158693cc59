//! The ways to a sharded tensor, and what they all check.

mod factories;
mod from_metadata;
mod local_shards;
mod local_tensor;
mod scatter;

use std::{collections::HashMap, sync::Arc};

use crate::{
    Device, Error, MemoryFormat, ProcessGroup, Result, Shard, ShardMetadata, ShardPlacement,
    ShardedTensorMetadata, Spec, TensorLayout, TensorProperties, check_covers, check_no_overlap,
    infer_sharding_spec,
};

pub use factories::{empty, full, ones, rand, randn, zeros};
pub use local_shards::LocalShardsOptions;
pub use scatter::shard_tensor;

pub(crate) use factories::{random_shard, take_stream};
pub(crate) use scatter::{ScatterRecord, by_member, check_same, scatter_plan};

/// The shards of a tensor on a group, as a spec cuts it. All of it follows from what every rank shares.
pub(crate) fn planned(
    op: &'static str,
    spec: &Spec,
    size: &[usize],
    properties: &TensorProperties,
    group: &ProcessGroup,
) -> Result<Arc<ShardedTensorMetadata>> {
    check_properties(op, properties)?;
    let metadata = spec.build_metadata(size, properties)?;
    if !spec.is_exact() {
        check_covers(&metadata.shards_metadata, size)?;
        check_no_overlap(&metadata.shards_metadata)?;
    }
    let shards_metadata = group.placed(op, metadata.shards_metadata)?;
    for shard in &shards_metadata {
        shard.placement().map_or(Ok(()), |placement| placement.device().check_available(op))?;
    }
    Ok(Arc::new(ShardedTensorMetadata {
        shards_metadata,
        size: size.to_vec(),
        tensor_properties: properties.clone(),
    }))
}

/// The spec of metadata, and the metadata as the spec has them. Empty shards that begin beyond the tensor are
/// moved to its end.
pub(crate) fn settle(
    op: &'static str,
    metadata: ShardedTensorMetadata,
    spec: Option<Spec>,
) -> Result<(Spec, ShardedTensorMetadata)> {
    check_properties(op, &metadata.tensor_properties)?;
    if metadata.shards_metadata.is_empty() {
        return Err(Error::NoShards { op: op.into() });
    }
    let size = &metadata.size;
    let shards: Vec<ShardMetadata> =
        metadata.shards_metadata.into_iter().map(|shard| shard.clipped(size)).collect();
    check_no_overlap(&shards)?;
    check_covers(&shards, size)?;
    let spec = match spec {
        Some(spec) => spec,
        None => infer_sharding_spec(&shards)?,
    };
    let built = spec.build_metadata(size, &metadata.tensor_properties)?;
    if !are_same(&built.shards_metadata, &shards) {
        return Err(Error::Unsupported {
            op: op.into(),
            what: format!("the metadata have other shards than {spec:?} cuts").into(),
            way_out: "give no spec, to have it follow from the metadata".into(),
        });
    }
    Ok((spec, built))
}

/// The local shards in the order of the metadata, if they are those that the metadata give this rank.
pub(crate) fn matched(
    op: &'static str,
    local: Vec<Arc<Shard>>,
    metadata: &ShardedTensorMetadata,
    rank: usize,
) -> Result<Vec<Arc<Shard>>> {
    let own: Vec<&ShardMetadata> = metadata.shards_of(rank).collect();
    if own.len() != local.len() {
        let (local, metadata) = (local.len(), own.len());
        return Err(Error::WrongNumberOfShards { op: op.into(), rank, local, metadata });
    }
    let mut places: Vec<Option<Arc<Shard>>> = vec![None; own.len()];
    // Almost always they are in order already; else they are looked up, not searched for one by one.
    let mut by_box: Option<HashMap<&ShardMetadata, Vec<usize>>> = None;
    for (number, shard) in local.into_iter().enumerate() {
        check_shard(op, &shard, metadata, rank)?;
        let described = shard.metadata().clone().clipped(&metadata.size);
        let place = match *own[number] == described && places[number].is_none() {
            true => Some(number),
            false => {
                let by_box = by_box.get_or_insert_with(|| positions(&own));
                let free = |positions: &mut Vec<usize>| {
                    std::iter::from_fn(|| positions.pop()).find(|place| places[*place].is_none())
                };
                by_box.get_mut(&described).and_then(free)
            }
        };
        let Some(place) = place else {
            return Err(Error::UnknownShard { op: op.into(), rank, shard: Box::new(described) });
        };
        // As the metadata have it, which know the ranks of workers.
        let is_same = described == *shard.metadata() && shard.metadata().rank() == Some(rank);
        places[place] = Some(match is_same {
            true => shard,
            false => Arc::new(shard.with_metadata(own[place].clone())),
        });
    }
    Ok(places.into_iter().flatten().collect())
}

/// Where each box is in a list, last places first: boxes without elements may be there several times.
fn positions<'a>(shards: &[&'a ShardMetadata]) -> HashMap<&'a ShardMetadata, Vec<usize>> {
    let mut positions: HashMap<&ShardMetadata, Vec<usize>> = HashMap::with_capacity(shards.len());
    for (place, shard) in shards.iter().enumerate().rev() {
        positions.entry(shard).or_default().push(place);
    }
    positions
}

/// Only memory can be sent to.
pub(crate) fn check_memory(metadata: &ShardedTensorMetadata) -> Result<()> {
    let places = metadata.shards_metadata.iter().filter_map(ShardMetadata::placement);
    match places.map(ShardPlacement::device).find(|device| *device != Device::CPU) {
        None => Ok(()),
        Some(placement) => Err(Error::ShardDevice { tensor: Device::CPU, placement }),
    }
}

/// What no sharded tensor can be, and what this build does not have.
pub(crate) fn check_properties(op: &'static str, properties: &TensorProperties) -> Result<()> {
    if properties.layout != TensorLayout::Strided {
        return Err(Error::WrongLayout { op: op.into(), layout: properties.layout });
    }
    if properties.memory_format != MemoryFormat::Contiguous {
        return Err(Error::WrongMemoryFormat { op: op.into(), format: properties.memory_format });
    }
    if properties.pin_memory {
        return Err(Error::MissingPinnedMemory { op: op.into() });
    }
    check_gradients(op, properties)
}

/// Only floats have gradients.
pub(crate) fn check_gradients(op: &'static str, properties: &TensorProperties) -> Result<()> {
    match properties.requires_grad && !properties.dtype.is_float() {
        true => Err(Error::NoGradients { op: op.into(), dtype: properties.dtype }),
        false => Ok(()),
    }
}

/// Whether a local shard has a place, the dtype of the tensor, and consecutive elements.
fn check_shard(
    op: &'static str,
    shard: &Shard,
    metadata: &ShardedTensorMetadata,
    rank: usize,
) -> Result<()> {
    let placement = shard.metadata().placement();
    if !placement.is_some_and(|place| place.rank().is_some() || place.worker().is_some()) {
        return Err(Error::NoRank { op: op.into(), placement: placement.cloned() });
    }
    if !shard.tensor().is_contiguous() {
        return Err(Error::NotContiguous { op: op.into() });
    }
    let (want, got) = (metadata.tensor_properties.dtype, shard.tensor().dtype());
    match want == got {
        true => Ok(()),
        false => Err(Error::Incompatible {
            op: op.into(),
            rank,
            property: "dtype".into(),
            want: want.name().into(),
            got: got.name().into(),
        }),
    }
}

/// Whether two lists have the same shards, in whatever order.
fn are_same(a: &[ShardMetadata], b: &[ShardMetadata]) -> bool {
    if a == b {
        return true;
    }
    let sorted = |list: &[ShardMetadata]| {
        let mut keys: Vec<_> = list
            .iter()
            .map(|shard| {
                (
                    shard.offsets().to_vec(),
                    shard.sizes().to_vec(),
                    shard.placement().map(ToString::to_string),
                )
            })
            .collect();
        keys.sort_unstable();
        keys
    };
    sorted(a) == sorted(b)
}
