//! Cross entropy of logits and class indices.

use dtensor_layout::{Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor, nn};

pub use dtensor_local::nn::Reduction;

use super::{
    class_sums::{ClassSums, LossOfSums, Totals},
    cross_entropy_backward::CrossEntropyBackward,
    loss_steps::{
        LossOfTotals, Targets, WeightTotal, class_dim, per_class, sample_letters, sample_shape,
    },
    steps::{RowMax, cuts, letter, letters, placed, rule, wide},
};
use crate::{
    DTensor, Result,
    autograd::plus,
    dispatch::{call_one, call_three, call_two},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues, two,
    },
};

/// The settings of [`DTensor::cross_entropy`], those of `torch.nn.functional.cross_entropy`.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// One weight per class.
    pub weight: Option<&'a DTensor>,
    /// Samples with this target count for nothing.
    pub ignore_index: i64,
    /// The part of the target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What becomes of the losses of the samples.
    pub reduction: Reduction,
}

impl Default for CrossEntropy<'_> {
    fn default() -> Self {
        let reduction = Reduction::Mean;
        CrossEntropy { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction }
    }
}

/// The settings as attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Settings {
    pub(super) ignore_index: i64,
    pub(super) label_smoothing: Number,
    pub(super) reduction: Reduction,
    /// Whether the last operand has the weights of the classes.
    pub(super) weight: bool,
}

impl Settings {
    pub(super) fn new(settings: &CrossEntropy) -> Settings {
        Settings {
            ignore_index: settings.ignore_index,
            label_smoothing: Number(settings.label_smoothing),
            reduction: settings.reduction,
            weight: settings.weight.is_some(),
        }
    }

    pub(super) fn local<'a>(
        &self,
        weight: Option<&'a Tensor>,
        reduction: Reduction,
    ) -> nn::CrossEntropy<'a> {
        nn::CrossEntropy {
            weight,
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing.0,
            reduction,
        }
    }

    /// The weights, if there are any.
    pub(super) fn weight_of<'a, T>(&self, operands: &[&'a T]) -> Option<&'a T> {
        operands.last().copied().filter(|_| self.weight)
    }

    /// The gradient of the loss over what a mean divided by.
    fn divided(&self, grad: DTensor, backward: &Backward<'_>) -> Result<DTensor> {
        match self.reduction {
            Reduction::Mean => WeightTotal::divide(&grad, &backward.result(2)?),
            _ => Ok(grad),
        }
    }

    /// The gradient of the weights, from logits, targets, weights, and logarithms of the sums.
    fn weight_gradient(
        &self,
        (logits, targets, weight): (&DTensor, &DTensor, &DTensor),
        log_sums: &DTensor,
        backward: &Backward<'_>,
    ) -> Result<DTensor> {
        let (n_classes, smoothing) = (weight.numel(), self.label_smoothing.0);
        let of = Targets::new(targets, self.ignore_index)?;
        let mut of_each = log_sums.sub(&of.pick(logits)?)?.mul(1.0 - smoothing)?;
        let grad = self.divided(backward.grad()?, backward)?;
        if self.reduction == Reduction::Mean {
            // The mean divides by the sum of the weights.
            of_each = of_each.sub(&backward.result(0)?)?;
        }
        of_each = of_each.mul(&grad)?;
        if backward.has_grad(2) {
            of_each = of_each.add(&backward.grad_of(2)?)?;
        }
        let sharp = per_class(&of, &of_each, n_classes)?;
        if smoothing == 0.0 {
            return Ok(sharp);
        }
        let class = class_dim(logits.n_dims());
        let beside = |x: &DTensor| x.unsqueeze(class.cast_signed());
        let of_each = grad.expand(targets.shape())?.masked_fill(&of.is_ignored, 0)?;
        let even = beside(log_sums)?.sub(logits)?.mul(&beside(&of_each)?)?;
        let others: Vec<isize> =
            (0..logits.n_dims()).filter(|dim| *dim != class).map(usize::cast_signed).collect();
        let even = if others.is_empty() { even } else { even.sum(&others, false)? };
        sharp.add(&even.mul(smoothing / n_classes as f64)?)
    }

    /// Whether what the mean divides by is on several ranks.
    pub(super) fn mean_is_cut(&self, logits: &Layout, targets: &Layout) -> bool {
        let class = class_dim(logits.n_dims());
        self.reduction == Reduction::Mean
            && (cuts(logits, |dim| dim != class) || cuts(targets, |_| true))
    }
}

