//! Which dims are reduced, and the letters of rules that follow from that.

use dtensor_layout::{Layout, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Tensor, normal_dim};
use smallvec::SmallVec;

use crate::{
    DTensor, Result,
    op::{LocalContext, Meta},
    ops::letters::{cuts, letter, rule},
};

/// Which dims a reduction is over: all if the list is empty, as in the local kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct Over {
    pub(in crate::ops) dims: SmallVec<[isize; 4]>,
    pub(in crate::ops) keep_dims: bool,
}

/// The dims of an operand and of the result as a rule writes them.
pub(super) struct Letters {
    pub(super) operand: String,
    pub(super) result: String,
}

impl Over {
    pub(in crate::ops) fn new(dims: &[isize], keep_dims: bool) -> Over {
        Over { dims: dims.into(), keep_dims }
    }

    /// The dims of a tensor of this shape, counted from the first. A tensor without dims has none, whatever
    /// the list says: so the local kernels see it.
    pub(super) fn dims_of(
        &self,
        op: &'static str,
        shape: &[usize],
    ) -> Result<Vec<usize>, LocalError> {
        match (shape.is_empty(), self.dims.is_empty()) {
            (true, _) => Ok(Vec::new()),
            (_, true) => Ok((0..shape.len()).collect()),
            _ => normal_dims(op, &self.dims, shape),
        }
    }

    /// A result of the reduction, repeated over the dims that were reduced: `shape` is that of the operand.
    pub(in crate::ops) fn spread(
        &self,
        op: &'static str,
        result: &DTensor,
        shape: &[usize],
    ) -> Result<DTensor> {
        let kept = self.kept(op, result, shape)?;
        if kept.shape() == shape { Ok(kept) } else { kept.expand(shape) }
    }

    /// A result of the reduction, with the dims that were reduced as dims of size 1 whether they were kept or not: so
    /// that it broadcasts against the operand, whose shape is `shape`.
    pub(in crate::ops) fn kept(
        &self,
        op: &'static str,
        result: &DTensor,
        shape: &[usize],
    ) -> Result<DTensor> {
        let mut wide = result.clone();
        if !self.keep_dims {
            let mut dims = self.dims_of(op, shape)?;
            dims.sort_unstable();
            for dim in dims {
                wide = wide.unsqueeze(dim.cast_signed())?;
            }
        }
        Ok(wide)
    }

    /// How many elements of a tensor of this shape become one.
    pub(super) fn count(&self, op: &'static str, shape: &[usize]) -> Result<usize> {
        Ok(self.dims_of(op, shape)?.iter().map(|dim| shape[*dim]).product())
    }

    /// The rule of a reduction whose parts are reduced by `by`: with letters alone, without laws.
    pub(super) fn rule(&self, op: &'static str, operand: &Meta, by: ReduceOp) -> Result<Rule> {
        let letters = self.letters(op, operand, "")?;
        rule(op, &format!("{} -> {} @{by}", letters.operand, letters.result), &[])
    }

    /// The rule of a reduction that needs its dims whole.
    pub(super) fn rule_of_whole_dims(&self, op: &'static str, operand: &Meta) -> Result<Rule> {
        let letters = self.letters(op, operand, "!")?;
        rule(op, &format!("{} -> {}", letters.operand, letters.result), &[])
    }

    /// One letter per dim; the reduced ones are marked.
    pub(super) fn letters(&self, op: &'static str, operand: &Meta, mark: &str) -> Result<Letters> {
        let dims = self.dims_of(op, &operand.shape)?;
        let (mut all, mut kept) = (Vec::new(), Vec::new());
        for dim in 0..operand.n_dims() {
            match (dims.contains(&dim), self.keep_dims) {
                (false, _) => kept.push(letter(dim)),
                (true, true) => kept.push("1".into()),
                (true, false) => {}
            }
            all.push(letter(dim) + if dims.contains(&dim) { mark } else { "" });
        }
        Ok(Letters { operand: all.join(" "), result: kept.join(" ") })
    }

    /// Whether a reduced dim is cut, so that no rank has all that it needs.
    pub(super) fn is_cut(&self, op: &'static str, layout: &Layout) -> bool {
        self.dims_of(op, layout.global_shape())
            .is_ok_and(|dims| cuts(layout, |dim| dims.contains(&dim)))
    }

    /// How many elements become one: those that the rank holds, and in all.
    pub(super) fn counts(
        &self,
        op: &'static str,
        x: &Tensor,
        context: &LocalContext,
    ) -> Result<(usize, usize), LocalError> {
        let dims = self.dims_of(op, x.shape())?;
        let held = dims.iter().map(|dim| x.shape()[*dim]).product();
        let all = dims.iter().map(|dim| context.global_size(0, *dim, x.shape()[*dim])).product();
        Ok((held, all))
    }

    /// A result of the reduction of `of`, with the reduced dims as dims of size 1 whether they are kept or
    /// not: so that it broadcasts against the operand.
    pub(super) fn beside(
        &self,
        op: &'static str,
        reduced: &Tensor,
        of: &Tensor,
    ) -> Result<Tensor, LocalError> {
        let mut shape = of.shape().to_vec();
        self.dims_of(op, of.shape())?.iter().for_each(|dim| shape[*dim] = 1);
        reduced.reshape(&shape)
    }

    /// A tensor of the shape that the reduction of `x` has, of the same dtype, with one value.
    pub(super) fn filled(
        &self,
        x: &Tensor,
        value: impl Into<dtensor_local::Scalar>,
    ) -> Result<Tensor, LocalError> {
        // Of nothing, too, the sum has that shape.
        x.sum(&self.dims, self.keep_dims)?.to_dtype(x.dtype())?.full_like(value)
    }
}

/// Dims that may count from the end, counted from the first.
pub(in crate::ops) fn normal_dims(
    op: &'static str,
    dims: &[isize],
    shape: &[usize],
) -> Result<Vec<usize>, LocalError> {
    dims.iter().map(|dim| normal_dim(op, *dim, shape)).collect()
}
