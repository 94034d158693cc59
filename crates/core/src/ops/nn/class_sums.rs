//! The steps of a cross entropy whose classes or samples are on several ranks.

use dtensor_layout::{DType, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use super::{
    classes::Picks,
    cross_entropy::{Reduction, Settings},
    loss_steps::{WeightTotal, class_dim, sample_letters},
    steps::{kept, letter, letters, rule, widened},
};
use crate::{
    Result,
    op::{LocalContext, Meta, Op, Outputs, one},
};

/// From logits, largest logits, targets and weights, for the classes that are held: the sums of the exponentials and
/// the logits of the targets, less the largest; with smoothing also the weighted sums of the logits. Stacked in a
/// new first dim, so that they are reduced together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassSums(pub(super) Settings);

impl Op for ClassSums {
    fn name(&self) -> &'static str {
        "class_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, class) = (operands[0].n_dims(), class_dim(operands[0].n_dims()));
        let (logits, rows) = (letters(0..n_dims, |_| false), kept(n_dims, |dim| dim == class));
        let samples = sample_letters(n_dims, |_| false);
        let weight = if self.0.weight { format!(", {}", letter(class)) } else { String::new() };
        let stacked = letter(n_dims);
        let text = format!("{logits}, {rows}, {samples}{weight} -> {stacked}! {samples}");
        rule(self.name(), &text, &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let class = class_dim(x[0].n_dims());
        let n_classes = context.global_size(0, class, x[0].shape()[class]);
        let held = context.operand_range(0, class, n_classes);
        let ignored = Some(self.0.ignore_index);
        let targets = Picks::new("cross_entropy", x[2], ignored, (class, held, n_classes))?;
        let shifted = widened(x[0])?.sub(&widened(x[1])?)?;
        let sums = shifted.exp()?.sum(&[class as isize], false)?;
        let picked = targets.pick(&shifted, class)?;
        if self.0.label_smoothing.0 == 0.0 {
            return one(Tensor::stack(&[&sums, &picked], 0));
        }
        let weighted = match self.0.weight_of(x) {
            Some(weight) => shifted.mul(&along(weight, class, x[0].n_dims())?)?,
            None => shifted,
        };
        let spread = weighted.sum(&[class as isize], false)?;
        one(Tensor::stack(&[&sums, &picked, &spread], 0))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 2
    }
}

/// The losses from [`ClassSums`], largest logits, targets and weights, or, if they are reduced, their sum and that of
/// the weights; and the logarithms of the sums. The targets are those that [`ClassSums`] has not refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LossOfSums {
    pub(super) of: Settings,
    pub(super) n_classes: usize,
    pub(super) dtype: DType,
}

impl Op for LossOfSums {
    fn name(&self) -> &'static str {
        "loss_of_class_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[1].n_dims();
        let class = class_dim(n_dims);
        let rows = kept(n_dims, |dim| dim == class);
        let samples = sample_letters(n_dims, |_| false);
        let weight = if self.of.weight { format!(", {}!", letter(class)) } else { String::new() };
        let (stacked, totals) = (letter(n_dims), letter(n_dims + 1));
        let loss = match self.of.reduction {
            Reduction::None => samples.clone(),
            _ => format!("{totals}!"),
        };
        let text = format!("{stacked}! {samples}, {rows}, {samples}{weight} -> {loss}, {samples}");
        rule(self.name(), &text, &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let (parts, n_classes) = (x[0], self.n_classes);
        let class = class_dim(x[1].n_dims());
        let ignored = Some(self.of.ignore_index);
        let place = (class, 0..n_classes, n_classes);
        let targets = Picks::new("cross_entropy", x[2], ignored, place)?;
        let log = parts.select(0, 0)?.log()?;
        let mut losses = log.sub(&parts.select(0, 1)?)?;
        let weight = self.of.weight_of(x).map(widened).transpose()?;
        let weights = match &weight {
            Some(weight) => targets.pick_from(weight)?,
            None => targets.is_used.to_dtype(losses.dtype())?,
        };
        losses = losses.mul(&weights)?;
        let smoothing = self.of.label_smoothing.0;
        if smoothing > 0.0 {
            let all = match &weight {
                Some(weight) => log.mul(&weight.sum(&[], false)?)?,
                None => log.mul_scalar(n_classes as f64)?,
            };
            let spread = all.sub(&parts.select(0, 2)?)?.mul_scalar(smoothing / n_classes as f64)?;
            losses = losses.mul_scalar(1.0 - smoothing)?.add(&spread)?;
        }
        losses = losses.masked_fill(&targets.is_used.logical_not()?, 0)?;
        let log_sums = widened(&x[1].squeeze(class as isize)?)?.add(&log)?;
        let loss = match self.of.reduction {
            Reduction::None => losses.to_dtype(self.dtype)?,
            _ => Tensor::stack(&[&losses.sum(&[], false)?, &weights.sum(&[], false)?], 0)?,
        };
        Ok([loss, log_sums].into_iter().collect())
    }
}

/// The sum of the losses and that of the weights, and the logarithms of the sums, where the classes are whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Totals(pub(super) Settings);

impl Op for Totals {
    fn name(&self) -> &'static str {
        "cross_entropy_totals"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, class) = (operands[0].n_dims(), class_dim(operands[0].n_dims()));
        let logits = letters(0..n_dims, |dim| dim == class);
        let samples = sample_letters(n_dims, |_| false);
        let weight = if self.0.weight { format!(", {}!", letter(class)) } else { String::new() };
        let totals = letter(n_dims);
        rule(self.name(), &format!("{logits}, {samples}{weight} -> {totals}!, {samples}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        // Not rounded before all ranks have added theirs.
        let weight = self.0.weight_of(x).map(widened).transpose()?;
        let settings = self.0.local(weight.as_ref(), Reduction::Sum);
        let (sum, log_sums) = widened(x[0])?.cross_entropy(x[1], &settings)?;
        let class = class_dim(x[0].n_dims());
        let (ignored, classes) = (self.0.ignore_index, (class, x[0].shape()[class]));
        let total = WeightTotal::eval("cross_entropy", x[1], weight.as_ref(), ignored, classes)?;
        Ok([Tensor::stack(&[&sum, &total.to_dtype(sum.dtype())?], 0)?, log_sums]
            .into_iter()
            .collect())
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

/// A list of one value per class, to stand beside logits.
pub(super) fn along(list: &Tensor, class: usize, n_dims: usize) -> Result<Tensor, LocalError> {
    let mut shape: SmallVec<[usize; 4]> = SmallVec::from_elem(1, n_dims);
    shape[class] = list.numel();
    widened(list)?.reshape(&shape)
}
