//! Gradients of attention, block by block as the result.

use super::{
    attention::{Attention, KEYS, Operands, QUERIES, Sizes},
    attention_mask::{AttentionMask, Place},
    block::{Left, Part, add_product, transpose},
    real::{Real, by_real, check_dtype, check_shape, rounded, row_sum_2, widened},
};
use crate::{DType, Result, Tensor, disjoint::Disjoint, simd::vectorized, threads};

/// Gradients of [`Tensor::attention`], each in the shape of its operand.
#[derive(Clone, Debug)]
pub struct AttentionGrads {
    /// Of the queries.
    pub queries: Tensor,
    /// Of the keys.
    pub keys: Tensor,
    /// Of the values.
    pub values: Tensor,
}

impl Tensor {
    /// Gradients of [`Tensor::attention`], where `self` has the queries, given its two results and the
    /// gradient of the first.
    pub fn attention_backward(
        &self,
        keys: &Tensor,
        values: &Tensor,
        results: (&Tensor, &Tensor),
        grad: &Tensor,
        settings: &Attention,
    ) -> Result<AttentionGrads> {
        let masks = AttentionMask::default();
        self.attention_masked_backward(keys, values, results, grad, settings, &masks)
    }

    /// Gradients of [`Tensor::attention_masked`], where `self` has the queries, given its two results and the gradient
    /// of the first. The masks have none.
    pub fn attention_masked_backward(
        &self,
        keys: &Tensor,
        values: &Tensor,
        (out, log_sums): (&Tensor, &Tensor),
        grad: &Tensor,
        settings: &Attention,
        masks: &AttentionMask,
    ) -> Result<AttentionGrads> {
        let op = "attention_backward";
        let sizes = Sizes::new(op, self, keys, values)?;
        masks.check(op, self, &sizes)?;
        let (shape, sums_shape) = sizes.result_shapes(self);
        let kept = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        for result in [out, grad] {
            check_dtype(op, result, self.dtype())?;
            check_shape(op, result, &shape, "a gradient has the shape of the result")?;
        }
        check_dtype(op, log_sums, kept)?;
        check_shape(op, log_sums, &sums_shape, "it is the second result of attention")?;
        let operands = [self, keys, values, out, log_sums, grad];
        if operands.iter().any(|tensor| tensor.is_meta()) || masks.is_meta() {
            let meta = |tensor: &Tensor| Tensor::meta(tensor.shape(), tensor.dtype());
            return Ok(AttentionGrads {
                queries: meta(self)?,
                keys: meta(keys)?,
                values: meta(values)?,
            });
        }
        let [wide, wide_keys, wide_values] =
            [widened(op, self)?, widened(op, keys)?, widened(op, values)?];
        let [out, grad, log_sums] = [widened(op, out)?, widened(op, grad)?, log_sums.contiguous()];
        let mut grads = [self, keys, values].map(|tensor| Tensor::zeros(tensor.shape(), kept));
        let masks = masks.widened(op)?;
        by_real!(wide, R => {
            let masks = masks.masks::<R>(&wide, &sizes)?;
            let operands = [&wide, &wide_keys, &wide_values];
            let operands = Operands::<R>::new(operands, sizes, settings, masks)?;
            let results = Results { out: out.as_slice()?, grad: grad.as_slice()?, log_sums: log_sums.as_slice()? };
            if let [Ok(queries), Ok(keys), Ok(values)] = &mut grads {
                let slices = [queries.as_mut_slice()?, keys.as_mut_slice()?, values.as_mut_slice()?];
                operands.backward(&results, slices);
            }
        });
        let [queries, keys, values] = grads;
        Ok(AttentionGrads {
            queries: rounded(op, queries?, self.dtype())?,
            keys: rounded(op, keys?, self.dtype())?,
            values: rounded(op, values?, self.dtype())?,
        })
    }
}

/// What the forward pass gave, and the gradient of it.
struct Results<'a, R> {
    out: &'a [R],
    grad: &'a [R],
    log_sums: &'a [R],
}

/// Memory for blocks, used again for each.
struct Scratch<R> {
    turned_keys: Vec<R>,
    turned_values: Vec<R>,
    /// The softmax of a block of queries by a block of keys.
    weights: Vec<R>,
    /// The gradients of it, and then of the scores.
    score_grads: Vec<R>,
}

