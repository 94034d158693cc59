//! Slices of a dim, written to the places that a list of indices names: the opposite of `index_select`. Along
//! a dim that is cut every rank writes what falls into its part.

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Scalar, Tensor};

use super::{
    held::{Hits, LIST, TENSOR, is_left_out, letter, letters, normal, numbers},
    last::{counted, of_the_last, places},
};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::Index, Value, one,
    },
};

/// `index_add` and its family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IndexWrite {
    dim: isize,
    how: How,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum How {
    /// The source times this is added.
    Add(Value),
    Copy,
    /// This value instead.
    Fill(Value),
}

impl Op for IndexWrite {
    fn name(&self) -> &'static str {
        match &self.how {
            How::Add(_) => "index_add",
            How::Copy => "index_copy",
            How::Fill(_) => "index_fill",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, list) = (&operands[0], &operands[1]);
        let dim = normal(self.dim, x.n_dims());
        let tensor = letters(TENSOR, x.n_dims());
        // Ranks may each add some of the slices, and then have a part of the result.
        let adds = matches!(self.how, How::Add(_)) && x.n_dims() > 0;
        let slice = if adds { letter(LIST, 0) } else { format!("{}!", letter(LIST, 0)) };
        let mut text = format!("{}, ", tensor.join(" "));
        text += if list.n_dims() == 0 { "" } else { &slice };
        if let Some(source) = operands.get(2) {
            let mut names = match source.n_dims() {
                0 => Vec::new(),
                _ if x.n_dims() == 0 => vec![slice.clone()],
                _ => tensor.clone(),
            };
            if let Some(name) = names.get_mut(dim) {
                *name = if list.n_dims() == 0 { "1".to_string() } else { slice };
            }
            text += &format!(", {}", names.join(" "));
        }
        text += &format!(" -> {}", tensor.join(" "));
        text += match &self.how {
            // Not by what is infinite: contributions would become NaN.
            How::Add(alpha) if !alpha.0.to_f64().is_finite() => "",
            // Sums are linear, and linear up to a constant in each alone.
            How::Add(_) => {
                "; P(sum) R P(sum) -> P(sum); P(sum) R R -> P(sum); R R P(sum) -> P(sum); \
                 P(avg) R P(avg) -> P(avg); P(avg) R R -> P(avg); R R P(avg) -> P(avg)"
            }
            // Elements only move; those that are whole do not change by a mean or an extreme.
            How::Copy => {
                "; P(sum) R P(sum) -> P(sum); R R P(sum) -> P(sum); \
                 P(product) R P(product) -> P(product); \
                 P(avg) R P(avg) -> P(avg); P(avg) R R -> P(avg); R R P(avg) -> P(avg); \
                 P(max) R P(max) -> P(max); P(max) R R -> P(max); R R P(max) -> P(max); \
                 P(min) R P(min) -> P(min); P(min) R R -> P(min); R R P(min) -> P(min)"
            }
            // Nothing of a sum or a product is one of nothings.
            How::Fill(value) if value.0.to_f64() == 0.0 => {
                "; P(avg) R -> P(avg); P(max) R -> P(max); P(min) R -> P(min); \
                 P(sum) R -> P(sum); P(product) R -> P(product)"
            }
            How::Fill(_) => "; P(avg) R -> P(avg); P(max) R -> P(max); P(min) R -> P(min)",
        };
        if adds && x.dtype.is_float() {
            // Not where integers wrap around.
            text += "; P(max) R R -> P(max); P(min) R R -> P(min)";
        }
        if adds && list.n_dims() > 0 {
            text += &format!("; P(sum) S(0) S({dim}) -> P(sum)");
        }
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, list, source) = (operands[0], operands[1], operands.get(2).copied());
        let Some(layout) = context.operand(0) else { return one(self.kernel(x, list, source)) };
        if x.is_meta() || list.is_meta() || source.is_some_and(Tensor::is_meta) {
            return one(Tensor::meta(x.shape(), x.dtype()));
        }
        let dim = normal(self.dim, x.n_dims());
        let size = layout.global_shape().get(dim).copied().unwrap_or(1);
        let numbers = numbers(self.name(), list, dim, size, false)?;
        let start = match is_left_out(context, &[0]) {
            true => x.zeros_like()?,
            false => x.clone(),
        };
        if matches!(self.how, How::Add(_)) && is_left_out(context, &[1, 2]) {
            return one(Ok(start));
        }
        if x.shape().get(dim).copied().unwrap_or(1) == size {
            return one(self.kernel(&start, list, source));
        }
        let hits = Hits::of(&numbers, &context.operand_range(0, dim, size))?;
        let source =
            source.map(|source| source.index_select(self.dim, &hits.positions)).transpose()?;
        one(self.kernel(&start, &hits.indices, source.as_ref()))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, list) = (backward.grad()?, backward.operand(1)?);
        backward.each(|operand| match (operand, &self.how) {
            (0, How::Add(_)) => Ok(grad.clone()),
            (0, _) => grad.index_fill(self.dim, &list, Scalar::Float(0.0)),
            (_, How::Add(alpha)) => match alpha.0.to_f64() == 1.0 {
                true => grad.index_select(self.dim, &list),
                false => grad.index_select(self.dim, &list)?.mul(alpha.0),
            },
            (_, _) => {
                let picked = grad.index_select(self.dim, &list)?;
                let n_dims = grad.n_dims();
                if list.n_dims() == 0 || n_dims == 0 {
                    return Ok(picked);
                }
                // Slices that others came after are not there.
                let dim = normal(self.dim, n_dims);
                let numbers = counted(&grad, list.numel())?;
                let written = places(&grad, &[dim])?.index_copy(0, &list, &numbers)?;
                let mut shape = vec![1; n_dims];
                shape[dim] = -1;
                of_the_last(&picked, &numbers, &written.index_select(0, &list)?, &shape)
            }
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

impl IndexWrite {
    fn kernel(
        &self,
        x: &Tensor,
        list: &Tensor,
        source: Option<&Tensor>,
    ) -> Result<Tensor, LocalError> {
        // Without a source there is none to be asked for.
        let source = source.unwrap_or(list);
        match &self.how {
            How::Add(alpha) => x.index_add(self.dim, list, source, alpha.0),
            How::Copy => x.index_copy(self.dim, list, source),
            How::Fill(value) => x.index_fill(self.dim, list, value.0),
        }
    }
}

impl DTensor {
    /// A copy with `alpha` times slice `i` of the source added to slice `indices[i]` of a dim. Where indices
    /// and source are cut, every rank adds its slices, and the result is a pending sum.
    pub fn index_add(
        &self,
        dim: isize,
        indices: &DTensor,
        source: &DTensor,
        alpha: impl Into<Scalar>,
    ) -> Result<DTensor> {
        let how = How::Add(Value(alpha.into()));
        call_one(&IndexWrite { dim, how }, &[self, indices, source])
    }

    /// A copy with slice `i` of the source in place of slice `indices[i]` of a dim; if an index repeats, the
    /// last slice stays.
    pub fn index_copy(&self, dim: isize, indices: &DTensor, source: &DTensor) -> Result<DTensor> {
        call_one(&IndexWrite { dim, how: How::Copy }, &[self, indices, source])
    }

    /// A copy with one value in the slices of a dim at these indices.
    pub fn index_fill(
        &self,
        dim: isize,
        indices: &DTensor,
        value: impl Into<Scalar>,
    ) -> Result<DTensor> {
        let how = How::Fill(Value(value.into()));
        call_one(&IndexWrite { dim, how }, &[self, indices])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "index_add", samples: || samples(|| How::Add(Value(Scalar::Int(3)))) },
    OpRecord { name: "index_copy", samples: || samples(|| How::Copy) },
    OpRecord {
        name: "index_fill",
        samples: || {
            let sample = |dim, value, shape: &[usize], list: &[usize], size| {
                let how = How::Fill(Value(Scalar::Float(value)));
                Sample::new(IndexWrite { dim, how }, &[shape, list]).with(1, Index(size))
            };
            vec![
                sample(0, -0.5, &[5, 2], &[3], 5),
                sample(0, 0.0, &[5, 2], &[3], 5),
                sample(-1, 1.5, &[2, 7], &[], 7),
                sample(0, 1.5, &[], &[1], 1),
            ]
        },
    },
];

fn samples(how: fn() -> How) -> Vec<Sample> {
    let sample = |dim, shapes: &[&[usize]; 3], size| {
        Sample::new(IndexWrite { dim, how: how() }, shapes).with(1, Index(size))
    };
    vec![
        sample(0, &[&[3, 2], &[5], &[5, 2]], 3),
        sample(-2, &[&[2, 7, 2], &[5], &[2, 5, 2]], 7),
        sample(0, &[&[6], &[4], &[4]], 6),
        sample(0, &[&[4, 2], &[], &[1, 2]], 4),
        sample(0, &[&[], &[1], &[1]], 1),
    ]
}
