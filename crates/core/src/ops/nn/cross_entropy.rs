//! Cross entropy of logits and class indices.

use dtensor_layout::{
    DType, Layout, Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, nn};
use smallvec::SmallVec;

pub use dtensor_local::nn::Reduction;

use super::{
    classes::Picks,
    loss_steps::{LossOfTotals, WeightTotal, class_dim, sample_letters, sample_shape},
    steps::{RowMax, cuts, kept, letter, letters, placed, rule, settled, wide, widened},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one, call_two},
    op::{LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, SampleValues, one, two},
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
struct Settings {
    ignore_index: i64,
    label_smoothing: Number,
    reduction: Reduction,
    /// Whether the last operand has the weights of the classes.
    weight: bool,
}

impl Settings {
    fn new(settings: &CrossEntropy) -> Settings {
        Settings {
            ignore_index: settings.ignore_index,
            label_smoothing: Number(settings.label_smoothing),
            reduction: settings.reduction,
            weight: settings.weight.is_some(),
        }
    }

    fn local<'a>(&self, weight: Option<&'a Tensor>, reduction: Reduction) -> nn::CrossEntropy<'a> {
        nn::CrossEntropy {
            weight,
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing.0,
            reduction,
        }
    }

    /// The weights, if there are any.
    fn weight_of<'a, T>(&self, operands: &[&'a T]) -> Option<&'a T> {
        operands.last().copied().filter(|_| self.weight)
    }

    /// Whether what the mean divides by is on several ranks.
    fn mean_is_cut(&self, logits: &Layout, targets: &Layout) -> bool {
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
                let largest = settled(op, &call_one(&RowMax { dim: class }, &[&logits])?)?;
                let step = ClassSums(settings.clone());
                let operands: Vec<&DTensor> =
                    [&logits, &largest, &targets].into_iter().chain(weight).collect();
                let sums = settled(op, &call_one(&step, &operands)?)?;
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

/// From logits, largest logits, targets and weights, for the classes that are held: the sums of the exponentials and
/// the logits of the targets, less the largest; with smoothing also the weighted sums of the logits. Stacked in a
/// new first dim, so that they are reduced together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClassSums(Settings);

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
}

/// The losses from [`ClassSums`], largest logits, targets and weights, or, if they are reduced, their sum and that of
/// the weights; and the logarithms of the sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LossOfSums {
    of: Settings,
    n_classes: usize,
    dtype: DType,
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
struct Totals(Settings);

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
        let n_classes = x[0].shape()[class];
        let total = WeightTotal::eval(x[1], weight.as_ref(), self.0.ignore_index, n_classes)?;
        Ok([Tensor::stack(&[&sum, &total.to_dtype(sum.dtype())?], 0)?, log_sums]
            .into_iter()
            .collect())
    }
}

/// The gradient of the logits, from logits, targets, logarithms of the sums, gradient and weights. Classes may be cut;
/// a mean over samples that are cut is one reduction of one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CrossEntropyBackward {
    of: Settings,
    /// Whether the gradient is divided already by what the mean divides by, and in what is computed in.
    is_divided: bool,
}

