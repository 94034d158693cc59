//! What attention hides: masks of queries by keys, read where they are needed and never widened to all heads.

use super::{
    attention::Sizes,
    real::{Real, check_dtype, widened},
};
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, contiguous_strides},
    simd::vectorized,
};

/// Masks of [`Tensor::attention_masked`]. Each broadcasts to `[..., H, T, S]`: all heads, queries and keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMask<'a> {
    /// `bool`: whether a query sees a key. Or of the dtype of the queries: what is added to their product, after scaling.
    /// A query that sees no key gives zeros, as in PyTorch.
    pub mask: Option<&'a Tensor>,
    /// Dropout: which weights stay after the softmax (`bool`), and the probability by which the others were dropped;
    /// what stays is divided by one less that.
    pub dropout: Option<(&'a Tensor, f64)>,
}

impl AttentionMask<'_> {
    /// Refuses masks that do not fit.
    pub(super) fn check(&self, op: &'static str, queries: &Tensor, sizes: &Sizes) -> Result<()> {
        let full = full_shape(queries, sizes);
        let broadcasts = |tensor: &Tensor| match tensor.expand(&full) {
            Ok(_) => Ok(()),
            Err(_) => Err(LocalError::ShapeMismatch {
                op,
                from: tensor.shape().to_vec(),
                to: full.to_vec(),
                why: "a mask broadcasts to all heads, queries and keys",
            }),
        };
        if let Some(mask) = self.mask {
            if mask.dtype() != DType::Bool {
                check_dtype(op, mask, queries.dtype())?;
            }
            broadcasts(mask)?;
        }
        if let Some((kept, p)) = self.dropout {
            check_dtype(op, kept, DType::Bool)?;
            broadcasts(kept)?;
            if !(0.0..=1.0).contains(&p) {
                let (name, got, want) = ("p", p.to_string(), "a probability from 0 to 1");
                return Err(LocalError::BadNumber { op, name, got, want });
            }
        }
        Ok(())
    }

    pub(super) fn is_meta(&self) -> bool {
        let of_dropout = self.dropout.map(|(kept, _)| kept);
        [self.mask, of_dropout].into_iter().flatten().any(Tensor::is_meta)
    }

    /// The masks with consecutive values, floats in the type that is computed in.
    pub(super) fn widened(&self, op: &'static str) -> Result<WideMasks> {
        let wide = |mask: &Tensor| match mask.dtype() {
            DType::Bool => Ok(mask.contiguous()),
            _ => widened(op, mask),
        };
        Ok(WideMasks {
            mask: self.mask.map(wide).transpose()?,
            dropout: self.dropout.map(|(kept, p)| (kept.contiguous(), p)),
        })
    }
}

/// What [`AttentionMask::widened`] gives.
pub(super) struct WideMasks {
    mask: Option<Tensor>,
    dropout: Option<(Tensor, f64)>,
}

impl WideMasks {
    /// Masks to be read by head, query and key; `None` if there are none.
    pub(super) fn masks<R: Real>(
        &self,
        queries: &Tensor,
        sizes: &Sizes,
    ) -> Result<Option<Masks<'_, R>>> {
        if self.mask.is_none() && self.dropout.is_none() {
            return Ok(None);
        }
        let full = full_shape(queries, sizes);
        let mask = match &self.mask {
            Some(mask) if mask.dtype() == DType::Bool => Some(Mask::Seen(Grid::new(mask, &full)?)),
            Some(mask) => Some(Mask::Added(Grid::new(mask, &full)?)),
            None => None,
        };
        let dropout = match &self.dropout {
            Some((kept, p)) => {
                let scale = if *p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
                Some((Grid::new(kept, &full)?, R::of(scale)))
            }
            None => None,
        };
        Ok(Some(Masks { mask, dropout }))
    }
}

/// Masks by head, query and key.
pub(super) struct Masks<'a, R> {
    mask: Option<Mask<'a, R>>,
    dropout: Option<(Grid<'a, bool>, R)>,
}

