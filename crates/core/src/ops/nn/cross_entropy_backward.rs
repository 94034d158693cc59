//! The gradient of the cross entropy.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    cross_entropy::{CrossEntropy, Reduction, Settings, sample_settings, samples},
    loss_steps::{WeightTotal, class_dim, sample_letters, sample_shape},
    steps::{letter, letters, rule},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one},
    op::{LocalContext, Meta, Op, OpRecord, Outputs, one},
};

/// The gradient of the logits, from logits, targets, logarithms of the sums, gradient and weights. Classes may be cut;
/// a mean over samples that are cut is one reduction of one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CrossEntropyBackward {
    pub(super) of: Settings,
    /// Whether the gradient is divided already by what the mean divides by, and in what is computed in.
    pub(super) is_divided: bool,
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
        let reduction = if self.is_divided { Reduction::Sum } else { self.of.reduction };
        let settings = self.of.local(weight, reduction);
        let classes = (held, n_classes);
        one(logits.cross_entropy_backward_part(targets, log_sums, grad, &settings, classes))
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
        let (with, ignored) = ((operands[1], weight), self.of.ignore_index);
        let total = WeightTotal::of(self.name(), with, ignored, (class, n_classes))?;
        let grad = WeightTotal::divide(operands[3], &total)?;
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
