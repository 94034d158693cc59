//! Normalisation of groups of channels, sample by sample.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    moments::Normalization,
    norm_second::FirstOrder,
    steps::{aligned, cuts, cuts_whole_groups, grad_for_all, letter, letters, rule},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one, call_three},
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
};

/// Which normalisation of `[N, C, ...]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Norm {
    /// Of so many groups; of every channel alone if `None`.
    groups: Option<usize>,
    eps: Number,
    weight: bool,
}

/// `group_norm` or `instance_norm` of input, weight and bias, as far as they are there. Batches and whole groups may be
/// cut. Where a group is on several ranks, sums are reduced, and the input is not gathered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupNorm {
    norm: Norm,
    bias: bool,
}

/// Gradients of input, weight and bias, from input, gradient and weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupNormBackward(Norm);

impl Norm {
    fn new(groups: Option<usize>, eps: f64, weight: bool) -> Norm {
        Norm { groups, eps: Number(eps), weight }
    }

    /// The letters of the input, of weight and bias, and the sizes of groups.
    fn letters(&self, x: &Meta) -> [String; 3] {
        let n_dims = x.n_dims();
        let plane = letters(2..n_dims, |_| true);
        let (batch, channel, group) = (letter(0), letter(1), letter(n_dims));
        match self.groups {
            None => [format!("{batch} {channel} {plane}"), channel, String::new()],
            Some(groups) => [
                format!("{batch} ({group} {channel}!) {plane}"),
                format!("({group} {channel}!)"),
                format!(" {{{group}={groups}}}"),
            ],
        }
    }

    /// Whether a group is on several ranks.
    fn is_cut(&self, layout: &Layout) -> bool {
        if layout.n_dims() < 2 {
            return false;
        }
        let fits = self.groups.is_none_or(|groups| cuts_whole_groups(layout, 1, groups));
        !fits || cuts(layout, |dim| dim > 1)
    }

    fn in_steps(&self, op: &'static str, shape: &[usize]) -> Normalization {
        let channels = self.groups.map_or(1, |groups| shape[1] / groups.max(1));
        Normalization {
            op,
            over: (2..shape.len()).collect(),
            affine: [1].into_iter().collect(),
            groups: self.groups,
            count: channels * shape[2..].iter().product::<usize>(),
            eps: self.eps,
            is_centered: true,
        }
    }

    /// The groups of which a rank has so many channels.
    fn local_groups(&self, context: &LocalContext, here: usize) -> usize {
        let groups = self.groups.unwrap_or(1).max(1);
        let per_group = context.global_size(0, 1, here) / groups;
        (here / per_group.max(1)).max(1)
    }
}

