//! From gradients of bags back to the table and to the weights of ids.

use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use super::{
    bag::{BagMode, BagOptions, Real},
    bags::{BagArguments, Bags},
    check_float_table,
    lookup::{self, added_to_rows},
};
use crate::{Result, ShardedTensor, exchange::all_records};

/// What [`embedding_bag_backward`] gives.
#[derive(Clone, Debug)]
pub struct BagGradients {
    /// The gradient of the table, cut as the table is: of the bags of all ranks.
    pub table: ShardedTensor,
    /// The gradient of the weights that this rank gave, if it gave some.
    pub per_sample_weights: Option<Tensor>,
}

/// The gradients of a table, and of the weights of ids, from that of [`embedding_bag`](super::embedding_bag):
/// `grad` is the gradient of this rank's result, `[bags, E]`, and the other arguments are those that the result
/// was made with. All ranks of the group call it.
///
/// A row of the table gets the gradients of the bags that it was in, times its weight, or divided by the number
/// of rows in the bag. Of a maximum, in every column the first row that has it gets the gradient. What was
/// taken at `padding_idx` has none.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::*, full};
///
/// Runner::threads(2).run(|world| {
///     let table = full(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 2], 5.0, DType::F32, world)?;
///     let ids = Tensor::from_vec(vec![0_i64, 2], &[1, 2])?;
///     let weights = Tensor::from_vec(vec![0.5_f32, -1.0], &[1, 2])?;
///     let options = BagOptions {
///         mode: BagMode::Sum,
///         per_sample_weights: Some(weights),
///         ..BagOptions::default()
///     };
///     let grad = Tensor::full(&[1, 2], 1.0_f32)?;
///     let gradients = embedding_bag_backward(&grad, &ids, None, &table, &options)?;
///     // Both ranks have the same bag.
///     assert_eq!(gradients.table.full_tensor()?.to_vec::<f32>()?, [1., 1., 0., 0., -2., -2.]);
///     assert_eq!(gradients.per_sample_weights.unwrap().to_vec::<f32>()?, [10.0, 10.0]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding_bag_backward(
    grad: &Tensor,
    ids: &Tensor,
    offsets: Option<&Tensor>,
    table: &ShardedTensor,
    options: &BagOptions,
) -> Result<BagGradients> {
    const OP: &str = "embedding_bag_backward";
    check_float_table(OP, table)?;
    let bags = BagArguments::with_options(ids, offsets, options).bags(OP, table);
    let bags = bags.and_then(|bags| {
        let want = [bags.ends.len(), table.size()[1]];
        match grad.shape() == want {
            true => Ok(bags),
            false => Err(LocalError::ShapeMismatch {
                op: OP,
                from: grad.shape().to_vec(),
                to: want.to_vec(),
                why: "a gradient has the shape of the result",
            }
            .into()),
        }
    });
    // Some gradients depend on the rows themselves. If one rank needs them, all look rows up: a rank without
    // bags may have left its weights out.
    let needs_rows = bags.as_ref().map(|bags| bags.mode == BagMode::Max || bags.weights.is_some());
    let needs_rows = all_records(OP, table.process_group(), needs_rows.map_err(Clone::clone))?;
    let bags = bags?;
    let rows = match needs_rows.into_iter().any(|needed| needed) {
        true => Some(lookup::rows(OP, Ok(bags.ids.clone()), table)?),
        false => None,
    };
    let (of_rows, of_weights) = match table.dtype() {
        DType::F64 => bags.gradients::<f64>(grad, rows.as_ref())?,
        _ => bags.gradients::<f32>(grad, rows.as_ref())?,
    };
    let of_weights = match &options.per_sample_weights {
        Some(weights) => Some(bags.spread_weights(&of_weights, weights)?),
        None => None,
    };
    let table = added_to_rows(OP, Ok((of_rows, bags.ids)), table, None)?;
    Ok(BagGradients { table, per_sample_weights: of_weights })
}

impl Bags {
    /// The gradient of the row of every id, and of the weight of every id, from those of the bags. Halves are
    /// added up as `f32`.
    fn gradients<T: Real>(
        &self,
        grad: &Tensor,
        rows: Option<&Tensor>,
    ) -> Result<(Tensor, Vec<f64>)> {
        let width = grad.shape()[1];
        let grad = grad.to_dtype(T::DTYPE)?.contiguous();
        let grad = grad.as_slice::<T>()?;
        let rows = rows.map(|rows| Ok::<_, LocalError>(rows.to_dtype(T::DTYPE)?.contiguous()));
        let rows = rows.transpose()?;
        let rows = rows.as_ref().map(Tensor::as_slice::<T>).transpose()?.unwrap_or_default();
        let mut of_rows = vec![T::default(); self.ids.len() * width];
        let mut of_weights = Vec::new();
        let mut start = 0;
        for (bag, end) in self.ends.iter().enumerate() {
            let grad = &grad[bag * width..][..width];
            let mean = T::of((*end - start).max(1) as f64);
            for id in start..*end {
                let own = &mut of_rows[id * width..][..width];
                match (self.mode, &self.weights) {
                    (BagMode::Sum, None) => own.copy_from_slice(grad),
                    (BagMode::Sum, Some(weights)) => {
                        let weight = T::of(weights[id]);
                        own.iter_mut().zip(grad).for_each(|(own, grad)| *own = *grad * weight);
                        let pairs = rows[id * width..][..width].iter().zip(grad);
                        let dot = pairs.fold(T::default(), |sum, (row, grad)| sum + *row * *grad);
                        of_weights.push(dot.to_f64());
                    }
                    (BagMode::Mean, _) => {
                        own.iter_mut().zip(grad).for_each(|(own, grad)| *own = *grad / mean);
                    }
                    (BagMode::Max, _) => {}
                }
            }
            if self.mode == BagMode::Max && start < *end {
                for (column, grad) in grad.iter().enumerate() {
                    let mut largest = start;
                    for id in start..*end {
                        if rows[id * width + column] > rows[largest * width + column] {
                            largest = id;
                        }
                    }
                    of_rows[largest * width + column] = *grad;
                }
            }
            start = *end;
        }
        Ok((Tensor::from_vec(of_rows, &[self.ids.len(), width])?, of_weights))
    }

    /// The gradients of the weights that count, among those of all ids.
    fn spread_weights(&self, counted: &[f64], weights: &Tensor) -> Result<Tensor> {
        let mut all = vec![0.0; weights.numel()];
        for (position, gradient) in self.positions.iter().zip(counted) {
            all[*position] = *gradient;
        }
        Ok(Tensor::from_vec(all, weights.shape())?.to_dtype(weights.dtype())?)
    }
}
