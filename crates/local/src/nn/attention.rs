//! Attention without the table of all queries by all keys.
//!
//! Queries are taken in blocks; for each, keys and values go by in blocks, and the softmax is kept *online*: a
//! running maximum and sum per query, by which what has been summed so far is rescaled when the maximum grows
//! (Dao et al., "FlashAttention", 2022). Memory beyond the results does not grow with the number of keys.

use super::{
    attention_mask::{AttentionMask, Masks, Place},
    block::{Left, Part, add_product, transpose},
    real::{Real, by_real, check_dtype, check_float, check_shape, rounded, row_max, widened},
};
use crate::{
    DType, LocalError, Result, Tensor, dims::Dims, disjoint::Disjoint, simd::vectorized, threads,
};

/// Queries and keys per block: two blocks of scores, and the operands, stay in the cache.
pub(super) const QUERIES: usize = 64;
pub(super) const KEYS: usize = 64;

/// Settings of [`Tensor::attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// Whether query `i` sees only keys `0..=i`.
    pub causal: bool,
    /// What products of queries and keys are multiplied by; one over the root of their length if `None`.
    pub scale: Option<f64>,
}

impl Tensor {
    /// `softmax(scale queries keys^T) values`, where `self` has the queries `[..., H, T, D]`, for keys
    /// `[..., G, S, D]` and values `[..., G, S, E]`: `[..., H, T, E]`. `G` divides `H`: neighbouring heads of
    /// queries share a head of keys. Gives the result, and the logarithm of the sum of every softmax for
    /// [`Tensor::attention_backward`]. As `torch.nn.functional.scaled_dot_product_attention`.
    pub fn attention(
        &self,
        keys: &Tensor,
        values: &Tensor,
        settings: &Attention,
    ) -> Result<(Tensor, Tensor)> {
        self.attention_masked(keys, values, settings, &AttentionMask::default())
    }

    /// As [`Tensor::attention`], of which a mask hides some keys from some queries or biases their products, and with
    /// dropout. Where `settings.causal` is set too, both hide. Its gradients: [`Tensor::attention_masked_backward`].
    pub fn attention_masked(
        &self,
        keys: &Tensor,
        values: &Tensor,
        settings: &Attention,
        masks: &AttentionMask,
    ) -> Result<(Tensor, Tensor)> {
        let op = "attention";
        let sizes = Sizes::new(op, self, keys, values)?;
        masks.check(op, self, &sizes)?;
        let (shape, sums_shape) = sizes.result_shapes(self);
        let kept = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        if self.is_meta() || keys.is_meta() || values.is_meta() || masks.is_meta() {
            return Ok((Tensor::meta(&shape, self.dtype())?, Tensor::meta(&sums_shape, kept)?));
        }
        let [wide, keys, values] = [widened(op, self)?, widened(op, keys)?, widened(op, values)?];
        let masks = masks.widened(op)?;
        let (out, log_sums) = by_real!(wide, R => {
            let masks = masks.masks::<R>(&wide, &sizes)?;
            let operands = Operands::<R>::new([&wide, &keys, &values], sizes, settings, masks)?;
            let mut out = Tensor::zeros(&shape, kept)?;
            let mut log_sums = Tensor::zeros(&sums_shape, kept)?;
            operands.forward(out.as_mut_slice()?, log_sums.as_mut_slice()?);
            (out, log_sums)
        });
        Ok((rounded(op, out, self.dtype())?, log_sums))
    }
}

/// The sizes of the operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Heads of queries in all batches.
    pub(super) n_heads: usize,
    /// Heads of queries per head of keys.
    pub(super) group: usize,
    pub(super) n_queries: usize,
    pub(super) n_keys: usize,
    /// Length of a query and of a key.
    pub(super) depth: usize,
    /// Length of a value.
    pub(super) width: usize,
}

