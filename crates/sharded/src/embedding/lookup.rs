//! Rows that ranks ask each other for.

use std::{ops::Range, sync::Arc};

use dtensor_comm::Values;
use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use super::check_float_table;
use crate::{
    Error, Result, Shard, ShardMetadata, ShardedTensor,
    construct::by_member,
    exchange::{all_records, received},
};

/// The gradient of a table from that of [`embedding`](super::embedding): every row the sum of the gradients
/// where it was taken, over all ranks, in their order. `grad` is the gradient of this rank's result, `ids` are
/// its ids. What was taken at `padding_idx` adds nothing.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::embedding_backward, zeros};
///
/// Runner::threads(2).run(|world| {
///     let table = zeros(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 2], DType::F32, world)?;
///     let ids = Tensor::from_vec(vec![0_i64, 2], &[2])?;
///     let grad = Tensor::full(&[2, 2], 1.0_f32)?;
///     let gradient = embedding_backward(&grad, &ids, &table, None)?;
///     assert_eq!(gradient.full_tensor()?.to_vec::<f32>()?, [2.0, 2.0, 0.0, 0.0, 2.0, 2.0]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding_backward(
    grad: &Tensor,
    ids: &Tensor,
    table: &ShardedTensor,
    padding_idx: Option<usize>,
) -> Result<ShardedTensor> {
    const OP: &str = "embedding_backward";
    check_float_table(OP, table)?;
    let width = table.size()[1];
    let want = [ids.shape(), &[width]].concat();
    let own = ids_of(OP, ids, table).and_then(|ids| match grad.shape() == want {
        true => Ok((grad.reshape(&[ids.len(), width])?, ids)),
        false => Err(LocalError::ShapeMismatch {
            op: OP,
            from: grad.shape().to_vec(),
            to: want,
            why: "a gradient has the shape of the result",
        }
        .into()),
    });
    added_to_rows(OP, own, table, padding_idx)
}

/// A table of zeros, cut as this one, with what all ranks have for their ids added to those rows, in the order
/// of the ranks: `own` is `[n, E]` and the `n` ids of this rank. What is wrong on any rank is the same error on
/// all.
pub(super) fn added_to_rows(
    op: &'static str,
    own: Result<(Tensor, Vec<i64>)>,
    table: &ShardedTensor,
    padding_idx: Option<usize>,
) -> Result<ShardedTensor> {
    let group = table.process_group();
    let width = table.size()[1];
    let (grad, ids) = match own {
        Ok((grad, ids)) => (Some(grad), Ok(ids)),
        Err(error) => (None, Err(error)),
    };
    let all = all_ids(op, ids, table)?;
    let grad = grad.map_or_else(|| Tensor::zeros(&[0, width], table.dtype()), Ok)?;
    let keeps = |asked: &Asked| asked.without(padding_idx);
    let all: Vec<Asked> = all.iter().map(keeps).collect();
    let members = group.group(op)?;
    let (dtype, element) = (table.dtype(), table.dtype().size());
    let grad = grad.to_dtype(dtype)?.contiguous();
    let (from, by_rank) = (grad.as_bytes()?, by_member(table.metadata(), group));
    let counts = |asked: &Asked, shards: &[&ShardMetadata]| -> usize {
        shards.iter().map(|shard| asked.in_rows(shard.range(0)).len() * shard.sizes()[1]).sum()
    };
    let own_ids = &all[members.rank()];
    let send_counts: Vec<usize> = by_rank.iter().map(|shards| counts(own_ids, shards)).collect();
    let own_shards = &by_rank[members.rank()];
    let recv_counts: Vec<usize> = all.iter().map(|asked| counts(asked, own_shards)).collect();
    let packed = Tensor::from_bytes_with(&[send_counts.iter().sum()], dtype, |into| {
        let mut at = 0;
        for shard in by_rank.iter().flatten() {
            let columns = shard.range(1);
            for (_, position) in own_ids.in_rows(shard.range(0)) {
                let n = columns.len() * element;
                let start = (position * width + columns.start) * element;
                into[at..at + n].copy_from_slice(&from[start..start + n]);
                at += n;
            }
        }
        Ok::<_, Error>(())
    })?;
    let arrived = exchange(op, &packed, &send_counts, &recv_counts, table)?;
    // What came from each rank for each shard, in the order of the ranks.
    let mut blocks: Vec<(Vec<i64>, Vec<Tensor>)> = vec![Default::default(); own_shards.len()];
    let mut at = 0;
    for asked in &all {
        for (shard, (rows, parts)) in own_shards.iter().zip(&mut blocks) {
            let here = asked.in_rows(shard.range(0));
            let shape = [here.len(), shard.sizes()[1]];
            let n = shape[0] * shape[1];
            parts.push(arrived.narrow(0, at, n)?.reshape(&shape)?);
            rows.extend(here.iter().map(|(id, _)| *id - shard.offsets()[0] as i64));
            at += n;
        }
    }
    let mut blocks = blocks.into_iter();
    let metadata = Arc::clone(table.shared_metadata());
    table.detach().with_tensors(metadata, |shard: &Shard| {
        let (rows, parts) = blocks.next().unwrap_or_default();
        let grads = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let n = rows.len();
        Ok(grads.embedding_backward(&Tensor::from_vec(rows, &[n])?, shard.metadata().sizes()[0])?)
    })
}

