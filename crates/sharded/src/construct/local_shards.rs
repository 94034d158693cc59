//! From what every rank has, without metadata of the whole: the ranks tell each other.

use std::sync::Arc;

use dtensor_dtype::DType;
use serde::{Deserialize, Serialize};

use super::{check_properties, matched, settle};
use crate::{
    Error, ProcessGroup, Result, Shard, ShardMetadata, ShardedTensor, ShardedTensorMetadata,
    TensorOptions, TensorProperties, exchange::all_records, remote,
};

/// What the ranks want of the tensor that they [put together](ShardedTensor::from_local_shards_with).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalShardsOptions {
    /// Whether gradients are wanted.
    pub requires_grad: bool,
    /// Whether the shards are in locked memory, which this build does not have.
    pub pin_memory: bool,
}

impl ShardedTensor {
    /// The tensor of this size whose shards the ranks bring: each its own, any number, but not none on all. All
    /// ranks of the group call it; each tells the others what it has. What is wrong anywhere is the same error
    /// everywhere.
    ///
    /// ```
    /// use dtensor_sharded::{Runner, Shard, ShardedTensor, Tensor};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mine = Tensor::full(&[5, 4], world.rank() as f32)?;
    ///     let shard = Shard::from_tensor_and_offsets(mine, &[5 * world.rank(), 0], world.rank())?;
    ///     let x = ShardedTensor::from_local_shards(vec![shard], &[10, 4], world)?;
    ///     assert_eq!(x.metadata().shards_metadata.len(), 2);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn from_local_shards(
        shards: Vec<Shard>,
        size: &[usize],
        on: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        Self::from_local_shards_with(shards, size, LocalShardsOptions::default(), on)
    }

    /// As [`from_local_shards`](ShardedTensor::from_local_shards), with options.
    pub fn from_local_shards_with(
        shards: Vec<Shard>,
        size: &[usize],
        options: LocalShardsOptions,
        on: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        const OP: &str = "from_local_shards";
        let TensorOptions { group, init_rrefs } = on.into();
        let own = Record::of(OP, &shards, Some(size), options, &group);
        let made = all_records(OP, &group, own).and_then(|records| {
            let properties = agreed(OP, &records, &group)?;
            let all = records.into_iter().flat_map(|record| record.shards).collect();
            put_together(OP, shards, all, size.to_vec(), properties, &group)
        });
        remote::with_references(OP, made, &group, init_rrefs)
    }

    /// The tensor whose rows the ranks bring, one shard each, in the order of the group. Where the rows of a
    /// rank begin, and how many there are, follows from those before: the first offset and the size of the
    /// first dim need not be known to anybody. A shard may have no rows.
    ///
    /// ```
    /// use dtensor_sharded::{Runner, Shard, ShardedTensor, Tensor};
    ///
    /// Runner::threads(3).run(|world| {
    ///     let mine = Tensor::full(&[world.rank() + 1, 4], 1.0_f32)?;
    ///     let shard = Shard::from_tensor_and_offsets(mine, &[0, 0], world.rank())?;
    ///     let x = ShardedTensor::from_local_rows(vec![shard], world)?;
    ///     assert_eq!(x.size(), [6, 4]);
    ///     assert_eq!(x.metadata().shards_metadata[2].offsets(), [3, 0]);
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn from_local_rows(
        shards: Vec<Shard>,
        on: impl Into<TensorOptions>,
    ) -> Result<ShardedTensor> {
        const OP: &str = "from_local_rows";
        let TensorOptions { group, init_rrefs } = on.into();
        let rank = group.world_rank();
        let own = Record::of(OP, &shards, None, LocalShardsOptions::default(), &group);
        let own = own.and_then(|record| match &*record.shards {
            [only] if only.n_dims() > 0 => Ok(record),
            [_] => Err(Error::WrongDims { tensor: 1, shards: 0 }),
            shards => Err(Error::OneShardNeeded { op: OP.into(), rank, got: shards.len() }),
        });
        let made =
            all_records(OP, &group, own).and_then(|records| of_rows(OP, shards, &records, &group));
        remote::with_references(OP, made, &group, init_rrefs)
    }
}

/// The tensor of rows, one shard per rank.
fn of_rows(
    op: &'static str,
    shards: Vec<Shard>,
    records: &[Record],
    group: &ProcessGroup,
) -> Result<ShardedTensor> {
    let properties = agreed(op, records, group)?;
    let rows = in_rank_order(op, records, group)?;
    let Some(last) = rows.last() else { return Err(Error::NoLocalShards { op: op.into() }) };
    let mut size = last.sizes().to_vec();
    size[0] = last.range(0).end;
    let shards = match (shards.into_iter().next(), group.rank()) {
        (Some(shard), Some(own)) => vec![shard.with_metadata(rows[own].clone())],
        _ => Vec::new(),
    };
    put_together(op, shards, rows, size, properties, group)
}

/// What a rank tells of its shards.
#[derive(Serialize, Deserialize)]
struct Record {
    size: Option<Vec<usize>>,
    /// `None` without shards.
    dtype: Option<Box<str>>,
    requires_grad: bool,
    pin_memory: bool,
    shards: Vec<ShardMetadata>,
}