impl Sizes {
    pub(super) fn new(
        op: &'static str,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<Sizes> {
        check_float(op, queries)?;
        check_dtype(op, keys, queries.dtype())?;
        check_dtype(op, values, queries.dtype())?;
        let mismatch = |from: &Tensor, to: &Tensor, why| {
            let (from, to) = (from.shape().to_vec(), to.shape().to_vec());
            Err(LocalError::ShapeMismatch { op, from, to, why })
        };
        let ([batch @ .., heads, n_queries, depth], [key_batch @ .., key_heads, n_keys, key_depth]) =
            (queries.shape(), keys.shape())
        else {
            return mismatch(queries, keys, "operands are [..., heads, length, depth]");
        };
        if batch != key_batch || depth != key_depth {
            return mismatch(keys, queries, "keys have the batch and the depth of the queries");
        }
        if *heads != 0 && (*key_heads == 0 || heads % key_heads != 0) {
            return mismatch(keys, queries, "the heads of the keys divide those of the queries");
        }
        let width = values.shape().last().copied().unwrap_or(1);
        let mut want: Dims = keys.shape().into();
        want[keys.n_dims() - 1] = width;
        check_shape(op, values, &want, "values have the shape of the keys but for the last dim")?;
        let n_heads = batch.iter().product::<usize>() * heads;
        let group = heads / (*key_heads).max(1);
        let (n_queries, n_keys, depth) = (*n_queries, *n_keys, *depth);
        Ok(Sizes { n_heads, group, n_queries, n_keys, depth, width })
    }

    /// Of the result and of the logarithms of the sums.
    pub(super) fn result_shapes(&self, queries: &Tensor) -> (Dims, Dims) {
        let sums: Dims = queries.shape()[..queries.n_dims() - 1].into();
        (sums.iter().copied().chain([self.width]).collect(), sums)
    }
}

/// Queries, keys and values, consecutive.
pub(super) struct Operands<'a, R> {
    pub(super) queries: &'a [R],
    pub(super) keys: &'a [R],
    pub(super) values: &'a [R],
    pub(super) sizes: Sizes,
    pub(super) causal: bool,
    pub(super) scale: R,
    pub(super) masks: Option<Masks<'a, R>>,
}

impl<'a, R: Real> Operands<'a, R> {
    pub(super) fn new(
        [queries, keys, values]: [&'a Tensor; 3],
        sizes: Sizes,
        settings: &Attention,
        masks: Option<Masks<'a, R>>,
    ) -> Result<Operands<'a, R>> {
        Ok(Operands {
            queries: queries.as_slice()?,
            keys: keys.as_slice()?,
            values: values.as_slice()?,
            sizes,
            causal: settings.causal,
            scale: R::of(settings.scale.unwrap_or_else(|| 1.0 / (sizes.depth as f64).sqrt())),
            masks,
        })
    }

    /// Keys that the queries before `end` see.
    pub(super) fn n_visible(&self, end: usize) -> usize {
        if self.causal { self.sizes.n_keys.min(end) } else { self.sizes.n_keys }
    }

    /// The part of a product that there is if queries do not see later keys.
    pub(super) fn part(&self, causal: Part) -> Part {
        if self.causal { causal } else { Part::Whole }
    }

    fn forward(&self, out: &mut [R], log_sums: &mut [R]) {
        let Sizes { n_heads, n_queries, width, .. } = self.sizes;
        let n_blocks = n_queries.div_ceil(QUERIES);
        let (out, log_sums) = (Disjoint::new(out), Disjoint::new(log_sums));
        threads::for_pieces(n_heads * n_blocks, 1, &|pieces| {
            for piece in pieces {
                let (head, first) = (piece / n_blocks, piece % n_blocks * QUERIES);
                let rows =
                    head * n_queries + first..head * n_queries + n_queries.min(first + QUERIES);
                // SAFETY: Every piece has rows of its own.
                let (out, log_sums) = unsafe {
                    (out.part(rows.start * width..rows.end * width), log_sums.part(rows.clone()))
                };
                self.block(head, first, out, log_sums);
            }
        });
    }