/// The ids of this rank, if they are numbers of rows.
pub(super) fn ids_of(op: &'static str, ids: &Tensor, table: &ShardedTensor) -> Result<Vec<i64>> {
    let list = match ids.dtype() {
        DType::I64 | DType::I32 => ids.to_dtype(DType::I64)?.to_vec::<i64>()?,
        got => return Err(LocalError::WrongDType { op, got, want: DType::I64 }.into()),
    };
    let n_rows = table.size()[0];
    match list.iter().find(|id| usize::try_from(**id).is_ok_and(|row| row < n_rows).eq(&false)) {
        None => Ok(list),
        Some(id) => {
            let (index, size) = (*id as isize, n_rows);
            Err(LocalError::IndexOutOfRange { op, index, dim: 0, size }.into())
        }
    }
}

/// The rows at the ids of this rank, `[n, E]`. What is wrong with the ids of any rank is the same error on all.
pub(super) fn rows(
    op: &'static str,
    own: Result<Vec<i64>>,
    table: &ShardedTensor,
) -> Result<Tensor> {
    let all = all_ids(op, own, table)?;
    rows_of(op, &all, table)
}

/// The same for ids that all ranks know of each other.
pub(super) fn rows_of(op: &'static str, all: &[Asked], table: &ShardedTensor) -> Result<Tensor> {
    let group = table.process_group();
    let own_rank = group.group(op)?.rank();
    let (dtype, element, width) = (table.dtype(), table.dtype().size(), table.size()[1]);
    let own_shards: Vec<&Shard> = table.local_shards().collect();
    let by_rank = by_member(table.metadata(), group);
    let mut send_counts = Vec::with_capacity(all.len());
    for asked in all {
        let count = |shard: &&Shard| {
            let metadata = shard.metadata();
            asked.in_rows(metadata.range(0)).len() * metadata.sizes()[1]
        };
        send_counts.push(own_shards.iter().map(count).sum());
    }
    let own_ids = &all[own_rank];
    let in_shard =
        |shard: &&ShardMetadata| own_ids.in_rows(shard.range(0)).len() * shard.sizes()[1];
    let recv_counts: Vec<usize> =
        by_rank.iter().map(|shards| shards.iter().map(in_shard).sum()).collect();
    let elements: Vec<Tensor> =
        own_shards.iter().map(|shard| shard.tensor().contiguous()).collect();
    let packed = Tensor::from_bytes_with(&[send_counts.iter().sum()], dtype, |into| {
        let mut at = 0;
        for asked in all {
            for (shard, tensor) in own_shards.iter().zip(&elements) {
                let (metadata, from) = (shard.metadata(), tensor.as_bytes()?);
                let row_bytes = metadata.sizes()[1] * element;
                for (id, _) in asked.in_rows(metadata.range(0)) {
                    let start = (*id as usize - metadata.offsets()[0]) * row_bytes;
                    into[at..at + row_bytes].copy_from_slice(&from[start..start + row_bytes]);
                    at += row_bytes;
                }
            }
        }
        Ok::<_, Error>(())
    })?;
    let arrived = exchange(op, &packed, &send_counts, &recv_counts, table)?;
    let from = arrived.as_bytes()?;
    Tensor::from_bytes_with(&[own_ids.0.len(), width], dtype, |into| {
        let mut at = 0;
        for shard in by_rank.iter().flatten() {
            let columns = shard.range(1);
            for (_, position) in own_ids.in_rows(shard.range(0)) {
                let n_bytes = columns.len() * element;
                let start = (position * width + columns.start) * element;
                into[start..start + n_bytes].copy_from_slice(&from[at..at + n_bytes]);
                at += n_bytes;
            }
        }
        Ok(())
    })
}

