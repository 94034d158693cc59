//! Rows of a table, put together bag by bag.

use dtensor_dtype::DType;
use dtensor_local::Tensor;

use super::{
    MaxNorm,
    bags::{BagArguments, Bags},
    check_float_table, lookup,
};
use crate::{
    Error, Result, ShardedTensor,
    ops::{OpCall, OpValue, call},
};

/// How the rows of a bag become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    #[default]
    Mean,
    /// The largest value of every column.
    Max,
}

/// How [`embedding_bag`] is done.
#[derive(Clone, Debug, Default)]
pub struct BagOptions {
    /// How the rows of a bag become one.
    pub mode: BagMode,
    /// Numbers that rows are multiplied with, as many as ids. Only with [`BagMode::Sum`].
    pub per_sample_weights: Option<Tensor>,
    /// The row that does not count: not in a sum, not in the number that a mean is divided by.
    pub padding_idx: Option<usize>,
    /// Whether the offsets end with the number of ids.
    pub include_last_offset: bool,
}

/// The rows of a sharded table `[V, E]`, put together bag by bag: `[bags, E]`. All ranks of the group call it,
/// each with its own bags, any number of them. With ids of two dims, every row of them is a bag; with ids of
/// one dim, `offsets` has where each bag begins. A bag without rows that count is zeros. As
/// `torch.nn.functional.embedding_bag`; with its `max_norm` it is [`embedding_bag_renormed`], and for gradients see
/// [`embedding_bag_backward`](super::embedding_bag_backward).
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::{BagOptions, embedding_bag}, ones};
///
/// Runner::threads(2).run(|world| {
///     let table = ones(ChunkShardingSpec::over_ranks(1, 0..2)?, &[5, 3], DType::F32, world)?;
///     let ids = Tensor::from_vec(vec![4_i64, 0, 0, 1], &[4])?;
///     let offsets = Tensor::from_vec(vec![0_i64, 3, 4], &[3])?;
///     let means = embedding_bag(&ids, Some(&offsets), &table, &BagOptions::default())?;
///     assert_eq!(means.to_vec::<f32>()?, [1., 1., 1., 1., 1., 1., 0., 0., 0.]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding_bag(
    ids: &Tensor,
    offsets: Option<&Tensor>,
    table: &ShardedTensor,
    options: &BagOptions,
) -> Result<Tensor> {
    const OP: &str = "embedding_bag";
    let mode = match options.mode {
        BagMode::Sum => 0_i64,
        BagMode::Mean => 1,
        BagMode::Max => 2,
    };
    let padding = options.padding_idx.map(|row| i64::try_from(row).unwrap_or(i64::MAX));
    let operands = [
        ids.into(),
        table.into(),
        offsets.into(),
        mode.into(),
        options.per_sample_weights.as_ref().into(),
        padding.into(),
        options.include_last_offset.into(),
    ];
    call(OP, &operands)?.into_plain(OP)
}

/// As [`embedding_bag`], with `max_norm`: see [`embedding_renormed`](super::embedding_renormed). Rows for padding
/// are shortened as well, as in PyTorch, though they do not count.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::*, full};
///
/// Runner::threads(2).run(|world| {
///     let mut table = full(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 4], 1.0, DType::F64, world)?;
///     let ids = Tensor::from_vec(vec![0_i64, 2], &[1, 2])?;
///     let sums = BagOptions { mode: BagMode::Sum, ..BagOptions::default() };
///     let bags = embedding_bag_renormed(&ids, None, &mut table, &sums, MaxNorm::new(1.0))?;
///     assert!(bags.to_vec::<f64>()?.iter().all(|value| (value - 1.0).abs() < 1e-6));
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding_bag_renormed(
    ids: &Tensor,
    offsets: Option<&Tensor>,
    table: &mut ShardedTensor,
    options: &BagOptions,
    max_norm: MaxNorm,
) -> Result<Tensor> {
    const OP: &str = "embedding_bag_renormed";
    max_norm.check(OP, table)?;
    let arguments = BagArguments::with_options(ids, offsets, options);
    let bags = arguments.bags(OP, table);
    let own = bags.as_ref().map_err(Error::clone).map(|bags| {
        // The row for padding is asked for once, behind the others: nobody looks at it.
        let padding = arguments.padding.filter(|_| bags.ids.len() < ids.numel());
        bags.ids.iter().copied().chain(padding).collect()
    });
    let all = lookup::all_ids(OP, own, table)?;
    max_norm.apply(OP, &all, table)?;
    bags?.pooled(&lookup::rows_of(OP, &all, table)?)
}

pub(crate) fn embedding_bag_op(call: &OpCall<'_>) -> Result<OpValue> {
    let (op, table) = (call.name(), call.sharded(1)?);
    check_float_table(op, table)?;
    let bags = BagArguments::of(call).and_then(|arguments| arguments.bags(op, table));
    let own = bags.as_ref().map_err(Error::clone).map(|bags| bags.ids.clone());
    let rows = lookup::rows(op, own, table)?;
    Ok(bags?.pooled(&rows)?.into())
}

impl Bags {
    /// One row per bag, from the rows of the ids. Halves are added up as `f32`.
    fn pooled(&self, rows: &Tensor) -> Result<Tensor> {
        match rows.dtype() {
            DType::F64 => self.pool::<f64>(rows),
            dtype => Ok(self.pool::<f32>(&rows.to_dtype(DType::F32)?)?.to_dtype(dtype)?),
        }
    }

    fn pool<T: Real>(&self, rows: &Tensor) -> Result<Tensor> {
        let width = rows.shape()[1];
        let rows = rows.as_slice::<T>()?;
        let mut out = vec![T::default(); self.ends.len() * width];
        let mut start = 0;
        for (bag, end) in self.ends.iter().enumerate() {
            let sums = &mut out[bag * width..][..width];
            for id in start..*end {
                let weight = self.weights.as_ref().map(|weights| T::of(weights[id]));
                for (sum, value) in sums.iter_mut().zip(&rows[id * width..][..width]) {
                    *sum = match self.mode {
                        BagMode::Max if id == start || *value > *sum => *value,
                        BagMode::Max => *sum,
                        _ => *sum + weight.map_or(*value, |weight| *value * weight),
                    };
                }
            }
            if self.mode == BagMode::Mean && start < *end {
                let n = T::of((end - start) as f64);
                sums.iter_mut().for_each(|sum| *sum = *sum / n);
            }
            start = *end;
        }
        Ok(Tensor::from_vec(out, &[self.ends.len(), width])?)
    }
}

/// The two types that sums are made in.
pub(super) trait Real:
    dtensor_dtype::Element
    + Default
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    fn of(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}
