//! The loss of log-probabilities and class indices.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, nn};

use super::{
    classes::Picks,
    cross_entropy::{Reduction, samples},
    loss_steps::{
        LossOfTotals, Targets, WeightTotal, class_dim, per_class, sample_letters, sample_shape,
    },
    steps::{cuts, letter, letters, rule, stand_in, widened},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, one},
};

/// The settings of [`DTensor::nll_loss`], those of `torch.nn.functional.nll_loss`.
#[derive(Clone, Copy, Debug)]
pub struct NllLoss<'a> {
    /// One weight per class.
    pub weight: Option<&'a DTensor>,
    /// Samples with this target count for nothing.
    pub ignore_index: i64,
    /// What becomes of the losses of the samples.
    pub reduction: Reduction,
}

impl Default for NllLoss<'_> {
    fn default() -> Self {
        NllLoss { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

/// The settings as attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Settings {
    ignore_index: i64,
    reduction: Reduction,
    /// Whether the last operand has the weights of the classes.
    weight: bool,
}

impl Settings {
    fn new(settings: &NllLoss) -> Settings {
        let NllLoss { weight, ignore_index, reduction } = settings;
        Settings { ignore_index: *ignore_index, reduction: *reduction, weight: weight.is_some() }
    }

    fn local<'a>(&self, weight: Option<&'a Tensor>) -> nn::NllLoss<'a> {
        nn::NllLoss { weight, ignore_index: self.ignore_index, reduction: self.reduction }
    }

    fn weight_of<'a, T>(&self, operands: &[&'a T]) -> Option<&'a T> {
        operands.last().copied().filter(|_| self.weight)
    }

    /// Targets as the rank sees them, and whether it has all classes.
    fn picks(
        &self,
        op: &'static str,
        x: &[&Tensor],
        context: &LocalContext,
    ) -> Result<Option<Picks>, LocalError> {
        let class = class_dim(x[0].n_dims());
        let Some(here) = x[0].shape().get(class).copied() else { return Ok(None) };
        let n_classes = context.global_size(0, class, here);
        let held = context.operand_range(0, class, n_classes);
        if held == (0..n_classes) {
            return Ok(None);
        }
        Picks::new(op, x[1], Some(self.ignore_index), (class, held, n_classes)).map(Some)
    }

    /// The gradient of the weights, from log-probabilities with their loss, targets, its gradient, and the weights.
    fn weight_gradient(
        &self,
        (x, loss): (&DTensor, &DTensor),
        targets: &DTensor,
        grad: &DTensor,
        weight: &DTensor,
    ) -> Result<DTensor> {
        let n_classes = weight.numel();
        let of = Targets::new(targets, self.ignore_index)?;
        let mut of_each = of.pick(x)?.neg()?;
        let mut grad = grad.clone();
        if self.reduction == Reduction::Mean {
            // The mean divides by the sum of the weights.
            of_each = of_each.sub(loss)?;
            let classes = (class_dim(x.n_dims()), n_classes);
            let with = (targets, Some(weight));
            let total = WeightTotal::of("nll_loss", with, self.ignore_index, classes)?;
            grad = WeightTotal::divide(&grad, &total)?;
        }
        per_class(&of, &of_each.mul(&grad)?, n_classes)
    }

    /// The letters of the weights, which lie as the classes do.
    fn weight_letters(&self, n_dims: usize, is_whole: bool) -> String {
        let letter = letter(class_dim(n_dims));
        match (self.weight, is_whole) {
            (false, _) => String::new(),
            (true, false) => format!(", {letter}"),
            (true, true) => format!(", {letter}!"),
        }
    }
}

/// The loss of log-probabilities, targets and weights. Where classes are cut, every rank has the losses of the targets
/// that it holds: a pending sum. A mean over what is cut is one reduction of two numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Nll(Settings);