    /// The results of a block of queries, which begins at `first` of its head. `out` is zero.
    fn block(&self, head: usize, first: usize, out: &mut [R], log_sums: &mut [R]) {
        let Sizes { group, n_queries, n_keys, depth, width, .. } = self.sizes;
        let n = log_sums.len();
        let queries = &self.queries[(head * n_queries + first) * depth..][..n * depth];
        let key_rows = head / group * n_keys;
        let mut turned_keys = vec![R::ZERO; depth * KEYS];
        let mut scores = vec![R::ZERO; n * KEYS];
        let (mut maxima, mut sums) = (vec![R::NEG_INFINITY; n], vec![R::ZERO; n]);
        for key in (0..self.n_visible(first + n)).step_by(KEYS) {
            let n_block = KEYS.min(n_keys - key);
            let keys = &self.keys[(key_rows + key) * depth..][..n_block * depth];
            transpose(keys, depth, &mut turned_keys, KEYS);
            scores.fill(R::ZERO);
            let left = Left { values: queries, row_stride: depth, column_stride: 1 };
            // Query `row` of the block sees key `column` of it up to this distance.
            let apart = first as isize - key as isize;
            let size = [n, depth, n_block];
            let part = self.part(Part::ColumnsUpTo(apart));
            add_product(left, &turned_keys, KEYS, &mut scores, KEYS, size, part);
            for row in 0..n {
                let n_seen = if self.causal {
                    (first + row + 1).saturating_sub(key).min(n_block)
                } else {
                    n_block
                };
                let (seen, hidden) = scores[row * KEYS..][..n_block].split_at_mut(n_seen);
                hidden.fill(R::ZERO);
                if seen.is_empty() {
                    continue;
                }
                let out = &mut out[row * width..][..width];
                let Some(masks) = &self.masks else {
                    online(seen, self.scale, &mut maxima[row], &mut sums[row], out);
                    continue;
                };
                let place = Place { head, query: first + row, key };
                if masks.apply(place, seen, self.scale) {
                    online(seen, R::ONE, &mut maxima[row], &mut sums[row], out);
                    // Of what the softmax gives, not of what it sums.
                    masks.drop_out(place, seen);
                } else {
                    seen.fill(R::ZERO);
                }
            }
            let values = &self.values[(key_rows + key) * width..][..n_block * width];
            let left = Left { values: &scores, row_stride: KEYS, column_stride: 1 };
            let part = self.part(Part::LeftUpTo(apart));
            add_product(left, values, width, out, width, [n, n_block, width], part);
        }
        for row in 0..n {
            // A query that sees no key has the sum zero and gives zeros, as in PyTorch.
            let scale = if sums[row] == R::ZERO { R::ZERO } else { R::ONE / sums[row] };
            out[row * width..][..width].iter_mut().for_each(|out| *out *= scale);
            log_sums[row] = maxima[row] + sums[row].ln();
        }
    }
}

vectorized! {
    /// Turns the products of one query with a block of keys into terms of its softmax, relative to the largest so
    /// far, and brings what has been summed before to the same measure.
    fn online<R: Real>(scores: &mut [R], scale: R, maximum: &mut R, sum: &mut R, out: &mut [R]) {
        for score in scores.iter_mut() {
            *score *= scale;
        }
        let largest = row_max(scores);
        if largest > *maximum {
            let shrink = (*maximum - largest).exp::<FMA>();
            *maximum = largest;
            *sum *= shrink;
            for out in out.iter_mut() {
                *out *= shrink;
            }
        }
        let largest = *maximum;
        let mut added = R::ZERO;
        let (blocks, rest) = scores.as_chunks_mut::<16>();
        let mut lanes = [R::ZERO; 16];
        for block in blocks {
            for (score, lane) in block.iter_mut().zip(&mut lanes) {
                *score = (*score - largest).exp::<FMA>();
                *lane += *score;
            }
        }
        for score in rest {
            *score = (*score - largest).exp::<FMA>();
            added += *score;
        }
        for lane in lanes {
            added += lane;
        }
        *sum += added;
    }
}
