//! Rows that are not longer than they may be.

use dtensor_comm::ReduceOp;
use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use super::{
    check_float_table,
    lookup::{self, Asked},
};
use crate::{Error, Result, ShardMetadata, ShardedTensor};

/// Shortens the rows of a table at the ids of all ranks to `max_norm`, where they are longer by the norm of
/// this order (2 for lengths, infinity for the largest value). All ranks of the group call it, each with its
/// own ids; where columns are cut, the ranks add up the norms. It is what `max_norm` of
/// `torch.nn.functional.embedding` does before it looks rows up; for both at once, see
/// [`embedding_renormed`](super::embedding_renormed).
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::renorm_rows, full};
///
/// Runner::threads(2).run(|world| {
///     let mut table = full(ChunkShardingSpec::over_ranks(1, 0..2)?, &[2, 4], 1.0, DType::F64, world)?;
///     renorm_rows(&mut table, &Tensor::from_vec(vec![1_i64], &[1])?, 1.0, 2.0)?;
///     let values = table.full_tensor()?.to_vec::<f64>()?;
///     assert_eq!(values[..4], [1.0; 4]);                       // not looked up
///     assert!((values[4] - 0.5).abs() < 1e-6);                 // was 2 long
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn renorm_rows(
    table: &mut ShardedTensor,
    ids: &Tensor,
    max_norm: f64,
    norm_type: f64,
) -> Result<()> {
    const OP: &str = "renorm_rows";
    let norm = MaxNorm { max_norm, norm_type };
    norm.check(OP, table)?;
    let all = lookup::all_ids(OP, lookup::ids_of(OP, ids, table), table)?;
    norm.apply(OP, &all, table)
}

/// How long a row may be that is looked up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxNorm {
    /// Its longest norm.
    pub max_norm: f64,
    /// The order of the norm: 2 for lengths, infinity for the largest value.
    pub norm_type: f64,
}

impl MaxNorm {
    /// By the length of rows.
    pub fn new(max_norm: f64) -> MaxNorm {
        MaxNorm { max_norm, norm_type: 2.0 }
    }

    /// What every rank finds alike.
    pub(super) fn check(self, op: &'static str, table: &ShardedTensor) -> Result<()> {
        check_float_table(op, table)?;
        let positive = |name: &'static str, number: f64| match number > 0.0 {
            true => Ok(()),
            false => Err(Error::from(LocalError::BadNumber {
                op,
                name,
                got: number.to_string(),
                want: "a number above zero",
            })),
        };
        positive("max_norm", self.max_norm)?;
        positive("norm_type", self.norm_type)
    }

    /// Shortens the rows that any rank asks for. All ranks call it with the same.
    pub(super) fn apply(
        self,
        op: &'static str,
        all: &[Asked],
        table: &mut ShardedTensor,
    ) -> Result<()> {
        let MaxNorm { max_norm, norm_type } = self;
        let mut rows: Vec<usize> =
            all.iter().flat_map(Asked::ids).filter_map(|id| usize::try_from(id).ok()).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut norms = vec![0.0_f64; rows.len()];
        let is_largest = norm_type.is_infinite();
        for shard in table.local_shards() {
            let (range, width) = within(&rows, shard.metadata());
            let values = shard.tensor().to_dtype(DType::F64)?.contiguous();
            let values = values.as_slice::<f64>()?;
            for (row, norm) in rows[range.clone()].iter().zip(&mut norms[range]) {
                let start = (row - shard.metadata().offsets()[0]) * width;
                for value in &values[start..start + width] {
                    *norm = match is_largest {
                        true => norm.max(value.abs()),
                        false => *norm + value.abs().powf(norm_type),
                    };
                }
            }
        }
        let by = if is_largest { ReduceOp::Max } else { ReduceOp::Sum };
        let members = table.process_group().group(op)?;
        members.all_reduce(&mut norms, by).map_err(Error::comm(op))?;
        let scale = |norm: &f64| {
            let norm = if is_largest { *norm } else { norm.powf(1.0 / norm_type) };
            // The same little number as in PyTorch.
            (norm > max_norm).then(|| max_norm / (norm + 1e-7))
        };
        let scales: Vec<Option<f64>> = norms.iter().map(scale).collect();
        table.modify_shards(|_, metadata, tensor| {
            let dtype = tensor.dtype();
            let (range, width) = within(&rows, metadata);
            let scaled = rows[range.clone()].iter().zip(&scales[range]);
            let scaled: Vec<(usize, f64)> = scaled
                .filter_map(|(row, scale)| Some(((row - metadata.offsets()[0]) * width, (*scale)?)))
                .collect();
            if scaled.is_empty() {
                return Ok(());
            }
            if dtype == DType::F64 {
                let values = tensor.as_mut_slice::<f64>()?;
                for (start, scale) in scaled {
                    values[start..start + width].iter_mut().for_each(|value| *value *= scale);
                }
                return Ok(());
            }
            // Halves become `f32` and come back as they were, but for the rows that change.
            let mut wide = tensor.to_dtype(DType::F32)?;
            let is_f32 = dtype == DType::F32;
            if is_f32 {
                *tensor = Tensor::empty(&[0, 0], dtype)?;
            }
            let values = wide.as_mut_slice::<f32>()?;
            for (start, scale) in scaled {
                values[start..start + width].iter_mut().for_each(|value| *value *= scale as f32);
            }
            *tensor = if is_f32 { wide } else { wide.to_dtype(dtype)? };
            Ok(())
        })
    }
}

/// Which of the rows, ascending, a shard has, and how many columns of them.
fn within(rows: &[usize], shard: &ShardMetadata) -> (std::ops::Range<usize>, usize) {
    let range = shard.range(0);
    let before = |bound: usize| rows.partition_point(|row| *row < bound);
    (before(range.start)..before(range.end), shard.sizes()[1])
}