impl Op for Nll {
    fn name(&self) -> &'static str {
        "nll_loss"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let is_mean = self.0.reduction == Reduction::Mean;
        let (x, samples) = (letters(0..n_dims, |_| is_mean), sample_letters(n_dims, |_| is_mean));
        let weight = self.0.weight_letters(n_dims, is_mean);
        let loss = if self.0.reduction == Reduction::None { &samples } else { "" };
        let laws: &[Law] = match self.0.weight && !is_mean {
            true => &[Law::LinearIn(0), Law::LinearIn(2)],
            false => &[Law::LinearIn(0)],
        };
        rule(self.name(), &format!("{x}, {samples}{weight} -> {loss}"), laws)
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.0.weight_of(x);
        let Some(targets) = self.0.picks(self.name(), x, context)? else {
            return one(x[0].nll_loss(x[1], &self.0.local(weight)));
        };
        let [losses, _] = losses(&targets, x[0], weight)?;
        let loss = match self.0.reduction {
            Reduction::None => losses,
            _ => losses.sum(&[], false)?,
        };
        one(loss.to_dtype(x[0].dtype()))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.0.reduction == Reduction::Mean
            && operands[..2].iter().any(|layout| cuts(layout, |_| true))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let totals = call_one(&Totals(self.0.clone()), operands)?;
        let dtype = operands[0].dtype();
        Ok([LossOfTotals::of(self.name(), &totals, Reduction::Mean, dtype)?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        // Only the gradient of the weights needs the values.
        Some(match self.0.weight {
            true => Keep::OPERANDS.and(Keep::RESULTS),
            false => Keep::operands(&[1]),
        })
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (targets, grad) = (backward.operand(1)?, backward.grad()?);
        let weight = self.0.weight.then(|| backward.operand(2)).transpose()?;
        let of = NllBackward { of: self.0.clone(), is_divided: false };
        backward.each(|operand| match (operand, &weight) {
            (2, Some(weight)) => {
                let x = (&backward.operand(0)?, &backward.result(0)?);
                self.0.weight_gradient(x, &targets, &grad, weight)
            }
            _ => {
                let x = stand_in(backward, 0)?;
                let operands: Vec<&DTensor> =
                    [&x, &targets, &grad].into_iter().chain(&weight).collect();
                call_one(&of, &operands)
            }
        })
    }
}

/// The losses of the targets that are held and the weights of these, in what is computed in.
fn losses(targets: &Picks, x: &Tensor, weight: Option<&Tensor>) -> Result<[Tensor; 2], LocalError> {
    let picked = targets.pick(&widened(x)?, class_dim(x.n_dims()))?.neg()?;
    let weights = match weight {
        Some(weight) => targets.pick_from(&widened(weight)?)?,
        None => targets.is_held.to_dtype(picked.dtype())?,
    };
    // Not zero times an infinity, for a target that is elsewhere.
    let losses = picked.mul(&weights)?.masked_fill(&targets.is_held.logical_not()?, 0)?;
    Ok([losses, weights])
}

/// The sum of the losses, and that of the weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Totals(Settings);

impl Op for Totals {
    fn name(&self) -> &'static str {
        "nll_loss_totals"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let (x, samples) = (letters(0..n_dims, |_| false), sample_letters(n_dims, |_| false));
        let weight = self.0.weight_letters(n_dims, false);
        let totals = letter(n_dims);
        rule(self.name(), &format!("{x}, {samples}{weight} -> {totals}!"), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let class = class_dim(x[0].n_dims());
        let n_classes = context.global_size(0, class, x[0].shape()[class]);
        let held = context.operand_range(0, class, n_classes);
        let ignored = Some(self.0.ignore_index);
        let targets = Picks::new("nll_loss", x[1], ignored, (class, held, n_classes))?;
        let [losses, weights] = losses(&targets, x[0], self.0.weight_of(x))?;
        one(Tensor::stack(&[&losses.sum(&[], false)?, &weights.sum(&[], false)?], 0))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

/// The gradient of the log-probabilities, from these (of which only the shape matters), targets, gradient and weights.
/// A mean over samples that are cut is one reduction of one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NllBackward {
    of: Settings,
    /// Whether the gradient is divided already by what the mean divides by, and in what is computed in.
    is_divided: bool,
}

impl Op for NllBackward {
    fn name(&self) -> &'static str {
        "nll_loss_backward"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let is_mean = self.of.reduction == Reduction::Mean && !self.is_divided;
        let (x, samples) = (letters(0..n_dims, |_| is_mean), sample_letters(n_dims, |_| is_mean));
        let grad = if self.of.reduction == Reduction::None { &samples } else { "" };
        let weight = self.of.weight_letters(n_dims, is_mean);
        let text = format!("{x}, {samples}, {grad}{weight} -> {x}");
        rule(self.name(), &text, &[Law::LinearIn(2)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (weight, grad) = (self.of.weight_of(x), x[2]);
        let picks = self.of.picks(self.name(), x, context)?;
        if let (None, false) = (&picks, self.is_divided) {
            return one(x[0].nll_loss_backward(x[1], grad, &self.of.local(weight)));
        }
        let class = class_dim(x[0].n_dims());
        let here = x[0].shape()[class];
        let targets = match picks {
            Some(picks) => picks,
            None => {
                let ignored = Some(self.of.ignore_index);
                Picks::new(self.name(), x[1], ignored, (class, 0..here, here))?
            }
        };
        let mut grads = widened(grad)?.expand(x[1].shape())?.neg()?;
        if let Some(weight) = weight {
            grads = grads.mul(&targets.pick_from(&widened(weight)?)?)?;
        }
        let at_target = targets.one_hot(class, here)?;
        let spread = grads.unsqueeze(class as isize)?.expand(x[0].shape())?;
        one(spread.masked_fill(&at_target.logical_not()?, 0)?.to_dtype(x[0].dtype()))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        // What is divided has been looked at, for the sum that divides it.
        operand == 1 && !self.is_divided
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.of.reduction == Reduction::Mean
            && !self.is_divided
            && operands[..2].iter().any(|layout| cuts(layout, |_| true))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let class = class_dim(operands[0].n_dims());
        let classes = (class, operands[0].shape()[class]);
        let with = (operands[1], self.of.weight_of(operands));
        let total = WeightTotal::of(self.name(), with, self.of.ignore_index, classes)?;
        let grad = WeightTotal::divide(operands[2], &total)?;
        let mut operands: Vec<&DTensor> = operands.to_vec();
        operands[2] = &grad;
        call(&NllBackward { of: self.of.clone(), is_divided: true }, &operands)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1, 2, 3]))
    }

