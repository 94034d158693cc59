//! Normalisation of channels over all samples.

use dtensor_layout::{
    Cut, Layout, Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    moments::{Moments, Normalization},
    norm_second::FirstOrder,
    steps::{Scaled, aligned, cuts, grad_for_all, letter, letters, rule, wide},
};
use crate::{
    DTensor, Error, Result,
    dispatch::{call, call_one, call_three},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues, one,
    },
};

/// The normalised values, means and variances, of input, weight and bias, as far as they are there. Channels may be
/// cut; where anything else is, the statistics are reduced over ranks, as in a synchronised batch normalisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BatchNorm {
    eps: Number,
    weight: bool,
    bias: bool,
}

/// By given statistics: of input, mean, variance, weight and bias.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BatchNormEval {
    eps: Number,
    weight: bool,
    bias: bool,
}

/// Gradients of input, weight and bias, from input, gradient, mean, variance and weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BatchNormBackward {
    eps: Number,
    weight: bool,
    /// Whether the statistics were given, and are constants.
    eval: bool,
}

/// The letters of `[N, C, ...]`, of which only channels are cut unless all may be, and of what has one per channel.
fn both(x: &Meta, all: bool) -> [String; 2] {
    [letters(0..x.n_dims(), |dim| !all && dim != 1), letter(1)]
}

fn in_steps(op: &'static str, shape: &[usize], eps: Number) -> Normalization {
    let over = (0..shape.len()).filter(|dim| *dim != 1);
    Normalization {
        op,
        over: over.clone().collect(),
        affine: [1].into_iter().collect(),
        groups: None,
        count: over.map(|dim| shape[dim]).product(),
        eps,
        is_centered: true,
    }
}

/// What has one value per channel, as `[C]` or beside `n_dims` dims, of which it has size 1 but for the channels.
fn per_channel(op: &'static str, x: &DTensor, n_dims: Option<usize>) -> Result<DTensor> {
    let (from, to, n) = match n_dims {
        Some(n_dims) => (0, 1, n_dims),
        None => (1, 0, 1),
    };
    let mut shape = vec![1; n];
    shape[to] = x.shape()[from];
    let moved = |placement: &Placement| match placement {
        Placement::Shard(_) => Placement::Shard(to),
        other => *other,
    };
    let placements: Vec<Placement> = x.placements().iter().map(moved).collect();
    let mut order: Vec<Vec<Cut>> = vec![Vec::new(); n];
    order[to] = x.layout().order().cuts(from).to_vec();
    let mesh = x.mesh();
    let layout = Layout::with_cuts(&shape, x.dtype(), mesh.mesh(), &placements, &order);
    let layout = layout.map_err(Error::layout(op))?;
    let local = match mesh.coord() {
        Some(coord) => x.local().reshape(&layout.local_shape(coord))?,
        None => x.local().clone(),
    };
    Ok(DTensor::from_parts(local, layout, mesh.clone()))
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, channel] = both(&operands[0], false);
        let others = operands[1..].iter().map(|_| format!(", {channel}")).collect::<String>();
        rule(self.name(), &format!("{x}{others} -> {x}, {channel}, {channel}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.weight.then(|| x[1]);
        let bias = self.bias.then(|| x[x.len() - 1]);
        let (out, stats) = x[0].batch_norm(weight, bias, self.eps.0)?;
        Ok([out, stats.mean, stats.var].into_iter().collect())
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        cuts(operands[0], |dim| dim != 1)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled_as(self.name())?;
        let steps = in_steps(self.name(), x.shape(), self.eps);
        let moments = steps.moments(&x)?;
        let weight = self.weight.then(|| operands[1]);
        let bias = self.bias.then(|| operands[operands.len() - 1]);
        let out = steps.normalize(&x, &moments, weight, bias)?;
        let var = per_channel(self.name(), &moments.var, None)?;
        let mean = match &moments.mean {
            Some(mean) => per_channel(self.name(), mean, None)?,
            None => var.zeros_like()?,
        };
        Ok([out, mean, var].into_iter().collect())
    }

    fn keeps(&self) -> Option<Keep> {
        let operands = Keep::operands(if self.weight { &[0, 1] } else { &[0] });
        Some(operands.and(Keep::results(&[1, 2])))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?, grad_for_all(self.name(), backward)?);
        let (mean, var) = (backward.result(1)?, backward.result(2)?);
        let weight = self.weight.then(|| backward.operand(1)).transpose()?;
        let operands: Vec<&DTensor> = [&x, &grad, &mean, &var].into_iter().chain(&weight).collect();
        let of = BatchNormBackward { eps: self.eps, weight: self.weight, eval: false };
        let grads = call(&of, &operands)?;
        let of_input = || {
            if !backward.has_grad(1) && !backward.has_grad(2) {
                return Ok(grads[0].clone());
            }
            // The moments are means, of the values and of the squared deviations.
            let count = in_steps(self.name(), x.shape(), self.eps).count as f64;
            let beside = |stat: &DTensor| beside(stat, x.n_dims());
            let of_mean = beside(&backward.grad_of(1)?)?.div(count)?;
            let of_var = beside(&backward.grad_of(2)?)?.mul(2.0 / count)?;
            grads[0].add(&x.sub(&beside(&mean)?)?.mul(&of_var)?)?.add(&of_mean)
        };
        backward.each(|operand| match operand {
            0 => of_input(),
            1 if !self.weight => Ok(grads[2].clone()),
            operand => Ok(grads[operand].clone()),
        })
    }
}

