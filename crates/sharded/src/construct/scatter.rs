//! From a tensor that one rank has.

use std::sync::Arc;

use dtensor_comm::Values;
use dtensor_local::Tensor;
use serde::{Deserialize, Serialize};

use super::{check_memory, planned};
use crate::{
    Error, ProcessGroup, Result, Shard, ShardMetadata, ShardedTensor, ShardedTensorMetadata, Spec,
    TensorProperties,
    exchange::{all_records, received, view},
};

/// Cuts a tensor that rank `src_rank` *of the group* has: every rank gets its shards of *that* tensor. All
/// ranks pass one of the same size and dtype, and the same spec; what differs, or is wrong on one rank, is the
/// same error on all before anything is sent. Any spec will do, also one that names some ranks not at all and
/// others several times.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, Runner, Tensor, shard_tensor};
///
/// Runner::threads(4).run(|world| {
///     let mine = Tensor::full(&[4, 2], world.rank() as f32)?;
///     let pairs = ChunkShardingSpec::over_ranks(0, [1, 3])?;
///     let x = shard_tensor(&mine, pairs, 2, world)?;
///     assert_eq!(x.local_shards().len(), world.rank() % 2);
///     assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [2.0; 8]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn shard_tensor(
    tensor: &Tensor,
    spec: impl Into<Spec>,
    src_rank: usize,
    group: impl Into<ProcessGroup>,
) -> Result<ShardedTensor> {
    const OP: &str = "shard_tensor";
    let (spec, group) = (spec.into(), group.into());
    let planned = scatter_plan(OP, tensor, &spec, src_rank, &group);
    if group.rank().is_none() {
        return Ok(ShardedTensor::assemble(spec, planned?, Vec::new(), group));
    }
    let record = planned.as_ref().map(|metadata| ScatterRecord::of(metadata, &spec, src_rank));
    let records = all_records(OP, &group, record.map_err(Error::clone))?;
    check_same(OP, None, &records.iter().collect::<Vec<_>>(), &group)?;
    let metadata = planned?;
    let shards = scattered(OP, tensor, &metadata, src_rank, &group)?;
    Ok(ShardedTensor::assemble(spec, metadata, shards, group))
}

/// The shards that a tensor is to be cut into, if it can be. What is wrong with it can be seen by every rank
/// that has such a tensor.
pub(crate) fn scatter_plan(
    op: &'static str,
    tensor: &Tensor,
    spec: &Spec,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<Arc<ShardedTensorMetadata>> {
    let properties = TensorProperties::new(tensor.dtype());
    let metadata = planned(op, spec, tensor.shape(), &properties, group)?;
    group.check_group_rank(op, src_rank)?;
    check_memory(&metadata)?;
    match tensor.is_contiguous() {
        _ if tensor.is_meta() => {
            let what = "a tensor without values";
            Err(Error::refused(op, what, "make it anew on cpu, or use `empty`"))
        }
        true => Ok(metadata),
        false => Err(Error::NotContiguous { op: op.into() }),
    }
}

/// What the ranks must agree on before a tensor is cut.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScatterRecord {
    src_rank: usize,
    size: Vec<usize>,
    dtype: Box<str>,
    /// The [digest](ShardedTensorMetadata::digest) of what the spec makes of the tensor.
    shards: u64,
    /// The spec as it is shown.
    spec: Box<str>,
}

impl ScatterRecord {
    pub(crate) fn of(
        metadata: &ShardedTensorMetadata,
        spec: &Spec,
        src_rank: usize,
    ) -> ScatterRecord {
        ScatterRecord {
            src_rank,
            size: metadata.size.clone(),
            dtype: metadata.tensor_properties.dtype.name().into(),
            shards: metadata.digest(),
            spec: shown(spec),
        }
    }
}

/// An error if the records of the members, in their order, are not the same. One tensor of several has a name.
pub(crate) fn check_same(
    op: &'static str,
    name: Option<&str>,
    records: &[&ScatterRecord],
    group: &ProcessGroup,
) -> Result<()> {
    let Some(first) = records.first() else { return Ok(()) };
    let ranks = group.world_ranks();
    for (record, rank) in records.iter().zip(ranks) {
        let property = if record.src_rank != first.src_rank {
            ("src_rank", first.src_rank.to_string(), record.src_rank.to_string())
        } else if record.size != first.size {
            ("size", format!("{:?}", first.size), format!("{:?}", record.size))
        } else if record.dtype != first.dtype {
            ("dtype", first.dtype.to_string(), record.dtype.to_string())
        } else if record.shards != first.shards {
            ("sharding spec", first.spec.to_string(), record.spec.to_string())
        } else {
            continue;
        };
        let (property, first, other) = property;
        let property = match name {
            Some(name) => format!("{property} of `{name}`").into(),
            None => property.into(),
        };
        return Err(Error::RanksDiffer {
            op: op.into(),
            property,
            first_rank: ranks[0],
            first: first.into(),
            rank: *rank,
            other: other.into(),
        });
    }
    Ok(())
}

/// The shards of this rank, in the order of the metadata.
fn scattered(
    op: &'static str,
    tensor: &Tensor,
    metadata: &ShardedTensorMetadata,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<Vec<Arc<Shard>>> {
    let dtype = tensor.dtype();
    let members = group.group(op)?;
    let by_rank = by_member(metadata, group);
    let count = |shards: &Vec<&ShardMetadata>| shards.iter().map(|shard| shard.numel()).sum();
    let counts: Vec<usize> = by_rank.iter().map(count).collect();
    let packed = match members.rank() == src_rank {
        false => None,
        true => {
            let shards = by_rank.iter().flatten().filter(|shard| !shard.is_empty());
            let views = shards.map(|shard| view(tensor, &shard.index_box().0));
            Some(Tensor::pack(dtype, &views.collect::<Result<Vec<_>>>()?)?)
        }
    };
    let send = match &packed {
        Some(packed) => {
            Some(Values::from_bytes(dtype, packed.as_bytes()?).map_err(Error::comm(op))?)
        }
        None => None,
    };
    let own = received(op, counts[members.rank()], dtype, |into| {
        members.erased().scatter_v(send, &counts, into, src_rank)
    })?;
    let mut at = 0;
    let mut shards = Vec::new();
    for shard in &by_rank[members.rank()] {
        let part = own.narrow(0, at, shard.numel())?.reshape(shard.sizes())?;
        at += shard.numel();
        // In memory of its own, or a change of one shard would copy it.
        let part = if part.numel() < own.numel() { part.copied() } else { part };
        shards.push(Arc::new(Shard::new(part, (*shard).clone())?));
    }
    Ok(shards)
}

/// The shards of every member, in the order of the metadata.
pub(crate) fn by_member<'a>(
    metadata: &'a ShardedTensorMetadata,
    group: &ProcessGroup,
) -> Vec<Vec<&'a ShardMetadata>> {
    let mut by_rank = vec![Vec::new(); group.size()];
    for shard in &metadata.shards_metadata {
        if let Some(rank) = shard.rank().and_then(|rank| group.group_rank_of(rank)) {
            by_rank[rank].push(shard);
        }
    }
    by_rank
}

/// A spec in as many letters as an error should have.
fn shown(spec: &Spec) -> Box<str> {
    const LONGEST: usize = 300;
    let text = format!("{spec:?}");
    match text.char_indices().nth(LONGEST) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}
