//! What the losses of classes share.

use dtensor_layout::{
    DType,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    classes::Picks,
    cross_entropy::Reduction,
    steps::{letter, letters, rule, wide, widened},
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, Outputs, one},
};

/// The dim of the classes, of `[N, C, ...]` or `[C]`.
pub(super) fn class_dim(n_dims: usize) -> usize {
    usize::from(n_dims > 1)
}

/// The letters of the samples of `[N, C, ...]` or `[C]`.
pub(super) fn sample_letters(n_dims: usize, is_whole: impl Fn(usize) -> bool) -> String {
    let class = class_dim(n_dims);
    let before = letters(0..class, &is_whole);
    let after = letters(class + 1..n_dims, &is_whole);
    format!("{before} {after}").trim().to_string()
}

/// The shape of the samples of `[N, C, ...]` or `[C]`.
pub(super) fn sample_shape(shape: &[usize]) -> Vec<usize> {
    let class = class_dim(shape.len());
    [&shape[..class], &shape[class + 1..]].concat()
}

/// The sum of the weights of the classes of all targets, of targets and weights: what a mean divides by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WeightTotal {
    /// For which operation.
    of: &'static str,
    ignore_index: i64,
    /// The dim of the classes, and their number.
    classes: (usize, usize),
}

impl WeightTotal {
    /// Of targets and weights, on all ranks.
    pub(super) fn of(
        op: &'static str,
        (targets, weight): (&DTensor, Option<&DTensor>),
        ignore_index: i64,
        classes: (usize, usize),
    ) -> Result<DTensor> {
        let operands: Vec<&DTensor> = [targets].into_iter().chain(weight).collect();
        call_one(&WeightTotal { of: op, ignore_index, classes }, &operands)?.settled_as(op)
    }

    /// The gradient of a mean over what that divided by, in what is computed in.
    pub(super) fn divide(grad: &DTensor, total: &DTensor) -> Result<DTensor> {
        call_one(&Divided, &[grad, total])
    }

    /// In `f64`, of the targets that are here.
    pub(super) fn eval(
        op: &'static str,
        targets: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: i64,
        (class, n_classes): (usize, usize),
    ) -> Result<Tensor, LocalError> {
        let place = (class, 0..n_classes, n_classes);
        let targets = Picks::new(op, targets, Some(ignore_index), place)?;
        let weights = match weight {
            Some(weight) => targets.pick_from(&weight.to_dtype(DType::F64)?)?,
            None => targets.is_used.to_dtype(DType::F64)?,
        };
        weights.sum(&[], false)
    }
}

impl Op for WeightTotal {
    fn name(&self) -> &'static str {
        "target_weight_total"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let targets = letters(0..n_dims, |_| false);
        let weight = operands[1..].iter().map(|_| format!(", {}!", letter(n_dims)));
        rule(self.name(), &format!("{targets}{} -> ", weight.collect::<String>()), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let WeightTotal { of, ignore_index, classes } = *self;
        one(WeightTotal::eval(of, x[0], x.get(1).copied(), ignore_index, classes))
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 0
    }
}

/// The gradient of the weights of the classes, from targets and what each of them adds to the gradient of its class.
pub(super) fn per_class(targets: &Targets, of_each: &DTensor, n_classes: usize) -> Result<DTensor> {
    let of_each = of_each.masked_fill(&targets.is_ignored, 0)?;
    of_each.unsqueeze(-1)?.embedding_backward(&targets.classes, n_classes)?.squeeze(-1)
}

/// Targets, of which some count for nothing.
pub(super) struct Targets {
    /// The first class where they are ignored.
    classes: DTensor,
    pub(super) is_ignored: DTensor,
}

impl Targets {
    pub(super) fn new(targets: &DTensor, ignore_index: i64) -> Result<Targets> {
        let is_ignored = targets.eq(ignore_index)?;
        Ok(Targets { classes: targets.masked_fill(&is_ignored, 0)?, is_ignored })
    }

    /// What a tensor that has a dim of classes has at the targets.
    pub(super) fn pick(&self, x: &DTensor) -> Result<DTensor> {
        let class = class_dim(x.n_dims()).cast_signed();
        x.gather(class, &self.classes.unsqueeze(class)?)?.squeeze(class)
    }
}

/// A gradient over a total, in what the former is computed in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Divided;

impl Op for Divided {
    fn name(&self) -> &'static str {
        "mean_grad"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("..., ... -> ...", &[Law::LinearIn(0)]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(widened(x[0])?.div(&x[1].to_dtype(wide(x[0].dtype()))?))
    }
}

/// A loss in its dtype, from the sum of the losses and that of the weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LossOfTotals {
    reduction: Reduction,
    dtype: DType,
}

impl LossOfTotals {
    /// Sums may stay pending; a mean needs them reduced, two numbers together.
    pub(super) fn of(
        op: &'static str,
        totals: &DTensor,
        reduction: Reduction,
        dtype: DType,
    ) -> Result<DTensor> {
        let totals = match reduction {
            Reduction::Mean => totals.settled_as(op)?,
            _ => totals.clone(),
        };
        call_one(&LossOfTotals { reduction, dtype }, &[&totals])
    }
}

impl Op for LossOfTotals {
    fn name(&self) -> &'static str {
        "loss_of_totals"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        let is_linear = self.reduction != Reduction::Mean;
        Ok(Rule::of("a! -> ", if is_linear { &[Law::Linear] } else { &[] }))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let sum = x[0].select(0, 0)?;
        let loss = match self.reduction {
            Reduction::Mean => sum.div(&x[0].select(0, 1)?)?,
            _ => sum,
        };
        one(loss.to_dtype(self.dtype))
    }
}