/// What has one value per channel, to stand beside `[N, C, ...]`.
fn beside(stat: &DTensor, n_dims: usize) -> Result<DTensor> {
    let mut shape = vec![1; n_dims];
    shape[1] = -1;
    stat.reshape(&shape)
}

impl Op for BatchNormEval {
    fn name(&self) -> &'static str {
        "batch_norm_eval"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, channel] = both(&operands[0], true);
        let others = operands[1..].iter().map(|_| format!(", {channel}")).collect::<String>();
        // Linear in the input, up to a constant.
        let whole = operands[1..].iter().map(|_| " R").collect::<String>();
        let text = format!("{x}{others} -> {x}; P(avg){whole} -> P(avg)");
        rule(self.name(), &text, &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let weight = self.weight.then(|| x[3]);
        let bias = self.bias.then(|| x[x.len() - 1]);
        one(x[0].batch_norm_eval(x[1], x[2], weight, bias, self.eps.0))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(if self.weight { &[0, 1, 2, 3] } else { &[0, 1, 2] }))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let [x, mean, var] = [backward.operand(0)?, backward.operand(1)?, backward.operand(2)?];
        let grad = grad_for_all(self.name(), backward)?;
        let weight = self.weight.then(|| backward.operand(3)).transpose()?;
        let operands: Vec<&DTensor> = [&x, &grad, &mean, &var].into_iter().chain(&weight).collect();
        let of = BatchNormBackward { eps: self.eps, weight: self.weight, eval: true };
        let grads = call(&of, &operands)?;
        let weighted = |grad: &DTensor| match &weight {
            Some(weight) => grad.mul(weight),
            None => Ok(grad.clone()),
        };
        let above_zero = || var.add(self.eps.0);
        backward.each(|operand| match operand {
            0 => Ok(grads[0].clone()),
            1 => weighted(&grads[2])?.mul(&above_zero()?.rsqrt()?.neg()?),
            2 => weighted(&grads[1])?.mul(-0.5)?.div(&above_zero()?),
            3 if self.weight => Ok(grads[1].clone()),
            _ => Ok(grads[2].clone()),
        })
    }
}