impl Op for GroupNorm {
    fn name(&self) -> &'static str {
        if self.norm.groups.is_some() { "group_norm" } else { "instance_norm" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, affine, sizes] = self.norm.letters(&operands[0]);
        let others = operands[1..].iter().map(|_| format!(", {affine}")).collect::<String>();
        rule(self.name(), &format!("{x}{others} -> {x}{sizes}"), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.norm.weight.then(|| x[1]);
        let (bias, eps) = (self.bias.then(|| x[x.len() - 1]), self.norm.eps.0);
        let Some(groups) = self.norm.groups else {
            return one(x[0].instance_norm(weight, bias, eps));
        };
        let groups = match context.operand(0) {
            Some(_) => self.norm.local_groups(context, x[0].shape()[1]),
            None => groups,
        };
        one(x[0].group_norm(groups, weight, bias, eps))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.norm.is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled_as(self.name())?;
        let steps = self.norm.in_steps(self.name(), x.shape());
        let weight = self.norm.weight.then(|| operands[1]);
        let bias = self.bias.then(|| operands[operands.len() - 1]);
        Ok([steps.normalize(&x, &steps.moments(&x)?, weight, bias)?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        // The moments are found again.
        Some(Keep::operands(if self.norm.weight { &[0, 1] } else { &[0] }))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?, grad_for_all(self.name(), backward)?);
        let weight = self.norm.weight.then(|| backward.operand(1)).transpose()?;
        let operands: Vec<&DTensor> = [&x, &grad].into_iter().chain(&weight).collect();
        let grads = call(&GroupNormBackward(self.norm.clone()), &operands)?;
        backward.each(|operand| match operand {
            1 if !self.norm.weight => Ok(grads[2].clone()),
            operand => Ok(grads[operand].clone()),
        })
    }
}

impl Op for GroupNormBackward {
    fn name(&self) -> &'static str {
        if self.0.groups.is_some() { "group_norm_backward" } else { "instance_norm_backward" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, affine, sizes] = self.0.letters(&operands[0]);
        let weight = if self.0.weight { format!(", {affine}") } else { String::new() };
        let text = format!("{x}, {x}{weight} -> {x}, {affine}, {affine}{sizes}");
        rule(self.name(), &text, &[Law::LinearIn(1)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.0.weight.then(|| x[2]);
        let grads = match self.0.groups {
            None => x[0].instance_norm_backward(x[1], weight, self.0.eps.0)?,
            Some(groups) => {
                let groups = match context.operand(0) {
                    Some(_) => self.0.local_groups(context, x[0].shape()[1]),
                    None => groups,
                };
                x[0].group_norm_backward(x[1], groups, weight, self.0.eps.0)?
            }
        };
        Ok([grads.input, grads.weight, grads.bias].into_iter().collect())
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        operands[..2].iter().any(|layout| self.0.is_cut(layout))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let [x, grad] = aligned(self.name(), [operands[0], operands[1]])?;
        let steps = self.0.in_steps(self.name(), x.shape());
        let weight = self.0.weight.then(|| operands[2]);
        steps.backward(&x, &steps.moments(&x)?, &grad, weight)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?, backward.operand(1)?);
        let weight = self.0.weight.then(|| backward.operand(2)).transpose()?;
        let of = self.0.in_steps(self.name(), x.shape());
        FirstOrder { of, x, grad, weight, given: None, is_eval: false }.gradient(backward)
    }
}

impl DTensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` of `[N, C, ...]`, where mean and variance are those of each of
    /// `groups` groups of channels of a sample, and weight and bias are `[C]`. If a group is on several ranks, two
    /// small reductions are sent. As `torch.nn.functional.group_norm`.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
        eps: f64,
    ) -> Result<DTensor> {
        forward(Some(groups), self, weight, bias, eps)
    }

    /// As [`group_norm`](DTensor::group_norm), every channel a group. As `torch.nn.functional.instance_norm` with the
    /// statistics of the input.
    pub fn instance_norm(
        &self,
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
        eps: f64,
    ) -> Result<DTensor> {
        forward(None, self, weight, bias, eps)
    }

    /// Gradients of [`group_norm`](DTensor::group_norm) of `self` with respect to input, weight and bias, given that of its
    /// result.
    pub fn group_norm_backward(
        &self,
        grad: &DTensor,
        groups: usize,
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        backward(Some(groups), self, grad, weight, eps)
    }

    /// Gradients of [`instance_norm`](DTensor::instance_norm) of `self` with respect to input, weight and bias, given that
    /// of its result.
    pub fn instance_norm_backward(
        &self,
        grad: &DTensor,
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        backward(None, self, grad, weight, eps)
    }
}

fn forward(
    groups: Option<usize>,
    x: &DTensor,
    weight: Option<&DTensor>,
    bias: Option<&DTensor>,
    eps: f64,
) -> Result<DTensor> {
    let operands: Vec<&DTensor> = [x].into_iter().chain(weight).chain(bias).collect();
    let norm = Norm::new(groups, eps, weight.is_some());
    call_one(&GroupNorm { norm, bias: bias.is_some() }, &operands)
}

fn backward(
    groups: Option<usize>,
    x: &DTensor,
    grad: &DTensor,
    weight: Option<&DTensor>,
    eps: f64,
) -> Result<(DTensor, DTensor, DTensor)> {
    let operands: Vec<&DTensor> = [x, grad].into_iter().chain(weight).collect();
    let op = GroupNormBackward(Norm::new(groups, eps, weight.is_some()));
    call_three(&op, &operands)
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "group_norm",
        samples: || {
            let norm = |groups, weight, bias| GroupNorm {
                norm: Norm::new(Some(groups), 0.1, weight),
                bias,
            };
            vec![
                Sample::new(norm(2, false, false), &[&[3, 4, 3]]),
                Sample::new(norm(3, true, true), &[&[2, 6, 2], &[6], &[6]]),
                Sample::new(norm(1, true, false), &[&[2, 3], &[3]]),
            ]
        },
    },
    OpRecord {
        name: "instance_norm",
        samples: || {
            let norm = |weight, bias| GroupNorm { norm: Norm::new(None, 0.1, weight), bias };
            vec![
                Sample::new(norm(false, false), &[&[3, 2, 5]]),
                Sample::new(norm(true, true), &[&[2, 3, 2, 2], &[3], &[3]]),
            ]
        },
    },
    OpRecord {
        name: "group_norm_backward",
        samples: || {
            let norm = |groups, weight| GroupNormBackward(Norm::new(Some(groups), 0.1, weight));
            vec![
                Sample::new(norm(2, false), &[&[3, 4, 3], &[3, 4, 3]]),
                Sample::new(norm(3, true), &[&[2, 6, 2], &[2, 6, 2], &[6]]),
            ]
        },
    },
    OpRecord {
        name: "instance_norm_backward",
        samples: || {
            let norm = |weight| GroupNormBackward(Norm::new(None, 0.1, weight));
            vec![Sample::new(norm(true), &[&[2, 3, 4], &[2, 3, 4], &[3]])]
        },
    },
];
