//! The gradient of the cross entropy.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    class_sums::along,
    classes::Picks,
    cross_entropy::{CrossEntropy, Reduction, Settings, sample_settings, samples},
    loss_steps::{WeightTotal, class_dim, sample_letters, sample_shape},
    steps::{letter, letters, rule, wide, widened},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one},
    op::{LocalContext, Meta, Op, OpRecord, Outputs, one},
};

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

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        // What is divided has been looked at, for the sum that divides it.
        operand == 1 && !self.is_divided
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
            self.of.ignore_index,
            (class, n_classes),
        )?;
        let mut operands: Vec<&DTensor> = operands.to_vec();
        operands[3] = &grad;
        call(&CrossEntropyBackward { of: self.of.clone(), is_divided: true }, &operands)
    }
}

impl DTensor {
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

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
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
}];