impl Op for BatchNormBackward {
    fn name(&self) -> &'static str {
        if self.eval { "batch_norm_eval_backward" } else { "batch_norm_backward" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, channel] = both(&operands[0], self.eval);
        let others = operands[2..].iter().map(|_| format!(", {channel}")).collect::<String>();
        let text = format!("{x}, {x}{others} -> {x}, {channel}, {channel}");
        rule(self.name(), &text, &[Law::LinearIn(1)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (weight, eps) = (self.weight.then(|| x[4]), self.eps.0);
        let grads = match self.eval {
            true => x[0].batch_norm_eval_backward(x[1], x[2], x[3], weight, eps)?,
            false => {
                let here = x[0].shape();
                let whole = |dim: usize| context.global_size(0, dim, here[dim]);
                let count = (0..here.len()).filter(|dim| *dim != 1).map(whole).product();
                let (mean, var) = (x[2].clone(), x[3].clone());
                let stats = dtensor_local::nn::BatchStats { mean, var, count };
                x[0].batch_norm_backward(x[1], &stats, weight, eps)?
            }
        };
        Ok([grads.input, grads.weight, grads.bias].into_iter().collect())
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        !self.eval && operands[..2].iter().any(|layout| cuts(layout, |dim| dim != 1))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let op = self.name();
        let [x, grad] = aligned(op, [operands[0], operands[1]])?;
        let steps = in_steps(op, x.shape(), self.eps);
        let given = |stat: &DTensor| {
            let wide = Scaled { divisor: Number(1.0), dtype: wide(x.dtype()) };
            let stat = call_one(&wide, &[&stat.settled_as(op)?])?;
            per_channel(op, &stat, Some(x.n_dims()))
        };
        let moments = Moments { mean: Some(given(operands[2])?), var: given(operands[3])? };
        steps.backward(&x, &moments, &grad, self.weight.then(|| operands[4]))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?, backward.operand(1)?);
        let given = Some([backward.operand(2)?, backward.operand(3)?]);
        let weight = self.weight.then(|| backward.operand(4)).transpose()?;
        let of = in_steps(self.name(), x.shape(), self.eps);
        FirstOrder { of, x, grad, weight, given, is_eval: self.eval }.gradient(backward)
    }
}

/// Running statistics, moved towards those of a batch: `(1 - momentum) running + momentum factor new`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MoveRunning {
    momentum: Number,
    factor: Number,
}

impl Op for MoveRunning {
    fn name(&self) -> &'static str {
        "batch_norm_running"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        let is_between = (0.0..=1.0).contains(&self.momentum.0) && self.factor.0 >= 0.0;
        let laws = [Law::Linear, Law::Affine, Law::Increasing];
        Ok(Rule::of("a, a -> a", if is_between { &laws } else { &laws[..2] }))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let double = dtensor_layout::DType::F64;
        let (old, new) = (x[0].to_dtype(double)?, x[1].to_dtype(double)?);
        let moved = new.mul_scalar(self.momentum.0 * self.factor.0)?;
        one(old.mul_scalar(1.0 - self.momentum.0)?.add(&moved)?.to_dtype(x[0].dtype()))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.each(|operand| match operand {
            0 => grad.mul(1.0 - self.momentum.0),
            _ => grad.mul(self.momentum.0 * self.factor.0),
        })
    }
}