impl Op for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let is_mean = self.of.reduction == Reduction::Mean && !self.is_divided;
        let class = class_dim(n_dims);
        let logits = letters(0..n_dims, |dim| is_mean && dim != class);
        let samples = sample_letters(n_dims, |_| is_mean);
        let grad = if self.of.reduction == Reduction::None { &samples } else { "" };
        // A letter of its own: whichever classes a rank has, it needs the weights of all targets.
        let weight = if self.of.weight { format!(", {}!", letter(n_dims)) } else { String::new() };
        let text = format!("{logits}, {samples}, {samples}, {grad}{weight} -> {logits}");
        rule(self.name(), &text, &[Law::LinearIn(3)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (logits, targets, log_sums, grad) = (x[0], x[1], x[2], x[3]);
        let weight = self.of.weight_of(x);
        let class = class_dim(logits.n_dims());
        let here = logits.shape().get(class).copied().unwrap_or(0);
        let n_classes = context.global_size(0, class, here);
        let held = context.operand_range(0, class, n_classes);
        if held == (0..n_classes) && !self.is_divided {
            let settings = self.of.local(weight, self.of.reduction);
            return one(logits.cross_entropy_backward(targets, log_sums, grad, &settings));
        }
        let dtype = wide(logits.dtype());
        let ignored = Some(self.of.ignore_index);
        let picks = Picks::new(self.name(), targets, ignored, (class, held.clone(), n_classes))?;
        let all = Picks::new(self.name(), targets, ignored, (class, 0..n_classes, n_classes))?;
        let weight = weight.map(widened).transpose()?;
        let smoothing = self.of.label_smoothing.0;
        let even = smoothing / n_classes.max(1) as f64;
        let own = match &weight {
            Some(weight) => all.pick_from(weight)?,
            None => all.is_used.to_dtype(dtype)?,
        };
        let sharp = own.mul_scalar(1.0 - smoothing)?;
        let total = match &weight {
            Some(weight) => sharp.add(&weight.sum(&[], false)?.mul_scalar(even)?)?,
            None => sharp.add_scalar(even * n_classes as f64)?,
        };
        let beside = |sample: &Tensor| sample.unsqueeze(class as isize);
        let mut grad = widened(grad)?;
        if self.of.reduction == Reduction::Mean && !self.is_divided {
            // Of all samples, which are not cut then.
            grad = grad.div(&own.sum(&[], false)?)?;
        }
        let grad = grad.expand(targets.shape())?;
        let softmax = widened(logits)?.sub(&beside(&widened(log_sums)?)?)?.exp()?;
        let mut out = softmax.mul(&beside(&grad.mul(&total)?)?)?;
        if even > 0.0 {
            let spread = beside(&grad.mul_scalar(even)?)?;
            out = match &weight {
                Some(weight) => {
                    let here = weight.narrow(0, held.start.min(n_classes), held.len())?;
                    out.sub(&spread.mul(&along(&here, class, logits.n_dims())?)?)?
                }
                None => out.sub(&spread)?,
            };
        }
        let at_target = picks.one_hot(class, here)?.to_dtype(dtype)?;
        out = out.sub(&at_target.mul(&beside(&grad.mul(&sharp)?)?)?)?;
        one(out.masked_fill(&beside(&all.is_used.logical_not()?)?, 0)?.to_dtype(logits.dtype()))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        !self.is_divided && self.of.mean_is_cut(operands[0], operands[1])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let weight = self.of.weight_of(operands);
        let class = class_dim(operands[0].n_dims());
        let n_classes = operands[0].shape()[class];
        let grad = WeightTotal::divide(
            self.name(),
            operands[3],
            (operands[1], weight),
            (self.of.ignore_index, n_classes),
        )?;
        let mut operands: Vec<&DTensor> = operands.to_vec();
        operands[3] = &grad;
        call(&CrossEntropyBackward { of: self.of.clone(), is_divided: true }, &operands)
    }
}

/// A list of one value per class, to stand beside logits.
fn along(list: &Tensor, class: usize, n_dims: usize) -> Result<Tensor, LocalError> {
    let mut shape: SmallVec<[usize; 4]> = SmallVec::from_elem(1, n_dims);
    shape[class] = list.numel();
    widened(list)?.reshape(&shape)
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

    /// The gradient of [`cross_entropy`](DTensor::cross_entropy) with respect to the logits (`self`), given its second
    /// result and the gradient of its first. Cut as the logits are.
    pub fn cross_entropy_backward(
        &self,
        targets: &DTensor,
        log_sums: &DTensor,
        grad: &DTensor,
        settings: &CrossEntropy,
    ) -> Result<DTensor> {
        let op = CrossEntropyBackward { of: Settings::new(settings), is_divided: false };
        let operands: Vec<&DTensor> =
            [self, targets, log_sums, grad].into_iter().chain(settings.weight).collect();
        call_one(&op, &operands)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
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
    },
    OpRecord {
        name: "cross_entropy_backward",
        samples: || {
            let cases = [
                (&[4, 5][..], Reduction::Mean, 0.3, true),
                (&[3, 4, 2], Reduction::None, 0.0, false),
                (&[3, 4], Reduction::Sum, 0.2, false),
                (&[3], Reduction::Mean, 0.0, true),
            ];
            cases
                .map(|(shape, reduction, smoothing, weight)| {
                    let of = sample_settings(reduction, smoothing, weight);
                    let sums = sample_shape(shape);
                    let grad = if reduction == Reduction::None { sums.clone() } else { Vec::new() };
                    let op = CrossEntropyBackward { of, is_divided: false };
                    samples(op, shape, &[&sums, &grad], weight)
                })
                .into()
        },
    },
];

/// The third class is ignored.
fn sample_settings(reduction: Reduction, smoothing: f64, weight: bool) -> Settings {
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