    /// The transpose of the loss, which is linear in the log-probabilities.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (targets, grad) = (backward.operand(1)?, backward.grad()?);
        let weight = self.of.weight.then(|| backward.operand(3)).transpose()?;
        let loss = || {
            let operands: Vec<&DTensor> = [&grad, &targets].into_iter().chain(&weight).collect();
            call_one(&Nll(self.of.clone()), &operands)
        };
        backward.each_or_none(|operand| match (operand, &weight) {
            (0, _) => Ok(None),
            (3, Some(weight)) => {
                let of_loss = backward.operand(2)?;
                self.of.weight_gradient((&grad, &loss()?), &targets, &of_loss, weight).map(Some)
            }
            _ => loss().map(Some),
        })
    }
}

impl DTensor {
    /// The loss `-weight[target] x[target]` of log-probabilities `[N, C, ...]` (or `[C]`) for targets `[N, ...]` (or
    /// one): class indices, `i64` or `i32`. Whatever is cut, at most two numbers are reduced, and one that says whether all
    /// targets are classes. As `torch.nn.functional.nll_loss`.
    pub fn nll_loss(&self, targets: &DTensor, settings: &NllLoss) -> Result<DTensor> {
        let operands: Vec<&DTensor> = [self, targets].into_iter().chain(settings.weight).collect();
        call_one(&Nll(Settings::new(settings)), &operands)
    }

    /// The gradient of [`nll_loss`](DTensor::nll_loss) with respect to the log-probabilities (`self`, of which only the
    /// shape matters), given that of its result.
    pub fn nll_loss_backward(
        &self,
        targets: &DTensor,
        grad: &DTensor,
        settings: &NllLoss,
    ) -> Result<DTensor> {
        let op = NllBackward { of: Settings::new(settings), is_divided: false };
        let operands: Vec<&DTensor> =
            [self, targets, grad].into_iter().chain(settings.weight).collect();
        call_one(&op, &operands)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "nll_loss",
        samples: || {
            let cases = [
                (&[4, 5][..], Reduction::Sum, true),
                (&[4, 5], Reduction::Mean, true),
                (&[3, 4, 2], Reduction::None, false),
                (&[5], Reduction::Mean, false),
            ];
            let sample = |(shape, reduction, weight): (&[usize], Reduction, bool)| {
                samples(Nll(Settings { ignore_index: 2, reduction, weight }), shape, &[], weight)
            };
            cases.map(sample).into()
        },
    },
    OpRecord {
        name: "nll_loss_backward",
        samples: || {
            let cases = [
                (&[4, 5][..], Reduction::Mean, true),
                (&[3, 4, 2], Reduction::None, true),
                (&[3], Reduction::Sum, false),
            ];
            let sample = |(shape, reduction, weight): (&[usize], Reduction, bool)| {
                let of = Settings { ignore_index: 2, reduction, weight };
                let grad = match reduction {
                    Reduction::None => sample_shape(shape),
                    _ => Vec::new(),
                };
                samples(NllBackward { of, is_divided: false }, shape, &[&grad], weight)
            };
            cases.map(sample).into()
        },
    },
];