enum Mask<'a, R> {
    Seen(Grid<'a, bool>),
    Added(Grid<'a, R>),
}

impl<R: Real> Masks<'_, R> {
    /// Scales the products of a query with the keys from `key` on and applies the mask. Gives whether any key is seen.
    pub(super) fn apply(&self, place: Place, scores: &mut [R], scale: R) -> bool {
        match &self.mask {
            Some(Mask::Seen(grid)) => match grid.row(place, scores.len()) {
                Row::Each(seen) => hide(scores, scale, seen),
                Row::All(true) => scale_all(scores, scale),
                Row::All(false) => scores.fill(R::NEG_INFINITY),
            },
            Some(Mask::Added(grid)) => match grid.row(place, scores.len()) {
                Row::Each(added) => add(scores, scale, added),
                Row::All(added) => {
                    scores.iter_mut().for_each(|score| *score = *score * scale + added);
                }
            },
            None => scale_all(scores, scale),
        }
        // Not by the largest, which passes over NaN.
        scores.iter().any(|score| *score != R::NEG_INFINITY)
    }

    /// Multiplies by what dropout makes of the weights of a query for the keys from `key` on.
    pub(super) fn drop_out(&self, place: Place, values: &mut [R]) {
        let Some((kept, scale)) = &self.dropout else { return };
        match kept.row(place, values.len()) {
            Row::Each(kept) => keep(values, *scale, kept),
            Row::All(true) => scale_all(values, *scale),
            Row::All(false) => scale_all(values, R::ZERO),
        }
    }
}

/// A query and the first of some keys.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) head: usize,
    pub(super) query: usize,
    pub(super) key: usize,
}

/// A tensor that is broadcast to heads, queries and keys.
struct Grid<'a, T> {
    values: &'a [T],
    /// Where every head begins.
    heads: Vec<usize>,
    query_stride: usize,
    /// 1, or 0 if all keys have the same.
    key_stride: usize,
}

/// The values of a query.
enum Row<'a, T> {
    /// One per key.
    Each(&'a [T]),
    /// The same for all keys.
    All(T),
}

impl<'a, T: crate::Element> Grid<'a, T> {
    fn new(tensor: &'a Tensor, full: &[usize]) -> Result<Grid<'a, T>> {
        // Strides of consecutive values, none where a dim is broadcast.
        let new = full.len() - tensor.n_dims();
        let own = contiguous_strides(tensor.shape());
        let strides: Dims = (0..full.len())
            .map(|dim| match dim.checked_sub(new) {
                Some(dim) if tensor.shape()[dim] != 1 => own[dim] as usize,
                _ => 0,
            })
            .collect();
        let (query, key) = (full.len() - 2, full.len() - 1);
        let n_heads = full[..query].iter().product();
        let place = |head: usize| {
            let (mut rest, mut at) = (head, 0);
            for dim in (0..query).rev() {
                at += rest % full[dim] * strides[dim];
                rest /= full[dim];
            }
            at
        };
        Ok(Grid {
            values: tensor.as_slice()?,
            heads: (0..n_heads).map(place).collect(),
            query_stride: strides[query],
            key_stride: strides[key],
        })
    }

    fn row(&self, Place { head, query, key }: Place, n: usize) -> Row<'a, T> {
        let start = self.heads[head] + query * self.query_stride;
        match self.key_stride {
            0 => Row::All(self.values[start]),
            _ => Row::Each(&self.values[start + key..][..n]),
        }
    }
}

/// `[..., H, T, S]`.
fn full_shape(queries: &Tensor, sizes: &Sizes) -> Dims {
    let mut shape: Dims = queries.shape().into();
    let last = shape.len() - 1;
    shape[last] = sizes.n_keys;
    shape
}

vectorized! {
    fn scale_all<R: Real>(scores: &mut [R], scale: R) {
        for score in scores.iter_mut() {
            *score *= scale;
        }
    }
}

vectorized! {
    fn hide<R: Real>(scores: &mut [R], scale: R, seen: &[bool]) {
        for (score, seen) in scores.iter_mut().zip(seen) {
            *score = if *seen { *score * scale } else { R::NEG_INFINITY };
        }
    }
}

vectorized! {
    fn add<R: Real>(scores: &mut [R], scale: R, added: &[R]) {
        for (score, added) in scores.iter_mut().zip(added) {
            *score = score.mul_add::<FMA>(scale, *added);
        }
    }
}

vectorized! {
    fn keep<R: Real>(values: &mut [R], scale: R, kept: &[bool]) {
        for (value, kept) in values.iter_mut().zip(kept) {
            *value *= if *kept { scale } else { R::ZERO };
        }
    }
}