impl DTensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` of `[N, C, ...]`, where mean and variance are those of a channel in
    /// this batch, on however many ranks it is, and weight and bias are `[C]`. Gives the result, the means and the
    /// variances (of which the latter divide by the number of values), for
    /// [`batch_norm_running`](DTensor::batch_norm_running) and [`batch_norm_backward`](DTensor::batch_norm_backward). If
    /// samples are cut, two reductions of one number per channel are sent. As `torch.nn.functional.batch_norm` in
    /// training, and `torch.nn.SyncBatchNorm`.
    pub fn batch_norm(
        &self,
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        let op = BatchNorm { eps: Number(eps), weight: weight.is_some(), bias: bias.is_some() };
        let operands: Vec<&DTensor> = [self].into_iter().chain(weight).chain(bias).collect();
        call_three(&op, &operands)
    }

    /// As [`batch_norm`](DTensor::batch_norm), with a mean and a variance that are given (`[C]`, of any floating-point
    /// dtype). As `torch.nn.functional.batch_norm` in evaluation.
    pub fn batch_norm_eval(
        &self,
        mean: &DTensor,
        var: &DTensor,
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
        eps: f64,
    ) -> Result<DTensor> {
        let op = BatchNormEval { eps: Number(eps), weight: weight.is_some(), bias: bias.is_some() };
        let operands = [self, mean, var].into_iter().chain(weight).chain(bias);
        call_one(&op, &operands.collect::<Vec<_>>())
    }

    /// Gradients of [`batch_norm`](DTensor::batch_norm) of `self` with respect to input, weight and bias, given that of its
    /// first result, and the others.
    pub fn batch_norm_backward(
        &self,
        grad: &DTensor,
        mean: &DTensor,
        var: &DTensor,
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        backward(self, grad, [mean, var], weight, (eps, false))
    }

    /// Gradients of [`batch_norm_eval`](DTensor::batch_norm_eval) of `self` with respect to input, weight and bias, given
    /// that of its result.
    pub fn batch_norm_eval_backward(
        &self,
        grad: &DTensor,
        mean: &DTensor,
        var: &DTensor,
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        backward(self, grad, [mean, var], weight, (eps, true))
    }

    /// Running means and variances, moved towards those that [`batch_norm`](DTensor::batch_norm) of `self` gave:
    /// `(1 - momentum) running + momentum these`. The variance that goes in is the unbiased one, which divides by one
    /// less, as in PyTorch.
    pub fn batch_norm_running(
        &self,
        (mean, var): (&DTensor, &DTensor),
        (running_mean, running_var): (&DTensor, &DTensor),
        momentum: f64,
    ) -> Result<(DTensor, DTensor)> {
        let sizes = self.shape().iter().enumerate().filter(|(dim, _)| *dim != 1);
        let count: f64 = sizes.map(|(_, size)| *size as f64).product();
        let step = |factor: f64| MoveRunning { momentum: Number(momentum), factor: Number(factor) };
        Ok((
            call_one(&step(1.0), &[running_mean, mean])?,
            call_one(&step(count / (count - 1.0)), &[running_var, var])?,
        ))
    }
}

fn backward(
    x: &DTensor,
    grad: &DTensor,
    [mean, var]: [&DTensor; 2],
    weight: Option<&DTensor>,
    (eps, eval): (f64, bool),
) -> Result<(DTensor, DTensor, DTensor)> {
    let op = BatchNormBackward { eps: Number(eps), weight: weight.is_some(), eval };
    let operands: Vec<&DTensor> = [x, grad, mean, var].into_iter().chain(weight).collect();
    call_three(&op, &operands)
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "batch_norm",
        samples: || {
            let norm = |weight, bias| BatchNorm { eps: Number(0.1), weight, bias };
            vec![
                Sample::new(norm(false, false), &[&[5, 3]]),
                Sample::new(norm(true, true), &[&[3, 2, 2], &[2], &[2]]),
                Sample::new(norm(true, false), &[&[2, 3, 2, 2], &[3]]),
            ]
        },
    },
    OpRecord {
        name: "batch_norm_eval",
        samples: || {
            let norm = |weight, bias| BatchNormEval { eps: Number(0.1), weight, bias };
            let full = Sample::new(norm(true, true), &[&[3, 2, 2], &[2], &[2], &[2], &[2]]);
            let plain = Sample::new(norm(false, false), &[&[4, 3], &[3], &[3]]);
            vec![full.with(2, SampleValues::Positive), plain.with(2, SampleValues::Positive)]
        },
    },
    OpRecord { name: "batch_norm_backward", samples: || backward_samples(false) },
    OpRecord { name: "batch_norm_eval_backward", samples: || backward_samples(true) },
    OpRecord {
        name: "batch_norm_running",
        samples: || {
            let op = MoveRunning { momentum: Number(0.25), factor: Number(1.5) };
            vec![Sample::new(op, &[&[5], &[5]])]
        },
    },
];

fn backward_samples(eval: bool) -> Vec<Sample> {
    let norm = |weight| BatchNormBackward { eps: Number(0.1), weight, eval };
    let full = Sample::new(norm(true), &[&[3, 2, 2], &[3, 2, 2], &[2], &[2], &[2]]);
    let plain = Sample::new(norm(false), &[&[4, 3], &[4, 3], &[3], &[3]]);
    vec![full.with(3, SampleValues::Positive), plain.with(3, SampleValues::Positive)]
}