impl<R: Real> Operands<'_, R> {
    /// Adds to gradients of queries, keys and values that are zero. One piece of work is one head of keys with all
    /// heads of queries that share it: no two pieces add to the same place.
    fn backward(&self, results: &Results<R>, [d_queries, d_keys, d_values]: [&mut [R]; 3]) {
        let Sizes { n_heads, group, n_queries, n_keys, depth, width } = self.sizes;
        let (d_queries, d_keys, d_values) =
            (Disjoint::new(d_queries), Disjoint::new(d_keys), Disjoint::new(d_values));
        threads::for_pieces(n_heads / group.max(1), 1, &|pieces| {
            let mut scratch = Scratch {
                turned_keys: vec![R::ZERO; depth * KEYS],
                turned_values: vec![R::ZERO; width * KEYS],
                weights: vec![R::ZERO; QUERIES * KEYS],
                score_grads: vec![R::ZERO; QUERIES * KEYS],
            };
            for key_head in pieces {
                let rows = key_head * n_keys..(key_head + 1) * n_keys;
                // SAFETY: Every piece has a head of keys, and the heads of queries that share it, of its own.
                let (d_keys, d_values) = unsafe {
                    let values = rows.start * width..rows.end * width;
                    (d_keys.part(rows.start * depth..rows.end * depth), d_values.part(values))
                };
                for head in key_head * group..(key_head + 1) * group {
                    let size = n_queries * depth;
                    // SAFETY: As above.
                    let d_queries = unsafe { d_queries.part(head * size..(head + 1) * size) };
                    self.backward_head(results, head, [d_queries, d_keys, d_values], &mut scratch);
                }
            }
        });
    }

    fn backward_head(
        &self,
        results: &Results<R>,
        head: usize,
        [d_queries, d_keys, d_values]: [&mut [R]; 3],
        scratch: &mut Scratch<R>,
    ) {
        let Sizes { group, n_queries, n_keys, depth, width, .. } = self.sizes;
        let (key_rows, query_rows) = (head / group * n_keys, head * n_queries);
        // The part of a score's gradient that all keys of a query share: sum(grad out).
        let shared: Vec<R> = (query_rows..query_rows + n_queries)
            .map(|row| {
                dot(&results.grad[row * width..][..width], &results.out[row * width..][..width])
            })
            .collect();
        for key in (0..n_keys).step_by(KEYS) {
            let n_block = KEYS.min(n_keys - key);
            let keys = &self.keys[(key_rows + key) * depth..][..n_block * depth];
            let values = &self.values[(key_rows + key) * width..][..n_block * width];
            transpose(keys, depth, &mut scratch.turned_keys, KEYS);
            transpose(values, width, &mut scratch.turned_values, KEYS);
            let (d_keys, d_values) = (&mut d_keys[key * depth..], &mut d_values[key * width..]);
            for first in (0..n_queries).step_by(QUERIES) {
                let n = QUERIES.min(n_queries - first);
                if self.n_visible(first + n) <= key {
                    continue;
                }
                let row = query_rows + first;
                let queries = &self.queries[row * depth..][..n * depth];
                let grad = &results.grad[row * width..][..n * width];
                let Scratch { turned_keys, turned_values, weights, score_grads } = &mut *scratch;
                weights.fill(R::ZERO);
                score_grads.fill(R::ZERO);
                let by_row = |values, stride| Left { values, row_stride: stride, column_stride: 1 };
                // Query `row` of the block sees key `column` of it up to this distance.
                let apart = first as isize - key as isize;
                let part = self.part(Part::ColumnsUpTo(apart));
                let size = [n, depth, n_block];
                add_product(by_row(queries, depth), turned_keys, KEYS, weights, KEYS, size, part);
                let size = [n, width, n_block];
                add_product(
                    by_row(grad, width),
                    turned_values,
                    KEYS,
                    score_grads,
                    KEYS,
                    size,
                    part,
                );
                for i in 0..n {
                    let n_seen = if self.causal {
                        (first + i + 1).saturating_sub(key).min(n_block)
                    } else {
                        n_block
                    };
                    let weights = &mut weights[i * KEYS..][..n_block];
                    let score_grads = &mut score_grads[i * KEYS..][..n_block];
                    weights[n_seen..].fill(R::ZERO);
                    score_grads[n_seen..].fill(R::ZERO);
                    let (log_sum, shared) = (results.log_sums[row + i], shared[first + i]);
                    let (weights, score_grads) =
                        (&mut weights[..n_seen], &mut score_grads[..n_seen]);
                    let Some(masks) = &self.masks else {
                        softmax_backward(weights, score_grads, self.scale, log_sum, shared);
                        continue;
                    };
                    let place = Place { head, query: first + i, key };
                    if masks.apply(place, weights, self.scale) {
                        masks.drop_out(place, score_grads);
                        masked_softmax_backward(weights, score_grads, self.scale, log_sum, shared);
                        masks.drop_out(place, weights);
                    } else {
                        weights.fill(R::ZERO);
                        score_grads.fill(R::ZERO);
                    }
                }
                let turned = |values| Left { values, row_stride: 1, column_stride: KEYS };
                let part = self.part(Part::LeftFrom(apart));
                let size = [n_block, n, width];
                add_product(turned(weights), grad, width, d_values, width, size, part);
                let size = [n_block, n, depth];
                add_product(turned(score_grads), queries, depth, d_keys, depth, size, part);
                let d_queries = &mut d_queries[first * depth..];
                let part = self.part(Part::LeftUpTo(apart));
                let size = [n, n_block, depth];
                add_product(by_row(score_grads, KEYS), keys, depth, d_queries, depth, size, part);
            }
        }
    }
}

vectorized! {
    /// Turns products of a query with keys into its softmax, and gradients of that into those of the products.
    fn softmax_backward<R: Real>(weights: &mut [R], grads: &mut [R], scale: R, log_sum: R, shared: R) {
        for (weight, grad) in weights.iter_mut().zip(grads) {
            *weight = weight.mul_add::<FMA>(scale, -log_sum).exp::<FMA>();
            *grad = *weight * (*grad - shared) * scale;
        }
    }
}

vectorized! {
    /// As [`softmax_backward`], of scores that are scaled and masked already.
    fn masked_softmax_backward<R: Real>(
        weights: &mut [R],
        grads: &mut [R],
        scale: R,
        log_sum: R,
        shared: R,
    ) {
        for (weight, grad) in weights.iter_mut().zip(grads) {
            *weight = (*weight - log_sum).exp::<FMA>();
            *grad = *weight * (*grad - shared) * scale;
        }
    }
}

vectorized! {
    fn dot<R: Real>(a: &[R], b: &[R]) -> R {
        row_sum_2(a, b, |a, b| a * b)
    }
}
