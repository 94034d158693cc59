//! Softmax and its logarithm.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::steps::{RowMax, aligned, cuts, kept, letters, rule, widened};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// `softmax`, or its logarithm. Along a dim that is cut two small reductions: of the largest values, and of
/// the sums of the exponentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Softmax {
    dim: isize,
    log: bool,
}

/// From result and gradient. Along a dim that is cut one small reduction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SoftmaxBackward {
    dim: isize,
    log: bool,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let x = whole_along(self.name(), &operands[0], self.dim)?;
        rule(self.name(), &format!("{x} -> {x}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(if self.log { x[0].log_softmax(self.dim) } else { x[0].softmax(self.dim) })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut_along(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let op = self.name();
        let dim = Meta::of_layout(operands[0].layout()).dim(op, self.dim)?;
        let x = operands[0].settled_as(op)?;
        let largest = call_one(&RowMax { dim }, &[&x])?.settled_as(op)?;
        let sums = call_one(&ExpSum { dim }, &[&x, &largest])?.settled_as(op)?;
        Ok([call_one(&SoftmaxOf { dim, log: self.log }, &[&x, &largest, &sums])?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::RESULTS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let of = SoftmaxBackward { dim: self.dim, log: self.log };
        backward.first(|| call_one(&of, &[&backward.result(0)?, &backward.grad()?]))
    }
}

impl Op for SoftmaxBackward {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax_backward" } else { "softmax_backward" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let x = whole_along(self.name(), &operands[0], self.dim)?;
        rule(self.name(), &format!("{x}, {x} -> {x}"), &[Law::LinearIn(1)])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(match self.log {
            true => x[0].log_softmax_backward(x[1], self.dim),
            false => x[0].softmax_backward(x[1], self.dim),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        operands.iter().any(|layout| is_cut_along(layout, self.dim))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let op = self.name();
        let dim = Meta::of_layout(operands[0].layout()).dim(op, self.dim)?;
        let [y, grad] = aligned(op, [operands[0], operands[1]])?;
        let log = self.log;
        let sums = call_one(&GradSum { dim, log }, &[&y, &grad])?.settled_as(op)?;
        Ok([call_one(&GradOf { dim, log }, &[&y, &grad, &sums])?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (y, of_y, grad) = (backward.operand(0)?, backward.operand(1)?, backward.grad()?);
        let sum = |x: &DTensor| x.sum(&[self.dim], true);
        backward.each(|operand| match (operand, self.log) {
            // Which is symmetric, being the second derivative of a number.
            (1, false) => call_one(self, &[&y, &grad]),
            (0, false) => {
                let first = grad.mul(&of_y.sub(&sum(&of_y.mul(&y)?)?)?)?;
                first.sub(&of_y.mul(&sum(&grad.mul(&y)?)?)?)
            }
            (1, true) => grad.sub(&sum(&grad.mul(&y.exp()?)?)?),
            _ => grad.mul(&y.exp()?)?.mul(&sum(&of_y)?.neg()?),
        })
    }
}

/// The sum of `exp(x - largest)`, in what is computed in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ExpSum {
    dim: usize,
}

impl Op for ExpSum {
    fn name(&self) -> &'static str {
        "row_exp_sum"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, row) = x_and_row(&operands[0], self.dim);
        rule(self.name(), &format!("{x}, {row} -> {row}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(widened(x[0])?.sub(&widened(x[1])?)?.exp()?.sum(&[self.dim as isize], true))
    }
}

/// The softmax from the largest values and the sums of the exponentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SoftmaxOf {
    dim: usize,
    log: bool,
}

impl Op for SoftmaxOf {
    fn name(&self) -> &'static str {
        "softmax_of_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, row) = x_and_row(&operands[0], self.dim);
        rule(self.name(), &format!("{x}, {row}, {row} -> {x}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let shifted = widened(x[0])?.sub(&widened(x[1])?)?;
        let out = if self.log { shifted.sub(&x[2].log()?)? } else { shifted.exp()?.div(x[2])? };
        one(out.to_dtype(x[0].dtype()))
    }
}

/// What all elements of a row need of its gradient.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GradSum {
    dim: usize,
    log: bool,
}

impl Op for GradSum {
    fn name(&self) -> &'static str {
        "softmax_grad_sum"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, row) = x_and_row(&operands[0], self.dim);
        rule(self.name(), &format!("{x}, {x} -> {row}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let grad = widened(x[1])?;
        let terms = if self.log { grad } else { grad.mul(&widened(x[0])?)? };
        one(terms.sum(&[self.dim as isize], true))
    }
}

/// The gradient from result, gradient, and [`GradSum`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GradOf {
    dim: usize,
    log: bool,
}

impl Op for GradOf {
    fn name(&self) -> &'static str {
        "softmax_grad_of_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, row) = x_and_row(&operands[0], self.dim);
        rule(self.name(), &format!("{x}, {x}, {row} -> {x}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let (y, grad) = (widened(x[0])?, widened(x[1])?);
        let out = match self.log {
            true => grad.sub(&y.exp()?.mul(x[2])?)?,
            false => y.mul(&grad.sub(x[2])?)?,
        };
        one(out.to_dtype(x[0].dtype()))
    }
}

/// The letters of a tensor that is never cut along `dim`. A scalar has the dims 0 and -1, as in PyTorch.
fn whole_along(op: &'static str, x: &Meta, dim: isize) -> Result<String> {
    if x.n_dims() == 0 {
        return Ok("...".into());
    }
    let dim = x.dim(op, dim)?;
    Ok(letters(0..x.n_dims(), |one| one == dim))
}

fn is_cut_along(layout: &Layout, dim: isize) -> bool {
    let dim = Meta::of_layout(layout).dim("softmax", dim);
    dim.is_ok_and(|dim| cuts(layout, |one| one == dim))
}

/// The letters of a tensor, and of what there is one of per row.
fn x_and_row(x: &Meta, dim: usize) -> (String, String) {
    (letters(0..x.n_dims(), |_| false), kept(x.n_dims(), |one| one == dim))
}

impl DTensor {
    /// `exp(x) / sum(exp(x))` over `dim`. If the dim is cut, two reductions of one number per row are sent, and
    /// nothing is gathered.
    ///
    /// ```
    /// use dtensor::{CommDebug, DType, DeviceMesh, Placement::Shard, Runner, plan::StepKind, randn};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "tp")?;
    ///     let x = randn(&[3, 8], DType::F32, &mesh, &[Shard(1)])?;
    ///     let (y, comm) = CommDebug::record(|| x.softmax(-1));
    ///     assert_eq!(y?.layout(), x.layout());
    ///     assert_eq!((comm.calls_of(StepKind::AllReduce), comm.calls()), (2, 2));
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn softmax(&self, dim: isize) -> Result<DTensor> {
        call_one(&Softmax { dim, log: false }, &[self])
    }

    /// `x - log(sum(exp(x)))` over `dim`, communicating as [`softmax`](DTensor::softmax).
    pub fn log_softmax(&self, dim: isize) -> Result<DTensor> {
        call_one(&Softmax { dim, log: true }, &[self])
    }

    /// The gradient of [`softmax`](DTensor::softmax) with respect to its input, where `self` is its result and
    /// `grad` the gradient of that.
    pub fn softmax_backward(&self, grad: &DTensor, dim: isize) -> Result<DTensor> {
        call_one(&SoftmaxBackward { dim, log: false }, &[self, grad])
    }

    /// The gradient of [`log_softmax`](DTensor::log_softmax) with respect to its input, where `self` is its
    /// result and `grad` the gradient of that.
    pub fn log_softmax_backward(&self, grad: &DTensor, dim: isize) -> Result<DTensor> {
        call_one(&SoftmaxBackward { dim, log: true }, &[self, grad])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "softmax", samples: || samples(false) },
    OpRecord { name: "log_softmax", samples: || samples(true) },
    OpRecord { name: "softmax_backward", samples: || backward_samples(false) },
    OpRecord { name: "log_softmax_backward", samples: || backward_samples(true) },
];

fn samples(log: bool) -> Vec<Sample> {
    vec![
        Sample::new(Softmax { dim: -1, log }, &[&[4, 5]]),
        Sample::new(Softmax { dim: 1, log }, &[&[2, 3, 2]]),
        Sample::new(Softmax { dim: 0, log }, &[&[3]]),
        Sample::new(Softmax { dim: -1, log }, &[&[]]),
    ]
}

fn backward_samples(log: bool) -> Vec<Sample> {
    vec![
        Sample::new(SoftmaxBackward { dim: -1, log }, &[&[4, 5], &[4, 5]]),
        Sample::new(SoftmaxBackward { dim: 0, log }, &[&[3, 2], &[3, 2]]),
    ]
}
