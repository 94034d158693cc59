//! What the decompositions of this family share.

use std::ops::Range;

use dtensor_layout::{
    DType, Layout, Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

pub(super) use crate::ops::letters::{cuts, letter, rule};
use crate::{
    DTensor, Error, Result,
    autograd::dual,
    op::{Backward, LocalContext, Meta, Number, Op, Outputs, one},
    tensor::make_layout,
};

/// Whether no axis that cuts a dim cuts one of the groups of equal size that it consists of.
pub(super) fn cuts_whole_groups(layout: &Layout, dim: usize, groups: usize) -> bool {
    let cutting = layout.placements().iter().enumerate();
    let cutting = cutting.filter(|(_, placement)| placement.shard_dim() == Some(dim));
    let sizes: Vec<usize> = cutting.map(|(axis, _)| layout.mesh().axis_size(axis)).collect();
    let (n, size) = (sizes.iter().product::<usize>(), layout.global_shape()[dim]);
    let per_group = size / groups.max(1);
    let chunks_fit = size.div_ceil(n) == groups.div_ceil(n) * per_group;
    groups.is_multiple_of(n) || sizes.len() == 1 && chunks_fit
}

/// The same value with these placements, in the name of an operation.
pub(super) fn placed(op: &'static str, x: &DTensor, to: &[Placement]) -> Result<DTensor> {
    if x.placements() == to {
        return Ok(x.clone());
    }
    x.redistribute_as(op, &x.layout().with_placements(to).map_err(Error::layout(op))?)
}

/// Tensors of one shape in one layout: an axis cuts as it cuts the first of them that it cuts.
pub(super) fn aligned<const N: usize>(
    op: &'static str,
    tensors: [&DTensor; N],
) -> Result<[DTensor; N]> {
    let cut = |axis: usize| {
        let mut placements = tensors.iter().map(|tensor| tensor.placements()[axis]);
        placements.find(|one| one.shard_dim().is_some()).unwrap_or(Placement::Replicate)
    };
    let to: Vec<Placement> = (0..tensors[0].placements().len()).map(cut).collect();
    let first = tensors[0].layout();
    // The order in which the first is cut is kept, if it is in the layout that all get.
    let joint = match first.placements() == to {
        true => first.clone(),
        false => first.with_placements(&to).map_err(Error::layout(op))?,
    };
    let mut out = tensors.map(DTensor::clone);
    for tensor in &mut out {
        let layout = joint.with_dtype(tensor.dtype()).map_err(Error::layout(op))?;
        *tensor = tensor.redistribute_as(op, &layout)?;
    }
    Ok(out)
}

/// Letters of dims, of which some are never cut: `a b! c`.
pub(super) fn letters(dims: Range<usize>, is_whole: impl Fn(usize) -> bool) -> String {
    crate::ops::letters::letters(dims, is_whole).join(" ")
}

/// Letters of dims, of which some are reduced and kept with size 1: `a 1 c`.
pub(super) fn kept(n_dims: usize, is_reduced: impl Fn(usize) -> bool) -> String {
    let one = |dim| if is_reduced(dim) { "1".to_string() } else { letter(dim) };
    (0..n_dims).map(one).collect::<Vec<_>>().join(" ")
}

/// One number per spatial dim.
pub(super) type Sizes = SmallVec<[usize; 3]>;

/// A setting that is one number for all spatial dims, or one per dim.
pub(super) fn each(values: &[usize], n: usize) -> Sizes {
    match values {
        [one] => SmallVec::from_elem(*one, n),
        // Of a wrong length: for the kernel to say.
        values => values.into(),
    }
}

/// The gradient of the result of an operation on an input and parameters. Where it is pending and both need gradients,
/// it is reduced: once, instead of what becomes of it in each.
pub(super) fn grad_for_all(op: &'static str, backward: &Backward<'_>) -> Result<DTensor> {
    let grad = backward.grad()?;
    match backward.needs(0) && (1..backward.n_operands()).any(|operand| backward.needs(operand)) {
        true => grad.settled_as(op),
        false => Ok(grad),
    }
}

/// A tensor in the place of an operand that was not kept, for an operation that looks at its layout alone.
pub(super) fn stand_in(backward: &Backward<'_>, operand: usize) -> Result<DTensor> {
    let layout = dual(backward.layout(operand))?;
    make_layout("backward", &layout, backward.mesh(operand), |part| {
        // One element for all: it takes no memory.
        Ok(Tensor::zeros(&[], layout.dtype())?.expand(&part.shape)?)
    })
}

/// What kernels of this dtype compute in.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The tensor in what is computed in.
pub(super) fn widened(x: &Tensor) -> Result<Tensor, LocalError> {
    x.to_dtype(wide(x.dtype()))
}

/// One value in all places of a shape, where `like` has values.
pub(super) fn filled(
    like: &Tensor,
    shape: &[usize],
    dtype: DType,
    value: f64,
) -> Result<Tensor, LocalError> {
    match like.is_meta() {
        true => Tensor::meta(shape, dtype),
        false => Tensor::empty(shape, dtype)?.full_like(value),
    }
}

/// The largest value along a dim, which is kept: a step of a softmax along a dim that is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowMax {
    pub(super) dim: usize,
}

impl Op for RowMax {
    fn name(&self) -> &'static str {
        "row_max"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let max = dtensor_layout::ReduceOp::Max;
        Rule::reduce(operands[0].n_dims(), &[self.dim], true, max).map_err(Error::rule(self.name()))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let mut shape = x[0].shape().to_vec();
        if shape[self.dim] > 0 {
            return one(x[0].amax(&[self.dim as isize], true));
        }
        // What the other ranks have is larger.
        shape[self.dim] = 1;
        one(filled(x[0], &shape, x[0].dtype(), f64::NEG_INFINITY))
    }
}

/// Over a number, in another dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scaled {
    pub(super) divisor: Number,
    pub(super) dtype: DType,
}

impl Op for Scaled {
    fn name(&self) -> &'static str {
        "scaled"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("... -> ...", &[Law::Linear]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(match self.divisor.0 == 1.0 {
            true => x[0].to_dtype(self.dtype),
            false => x[0].div_scalar(self.divisor.0)?.to_dtype(self.dtype),
        })
    }
}