/// The loss, `log(sum(exp(logits)))` of every sample, and what a mean divided by, in what is computed in: of logits,
/// targets, and weights. Where the classes are cut, two reductions of a few numbers per sample; a mean over samples that
/// are cut is one more, of two numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CrossEntropyLoss(Settings);

impl Op for CrossEntropyLoss {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, class) = (operands[0].n_dims(), class_dim(operands[0].n_dims()));
        let is_mean = self.0.reduction == Reduction::Mean;
        let logits = letters(0..n_dims, |dim| is_mean || dim == class);
        let samples = sample_letters(n_dims, |_| is_mean);
        let weight = if self.0.weight { format!(", {}!", letter(class)) } else { String::new() };
        let loss = if self.0.reduction == Reduction::None { &samples } else { "" };
        let total = if is_mean { ", " } else { "" };
        let text = format!("{logits}, {samples}{weight} -> {loss}, {samples}{total}");
        rule(self.name(), &text, &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.0.weight_of(x);
        let settings = self.0.local(weight, self.0.reduction);
        let mut results = two(x[0].cross_entropy(x[1], &settings))?;
        if self.0.reduction == Reduction::Mean {
            let class = class_dim(x[0].n_dims());
            let (ignored, classes) = (self.0.ignore_index, (class, x[0].shape()[class]));
            let total = WeightTotal::eval("cross_entropy", x[1], weight, ignored, classes)?;
            results.push(total.to_dtype(wide(x[0].dtype()))?);
        }
        Ok(results)
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let class = class_dim(operands[0].n_dims());
        cuts(operands[0], |dim| dim == class) || self.0.mean_is_cut(operands[0], operands[1])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, settings) = (self.name(), &self.0);
        let [logits, targets] = by_samples(op, operands[0], operands[1])?;
        let weight = settings.weight_of(operands);
        let class = class_dim(logits.n_dims());
        let (loss, log_sums) = match cuts(logits.layout(), |dim| dim == class) {
            true => {
                let largest = call_one(&RowMax { dim: class }, &[&logits])?.settled_as(op)?;
                let step = ClassSums(settings.clone());
                let operands: Vec<&DTensor> =
                    [&logits, &largest, &targets].into_iter().chain(weight).collect();
                let sums = call_one(&step, &operands)?.settled_as(op)?;
                let n_classes = logits.shape()[class];
                let step = LossOfSums { of: settings.clone(), n_classes, dtype: logits.dtype() };
                let operands: Vec<&DTensor> =
                    [&sums, &largest, &targets].into_iter().chain(weight).collect();
                call_two(&step, &operands)?
            }
            false => {
                let operands: Vec<&DTensor> =
                    [&logits, &targets].into_iter().chain(weight).collect();
                call_two(&Totals(settings.clone()), &operands)?
            }
        };
        let of_totals =
            |totals: &DTensor| LossOfTotals::of(op, totals, settings.reduction, logits.dtype());
        Ok(match settings.reduction {
            Reduction::None => [loss, log_sums].into_iter().collect(),
            Reduction::Sum => [of_totals(&loss)?, log_sums].into_iter().collect(),
            Reduction::Mean => {
                let totals = loss.settled_as(op)?;
                let total = totals.select(0, 1)?.to_dtype(wide(logits.dtype()))?;
                [of_totals(&totals)?, log_sums, total].into_iter().collect()
            }
        })
    }

    fn keeps(&self) -> Option<Keep> {
        // With the logarithms of the sums there is no need for probabilities.
        let results = Keep::results(if self.0.weight { &[0, 1, 2] } else { &[1, 2] });
        Some(Keep::OPERANDS.and(results))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (logits, targets) = (backward.operand(0)?, backward.operand(1)?);
        let log_sums = backward.result(1)?;
        let weight = self.0.weight.then(|| backward.operand(2)).transpose()?;
        let of_logits = || {
            let mut sum = None;
            if backward.has_grad(0) {
                let grad = self.0.divided(backward.grad()?, backward)?;
                let is_divided = self.0.reduction == Reduction::Mean;
                let of = CrossEntropyBackward { of: self.0.clone(), is_divided };
                let operands = [&logits, &targets, &log_sums, &grad].into_iter();
                sum = Some(call_one(&of, &operands.chain(&weight).collect::<Vec<_>>())?);
            }
            if backward.has_grad(1) {
                let class = class_dim(logits.n_dims()).cast_signed();
                let probabilities = logits.sub(&log_sums.unsqueeze(class)?)?.exp()?;
                let more = probabilities.mul(&backward.grad_of(1)?.unsqueeze(class)?)?;
                sum = Some(plus(sum, more)?);
            }
            Ok(sum)
        };
        backward.each_or_none(|operand| match (operand, &weight) {
            (2, Some(weight)) => {
                let of = (&logits, &targets, weight);
                self.0.weight_gradient(of, &log_sums, backward).map(Some)
            }
            _ => of_logits(),
        })
    }
}

