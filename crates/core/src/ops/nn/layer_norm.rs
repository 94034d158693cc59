//! Normalisation over the last dims.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use super::{
    moments::Normalization,
    norm_second::FirstOrder,
    steps::{aligned, cuts, grad_for_all, letters, rule},
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one, call_three, call_two},
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
};

/// Which normalisation, over which last dims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Norm {
    /// Whether around the mean, which is a layer normalisation, or around zero, by the root mean square.
    is_centered: bool,
    sizes: SmallVec<[usize; 4]>,
    eps: Number,
    weight: bool,
}

/// `layer_norm` or `rms_norm` of input, weight and bias, as far as they are there. Where the normalised dims
/// are cut, sums are reduced, and nothing is gathered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LayerNorm {
    norm: Norm,
    bias: bool,
}

/// Gradients of input, weight and bias (which `rms_norm` does not have), from input, gradient and weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LayerNormBackward(Norm);

impl Norm {
    fn new(is_centered: bool, sizes: &[usize], eps: f64, weight: bool) -> Norm {
        Norm { is_centered, sizes: sizes.into(), eps: Number(eps), weight }
    }

    /// The first dim that is normalised.
    fn first(&self, n_dims: usize) -> usize {
        n_dims.saturating_sub(self.sizes.len())
    }

    /// The letters of the input, and of weight and bias.
    fn letters(&self, x: &Meta) -> [String; 2] {
        let (first, n_dims) = (self.first(x.n_dims()), x.n_dims());
        [letters(0..n_dims, |dim| dim >= first), letters(first..n_dims, |_| true)]
    }

    fn is_cut(&self, layout: &Layout) -> bool {
        cuts(layout, |dim| dim >= self.first(layout.n_dims()))
    }