/// The ids that a rank asks for, in the order of the ids, each with its position among those of the rank.
#[derive(Clone, Debug)]
pub(super) struct Asked(Vec<(i64, usize)>);

impl Asked {
    fn new(ids: &[i64]) -> Asked {
        let mut asked: Vec<(i64, usize)> =
            ids.iter().enumerate().map(|(position, id)| (*id, position)).collect();
        asked.sort_unstable();
        Asked(asked)
    }

    /// Those of the rows of a shard.
    pub(super) fn in_rows(&self, rows: Range<usize>) -> &[(i64, usize)] {
        let before = |bound: usize| {
            let bound = i64::try_from(bound).unwrap_or(i64::MAX);
            self.0.partition_point(|(id, _)| *id < bound)
        };
        &self.0[before(rows.start)..before(rows.end)]
    }

    /// The ids, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = i64> {
        self.0.iter().map(|(id, _)| *id)
    }

    fn without(&self, padding_idx: Option<usize>) -> Asked {
        let is_padding = |id: i64| padding_idx.is_some_and(|row| usize::try_from(id) == Ok(row));
        Asked(self.0.iter().copied().filter(|(id, _)| !is_padding(*id)).collect())
    }
}

/// The ids of all members. What is wrong on one is the same error on all.
pub(super) fn all_ids(
    op: &'static str,
    own: Result<Vec<i64>>,
    table: &ShardedTensor,
) -> Result<Vec<Asked>> {
    let group = table.process_group();
    let members = group.group(op)?;
    // Their numbers first; a negative one says that something is wrong.
    let mut lengths = vec![0_i64; members.size()];
    let length = own.as_ref().map_or(-1, |ids| ids.len() as i64);
    members.all_gather(&[length], &mut lengths).map_err(Error::comm(op))?;
    if lengths.iter().any(|length| *length < 0) {
        all_records(op, group, own.as_ref().map(|_| ()).map_err(Error::clone))?;
    }
    let own = own?;
    let counts: Vec<usize> =
        lengths.iter().map(|length| usize::try_from(*length).unwrap_or(0)).collect();
    let mut all = vec![0_i64; counts.iter().sum()];
    members.all_gather_v(&own, &mut all, &counts).map_err(Error::comm(op))?;
    let mut rest = &*all;
    let mut by_rank = Vec::with_capacity(counts.len());
    for count in counts {
        let (ids, others) = rest.split_at(count);
        by_rank.push(Asked::new(ids));
        rest = others;
    }
    Ok(by_rank)
}

fn exchange(
    op: &'static str,
    packed: &Tensor,
    send_counts: &[usize],
    recv_counts: &[usize],
    table: &ShardedTensor,
) -> Result<Tensor> {
    let members = table.process_group().group(op)?;
    let dtype = packed.dtype();
    let values = Values::from_bytes(dtype, packed.as_bytes()?).map_err(Error::comm(op))?;
    received(op, recv_counts.iter().sum(), dtype, |into| {
        members.erased().all_to_all_v(values, send_counts, into, recv_counts)
    })
}