/// Logits and targets, of which nothing is pending, with their samples on the same ranks.
fn by_samples(op: &'static str, logits: &DTensor, targets: &DTensor) -> Result<[DTensor; 2]> {
    use Placement::{Replicate, Shard};
    let class = class_dim(logits.n_dims());
    let of_sample = |dim: usize| if dim > class { dim - 1 } else { dim };
    let of_logits = |dim: usize| if dim >= class { dim + 1 } else { dim };
    let axes = logits.placements().iter().zip(targets.placements());
    let both = axes.map(|(logits, targets)| match (logits, targets) {
        (Shard(dim), _) if *dim == class => (Shard(*dim), Replicate),
        (Shard(dim), _) => (Shard(*dim), Shard(of_sample(*dim))),
        (_, Shard(dim)) => (Shard(of_logits(*dim)), Shard(*dim)),
        _ => (Replicate, Replicate),
    });
    let (to_logits, to_targets): (Vec<Placement>, Vec<Placement>) = both.unzip();
    Ok([placed(op, logits, &to_logits)?, placed(op, targets, &to_targets)?])
}

impl DTensor {
    /// The loss of logits `[N, C, ...]` (or `[C]`) for targets `[N, ...]` (or one): class indices, `i64` or `i32`.
    /// Gives the loss, and `log(sum(exp(logits)))` of every sample for
    /// [`cross_entropy_backward`](DTensor::cross_entropy_backward). As `torch.nn.functional.cross_entropy`.
    ///
    /// Logits are never gathered: if their classes are cut, the largest logit of every sample is reduced, and then a
    /// few sums. (PyTorch calls it `loss_parallel`.)
    pub fn cross_entropy(
        &self,
        targets: &DTensor,
        settings: &CrossEntropy,
    ) -> Result<(DTensor, DTensor)> {
        let operands: Vec<&DTensor> = [self, targets].into_iter().chain(settings.weight).collect();
        let op = CrossEntropyLoss(Settings::new(settings));
        match settings.reduction {
            Reduction::Mean => {
                let (loss, log_sums, _) = call_three(&op, &operands)?;
                Ok((loss, log_sums))
            }
            _ => call_two(&op, &operands),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "cross_entropy",
    samples: || {
        let cases = [
            (&[4, 5][..], Reduction::Mean, 0.0, true),
            (&[4, 5], Reduction::Mean, 0.3, true),
            (&[3, 4, 2], Reduction::None, 0.0, false),
            (&[3, 4, 2], Reduction::Sum, 0.2, true),
            (&[5], Reduction::Mean, 0.1, false),
        ];
        cases
            .map(|(shape, reduction, smoothing, weight)| {
                let op = CrossEntropyLoss(sample_settings(reduction, smoothing, weight));
                samples(op, shape, &[], weight)
            })
            .into()
    },
}];

/// The third class is ignored.
pub(super) fn sample_settings(reduction: Reduction, smoothing: f64, weight: bool) -> Settings {
    Settings { ignore_index: 2, label_smoothing: Number(smoothing), reduction, weight }
}

/// Logits of a shape, targets, others, and a weight per class.
pub(super) fn samples(op: impl Op, shape: &[usize], others: &[&[usize]], weight: bool) -> Sample {
    let n_classes = shape[class_dim(shape.len())];
    let (targets, weights) = (sample_shape(shape), [n_classes]);
    let mut shapes = vec![shape, &targets];
    shapes.extend(others);
    if weight {
        shapes.push(&weights);
    }
    let last = shapes.len() - 1;
    let sample = Sample::new(op, &shapes).with(1, SampleValues::Index(n_classes));
    if weight { sample.with(last, SampleValues::Positive) } else { sample }
}