    fn in_steps(&self, op: &'static str, n_dims: usize) -> Normalization {
        let last: SmallVec<[usize; 4]> = (self.first(n_dims)..n_dims).collect();
        Normalization {
            op,
            over: last.clone(),
            affine: last,
            groups: None,
            count: self.sizes.iter().product(),
            eps: self.eps,
            is_centered: self.is_centered,
        }
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        if self.norm.is_centered { "layer_norm" } else { "rms_norm" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, affine] = self.norm.letters(&operands[0]);
        let others = operands[1..].iter().map(|_| format!(", {affine}")).collect::<String>();
        // Linear in the weight up to the bias, and in the bias up to the rest.
        let rows: &[&str] = match (self.norm.weight, self.bias) {
            (false, false) => &[],
            (true, false) => &["R P(sum) -> P(sum)", "R P(avg) -> P(avg)"],
            (false, true) => &["R P(avg) -> P(avg)"],
            (true, true) => &["R P(avg) R -> P(avg)", "R R P(avg) -> P(avg)"],
        };
        let rows = rows.iter().map(|row| format!("; {row}")).collect::<String>();
        rule(self.name(), &format!("{x}{others} -> {x}{rows}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let Norm { is_centered, sizes, eps, weight } = &self.norm;
        let scale = weight.then(|| x[1]);
        let shift = self.bias.then(|| x[x.len() - 1]);
        one(match is_centered {
            true => x[0].layer_norm(sizes, scale, shift, eps.0),
            false => x[0].rms_norm(sizes, scale, eps.0),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.norm.is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled_as(self.name())?;
        let steps = self.norm.in_steps(self.name(), x.n_dims());
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
        let operands: SmallVec<[&DTensor; 3]> = [&x, &grad].into_iter().chain(&weight).collect();
        let grads = call(&LayerNormBackward(self.norm.clone()), &operands)?;
        backward.each(|operand| match operand {
            1 if !self.norm.weight => Ok(grads[2].clone()),
            operand => Ok(grads[operand].clone()),
        })
    }
}

impl Op for LayerNormBackward {
    fn name(&self) -> &'static str {
        if self.0.is_centered { "layer_norm_backward" } else { "rms_norm_backward" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, affine] = self.0.letters(&operands[0]);
        let weight = if self.0.weight { format!(", {affine}") } else { String::new() };
        let bias = if self.0.is_centered { format!(", {affine}") } else { String::new() };
        let text = format!("{x}, {x}{weight} -> {x}, {affine}{bias}");
        rule(self.name(), &text, &[Law::LinearIn(1)])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let Norm { is_centered, sizes, eps, weight } = &self.0;
        let weight = weight.then(|| x[2]);
        let grads = match is_centered {
            true => x[0].layer_norm_backward(x[1], sizes, weight, eps.0)?,
            false => x[0].rms_norm_backward(x[1], sizes, weight, eps.0)?,
        };
        Ok([grads.input, grads.weight].into_iter().chain(grads.bias).collect())
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        operands[..2].iter().any(|layout| self.0.is_cut(layout))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let [x, grad] = aligned(self.name(), [operands[0], operands[1]])?;
        let steps = self.0.in_steps(self.name(), x.n_dims());
        let weight = self.0.weight.then(|| operands[2]);
        steps.backward(&x, &steps.moments(&x)?, &grad, weight)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?, backward.operand(1)?);
        let weight = self.0.weight.then(|| backward.operand(2)).transpose()?;
        let of = self.0.in_steps(self.name(), x.n_dims());
        FirstOrder { of, x, grad, weight, given: None, is_eval: false }.gradient(backward)
    }
}

impl DTensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last dims, whose sizes `normalized_shape` names.
    /// If such a dim is cut, two reductions of one number per row are sent. As
    /// `torch.nn.functional.layer_norm`.
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
        eps: f64,
    ) -> Result<DTensor> {
        let norm = Norm::new(true, normalized_shape, eps, weight.is_some());
        let operands: SmallVec<[&DTensor; 3]> =
            [self].into_iter().chain(weight).chain(bias).collect();
        call_one(&LayerNorm { norm, bias: bias.is_some() }, &operands)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dims, whose sizes `normalized_shape` names. If such a
    /// dim is cut, one reduction of one number per row is sent. As `torch.nn.functional.rms_norm`.
    pub fn rms_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<DTensor> {
        let norm = Norm::new(false, normalized_shape, eps, weight.is_some());
        let operands: SmallVec<[&DTensor; 3]> = [self].into_iter().chain(weight).collect();
        call_one(&LayerNorm { norm, bias: false }, &operands)
    }

    /// Gradients of [`layer_norm`](DTensor::layer_norm) of `self` with respect to input, weight and bias, given
    /// that of its result. Those of weight and bias are pending sums where rows are cut.
    pub fn layer_norm_backward(
        &self,
        grad: &DTensor,
        normalized_shape: &[usize],
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        let op = LayerNormBackward(Norm::new(true, normalized_shape, eps, weight.is_some()));
        let operands: SmallVec<[&DTensor; 3]> = [self, grad].into_iter().chain(weight).collect();
        call_three(&op, &operands)
    }

    /// Gradients of [`rms_norm`](DTensor::rms_norm) of `self` with respect to input and weight, given that of its
    /// result.
    pub fn rms_norm_backward(
        &self,
        grad: &DTensor,
        normalized_shape: &[usize],
        weight: Option<&DTensor>,
        eps: f64,
    ) -> Result<(DTensor, DTensor)> {
        let op = LayerNormBackward(Norm::new(false, normalized_shape, eps, weight.is_some()));
        let operands: SmallVec<[&DTensor; 3]> = [self, grad].into_iter().chain(weight).collect();
        call_two(&op, &operands)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "layer_norm",
        samples: || {
            let norm = |sizes: &[usize], weight, bias| LayerNorm {
                norm: Norm::new(true, sizes, 0.1, weight),
                bias,
            };
            vec![
                Sample::new(norm(&[5], true, true), &[&[3, 5], &[5], &[5]]),
                Sample::new(norm(&[3, 2], true, false), &[&[4, 3, 2], &[3, 2]]),
                Sample::new(norm(&[3], false, true), &[&[2, 3], &[3]]),
                Sample::new(norm(&[4], false, false), &[&[4]]),
            ]
        },
    },
    OpRecord {
        name: "rms_norm",
        samples: || {
            let norm = |sizes: &[usize], weight| LayerNorm {
                norm: Norm::new(false, sizes, 0.1, weight),
                bias: false,
            };
            vec![
                Sample::new(norm(&[5], true), &[&[3, 5], &[5]]),
                Sample::new(norm(&[3, 2], false), &[&[2, 3, 2]]),
            ]
        },
    },
    OpRecord { name: "layer_norm_backward", samples: || backward_samples(true) },
    OpRecord { name: "rms_norm_backward", samples: || backward_samples(false) },
];

fn backward_samples(is_centered: bool) -> Vec<Sample> {
    let norm =
        |sizes: &[usize], weight| LayerNormBackward(Norm::new(is_centered, sizes, 0.1, weight));
    vec![
        Sample::new(norm(&[5], true), &[&[3, 5], &[3, 5], &[5]]),
        Sample::new(norm(&[3, 2], false), &[&[2, 3, 2], &[2, 3, 2]]),
    ]
}