impl Record {
    /// What this rank has, or what is wrong with it.
    fn of(
        op: &'static str,
        shards: &[Shard],
        size: Option<&[usize]>,
        options: LocalShardsOptions,
        group: &ProcessGroup,
    ) -> Result<Record> {
        let rank = group.world_rank();
        let first = shards.first().map(|shard| shard.tensor().dtype());
        for shard in shards {
            let metadata = shard.metadata();
            let no_rank =
                || Error::NoRank { op: op.into(), placement: metadata.placement().cloned() };
            let placed = match metadata.placement() {
                Some(place) if place.worker().is_some() => group.owner_of(op, Some(place))?,
                _ => metadata.rank().ok_or_else(no_rank)?,
            };
            if placed != rank {
                return Err(Error::WrongRank { op: op.into(), rank, placed });
            }
            if !shard.tensor().is_contiguous() {
                return Err(Error::NotContiguous { op: op.into() });
            }
            let dtype = shard.tensor().dtype();
            if let Some(first) = first.filter(|first| *first != dtype) {
                return Err(Error::LocalShardsDiffer {
                    op: op.into(),
                    rank,
                    property: "dtype".into(),
                    first: first.name().into(),
                    other: dtype.name().into(),
                });
            }
        }
        if options.pin_memory {
            return Err(Error::MissingPinnedMemory { op: op.into() });
        }
        Ok(Record {
            size: size.map(<[usize]>::to_vec),
            dtype: first.map(|dtype| dtype.name().into()),
            requires_grad: options.requires_grad,
            pin_memory: options.pin_memory,
            shards: shards.iter().map(|shard| shard.metadata().clone()).collect(),
        })
    }
}

/// The properties that all ranks say.
fn agreed(op: &'static str, records: &[Record], group: &ProcessGroup) -> Result<TensorProperties> {
    let shown = |value: &dyn std::fmt::Debug| format!("{value:?}").into_boxed_str();
    let same = |property: &'static str, of: &dyn Fn(&Record) -> Option<Box<str>>| {
        let mut said = records
            .iter()
            .zip(group.world_ranks())
            .filter_map(|(record, rank)| Some((*rank, of(record)?)));
        let Some((first_rank, first)) = said.next() else { return Ok(None) };
        match said.find(|(_, other)| *other != first) {
            None => Ok(Some(first)),
            Some((rank, other)) => Err(Error::RanksDiffer {
                op: op.into(),
                property: property.into(),
                first_rank,
                first,
                rank,
                other,
            }),
        }
    };
    same("size", &|record| record.size.as_ref().map(|size| shown(size)))?;
    let dtype = same("dtype", &|record| record.dtype.clone())?;
    same("requires_grad", &|record| Some(shown(&record.requires_grad)))?;
    same("pin_memory", &|record| Some(shown(&record.pin_memory)))?;
    let Some(dtype) = dtype else { return Err(Error::NoLocalShards { op: op.into() }) };
    let unknown = |error: dtensor_dtype::UnknownDType| Error::BadState {
        op: op.into(),
        what: error.to_string().into(),
    };
    let dtype: DType = dtype.parse().map_err(unknown)?;
    let requires_grad = records.iter().any(|record| record.requires_grad);
    Ok(TensorProperties::new(dtype).requires_grad(requires_grad))
}

/// The one shard of every rank with the rows that follow those of the ranks before.
fn in_rank_order(
    op: &'static str,
    records: &[Record],
    group: &ProcessGroup,
) -> Result<Vec<ShardMetadata>> {
    let mut at = 0;
    let mut rows: Vec<ShardMetadata> = Vec::with_capacity(records.len());
    let shards = records.iter().filter_map(|record| record.shards.first());
    for (shard, rank) in shards.zip(group.world_ranks()) {
        let first = rows.first().unwrap_or(shard);
        if first.n_dims() != shard.n_dims() || first.sizes()[1..] != shard.sizes()[1..] {
            return Err(Error::RanksDiffer {
                op: op.into(),
                property: "the size of a row".into(),
                first_rank: group.world_ranks()[0],
                first: format!("{:?}", &first.sizes()[1..]).into(),
                rank: *rank,
                other: format!("{:?}", shard.sizes().get(1..).unwrap_or_default()).into(),
            });
        }
        let mut offsets = vec![0; shard.n_dims()];
        offsets[0] = at;
        // Which is an error where rows that need no memory are more than can be counted.
        let row = ShardMetadata::new(&offsets, shard.sizes(), shard.placement().cloned())?;
        at = row.range(0).end;
        rows.push(row);
    }
    Ok(rows)
}

/// The tensor of all shards. What is wrong now is so on every rank alike.
fn put_together(
    op: &'static str,
    local: Vec<Shard>,
    all: Vec<ShardMetadata>,
    size: Vec<usize>,
    properties: TensorProperties,
    group: &ProcessGroup,
) -> Result<ShardedTensor> {
    check_properties(op, &properties)?;
    if all.is_empty() {
        return Err(Error::NoLocalShards { op: op.into() });
    }
    let metadata =
        ShardedTensorMetadata { shards_metadata: all, size, tensor_properties: properties };
    let (spec, mut metadata) = settle(op, metadata, None)?;
    if metadata.shards_metadata.iter().any(|shard| shard.rank().is_none()) {
        metadata.shards_metadata = group.placed(op, metadata.shards_metadata)?;
    }
    let local = local.into_iter().map(Arc::new).collect();
    let local = matched(op, local, &metadata, group.world_rank())?;
    Ok(ShardedTensor::assemble(spec, Arc::new(metadata), local, group.clone()))
}
