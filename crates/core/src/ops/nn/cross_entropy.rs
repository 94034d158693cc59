//! Cross entropy of logits and class indices.

use dtensor_layout::{Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor, nn};

pub use dtensor_local::nn::Reduction;

use super::{
    class_sums::{ClassSums, LossOfSums, Totals},
    loss_steps::{LossOfTotals, class_dim, sample_letters, sample_shape},
    steps::{RowMax, cuts, letter, letters, placed, rule},
};
use crate::{
    DTensor, Result,
    dispatch::{call_one, call_two},
    op::{LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, SampleValues, two},
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

    /// Whether what the mean divides by is on several ranks.
    pub(super) fn mean_is_cut(&self, logits: &Layout, targets: &Layout) -> bool {
        let class = class_dim(logits.n_dims());
        self.reduction == Reduction::Mean
            && (cuts(logits, |dim| dim != class) || cuts(targets, |_| true))
    }
}

/// The loss, and `log(sum(exp(logits)))` of every sample: of logits, targets, and weights. Where the classes are
/// cut, two reductions of a few numbers per sample; a mean over samples that are cut is one more, of two numbers.
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
        rule(self.name(), &format!("{logits}, {samples}{weight} -> {loss}, {samples}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let settings = self.0.local(self.0.weight_of(x), self.0.reduction);
        two(x[0].cross_entropy(x[1], &settings))
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
        let loss = match settings.reduction {
            Reduction::None => loss,
            _ => LossOfTotals::of(op, &loss, settings.reduction, logits.dtype())?,
        };
        Ok([loss, log_sums].into_iter().collect())
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
        call_two(&CrossEntropyLoss(Settings::new(settings)), &operands)
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
