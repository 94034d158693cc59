//! Normalisation where what is normalised together is on several ranks: sums, and then sums of squared
//! deviations from the mean, are reduced, which does not cancel as the difference of two large numbers would.

use dtensor_layout::{
    Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use super::steps::{cuts_whole_groups, kept, letter, letters, placed, rule, widened};
use crate::{
    DTensor, Result,
    dispatch::{call, call_one},
    op::{LocalContext, Meta, Number, Op, Outputs, one},
};

/// What a normalisation does, whichever it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Normalization {
    pub(super) op: &'static str,
    /// The dims over which moments are taken.
    pub(super) over: SmallVec<[usize; 4]>,
    /// The dims that weight and bias have, which are consecutive.
    pub(super) affine: SmallVec<[usize; 4]>,
    /// Into how many groups dim 1 is divided whose channels share their moments; each is one on its own if
    /// `None`.
    pub(super) groups: Option<usize>,
    /// Values that share their moments.
    pub(super) count: usize,
    pub(super) eps: Number,
    /// Whether the mean is subtracted.
    pub(super) is_centered: bool,
}

/// Mean, if it is subtracted, and variance, which divides by the number of values. The dims that they are
/// over have size 1.
pub(super) struct Moments {
    pub(super) mean: Option<DTensor>,
    pub(super) var: DTensor,
}

impl Normalization {
    /// Of a tensor of which nothing is pending: two reductions, or one if the mean is not subtracted.
    pub(super) fn moments(&self, x: &DTensor) -> Result<Moments> {
        let mean = match self.is_centered {
            true => Some(self.mean_of(&call_one(&self.sums(false), &[x])?)?),
            false => None,
        };
        let squares = match &mean {
            Some(mean) => call_one(&self.sums(true), &[x, mean])?,
            None => call_one(&self.sums(true), &[x])?,
        };
        Ok(Moments { mean, var: self.mean_of(&squares)? })
    }

    /// The normalised values.
    pub(super) fn normalize(
        &self,
        x: &DTensor,
        moments: &Moments,
        weight: Option<&DTensor>,
        bias: Option<&DTensor>,
    ) -> Result<DTensor> {
        let operands: SmallVec<[&DTensor; 5]> =
            [x, &moments.var].into_iter().chain(&moments.mean).chain(weight).chain(bias).collect();
        let has = [weight.is_some(), bias.is_some()];
        call_one(&Normalize { of: self.clone(), weight: has[0], bias: has[1] }, &operands)
    }

    /// Gradients of input, weight and bias. One more reduction, unless the moments are constants.
    pub(super) fn backward(
        &self,
        x: &DTensor,
        moments: &Moments,
        grad: &DTensor,
        weight: Option<&DTensor>,
    ) -> Result<Outputs<DTensor>> {
        let operands: Vec<&DTensor> =
            [x, grad, &moments.var].into_iter().chain(&moments.mean).chain(weight).collect();
        let (of, weight) = (self.clone(), weight.is_some());
        let sums = call_one(&GradMoments { of: of.clone(), weight }, &operands)?;
        let sums = self.grouped(&sums, 2)?.settled_as(self.op)?;
        let operands: Vec<&DTensor> = operands.iter().copied().chain([&sums]).collect();
        call(&NormGrads { of, weight }, &operands)
    }

    /// The mean of which the sums are given, per channel.
    fn mean_of(&self, sums: &DTensor) -> Result<DTensor> {
        self.grouped(sums, 1)?.settled_as(self.op)?.div(self.count as f64)
    }

    /// What the channels of a group have together, instead of each. Sums of channels are gathered if a group is on
    /// several ranks: there is one per channel, and not one per value.
    fn grouped(&self, sums: &DTensor, dim: usize) -> Result<DTensor> {
        let Some(groups) = self.groups else { return Ok(sums.clone()) };
        let step = GroupTotal { dim, groups };
        if cuts_whole_groups(sums.layout(), dim, groups) {
            return call_one(&step, &[sums]);
        }
        let whole = |placement: &Placement| match placement {
            Placement::Shard(cut) if *cut != dim => *placement,
            _ => Placement::Replicate,
        };
        let to: Vec<Placement> = sums.placements().iter().map(whole).collect();
        call_one(&step, &[&placed(self.op, sums, &to)?])
    }

    fn sums(&self, squared: bool) -> Sums {
        Sums { over: self.over.clone(), squared }
    }

    /// The letters of the input, of its moments, and of weight and bias.
    fn letters(&self, x: &Meta) -> [String; 3] {
        let n_dims = x.n_dims();
        let affine = self.affine.iter().map(|dim| letter(*dim)).collect::<Vec<_>>().join(" ");
        [letters(0..n_dims, |_| false), kept(n_dims, |dim| self.over.contains(&dim)), affine]
    }

    /// A weight or a bias, to stand beside the input.
    fn beside(&self, x: &Tensor, affine: &Tensor) -> Result<Tensor, LocalError> {
        let mut shape = vec![1; x.n_dims()];
        for dim in &self.affine {
            shape[*dim] = x.shape()[*dim];
        }
        widened(affine)?.reshape(&shape)
    }

    /// What is left of the input without its mean, and one over its deviation.
    fn parts(
        &self,
        x: &Tensor,
        var: &Tensor,
        mean: Option<&Tensor>,
    ) -> Result<[Tensor; 2], LocalError> {
        let x = widened(x)?;
        let centered = match mean {
            Some(mean) => x.sub(mean)?,
            None => x,
        };
        Ok([centered, var.add_scalar(self.eps.0)?.rsqrt()?])
    }
}

/// Sums, or sums of squares, or, if a mean is given, sums of the squared deviations from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sums {
    pub(super) over: SmallVec<[usize; 4]>,
    pub(super) squared: bool,
}

impl Op for Sums {
    fn name(&self) -> &'static str {
        "moment_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let x = letters(0..n_dims, |_| false);
        let rows = kept(n_dims, |dim| self.over.contains(&dim));
        let mean = if operands.len() > 1 { format!(", {rows}") } else { String::new() };
        rule(self.name(), &format!("{x}{mean} -> {rows}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let wide = widened(x[0])?;
        let terms = match (x.get(1), self.squared) {
            (Some(mean), _) => wide.sub(mean)?.square()?,
            (None, true) => wide.square()?,
            (None, false) => wide,
        };
        one(sum(&terms, &self.over))
    }
}

/// For every channel the sum over the channels of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupTotal {
    dim: usize,
    groups: usize,
}

impl Op for GroupTotal {
    fn name(&self) -> &'static str {
        "group_total"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let (before, after) =
            (letters(0..self.dim, |_| false), letters(self.dim + 1..n_dims, |_| false));
        let (group, channel) = (letter(n_dims), letter(n_dims + 1));
        let x = format!("{before} ({group} {channel}!) {after}");
        let text = format!("{x} -> {x} {{{group}={}}}", self.groups);
        rule(self.name(), &text, &[Law::Linear])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (shape, dim) = (x[0].shape(), self.dim);
        // Whole groups are cut, and so fewer of the same size are here.
        let size = context.global_size(0, dim, shape[dim]) / self.groups.max(1);
        let mut split = shape.to_vec();
        split[dim] = size;
        split.insert(dim, shape[dim] / size.max(1));
        let total = x[0].reshape(&split)?.sum(&[dim as isize + 1], true)?;
        one(total.expand(&split)?.reshape(shape))
    }
}

/// `(x - mean) / sqrt(var + eps) * weight + bias`, from input, variance, and those of the others that there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Normalize {
    of: Normalization,
    weight: bool,
    bias: bool,
}

impl Op for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, rows, affine] = self.of.letters(&operands[0]);
        let mut text = format!("{x}, {rows}");
        for (name, is_there) in
            [(&rows, self.of.is_centered), (&affine, self.weight), (&affine, self.bias)]
        {
            if is_there {
                text += &format!(", {name}");
            }
        }
        rule(self.name(), &format!("{text} -> {x}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let mean = self.of.is_centered.then(|| x[2]);
        let [centered, scale] = self.of.parts(x[0], x[1], mean)?;
        let mut out = centered.mul(&scale)?;
        if self.weight {
            out = out.mul(&self.of.beside(x[0], x[2 + usize::from(self.of.is_centered)])?)?;
        }
        if self.bias {
            out = out.add(&self.of.beside(x[0], x[x.len() - 1])?)?;
        }
        one(out.to_dtype(x[0].dtype()))
    }
}

/// Sums of the gradient times the weight, if the mean is subtracted, and of that times the normalised values:
/// stacked in a new first dim, so that they are reduced together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GradMoments {
    of: Normalization,
    weight: bool,
}

/// The letters of input, gradient, variance, and of those of mean and weight that there are; then of the
/// input, its moments, and the weight alone.
fn grad_letters(of: &Normalization, weight: bool, operands: &[Meta]) -> [String; 4] {
    let [x, rows, affine] = of.letters(&operands[0]);
    let mut text = format!("{x}, {x}, {rows}");
    if of.is_centered {
        text += &format!(", {rows}");
    }
    if weight {
        text += &format!(", {affine}");
    }
    [text, x, rows, affine]
}

/// The gradient, that times the weight, the normalised values, and one over the deviation.
fn grad_parts(of: &Normalization, weight: bool, x: &[&Tensor]) -> Result<[Tensor; 4], LocalError> {
    let mean = of.is_centered.then(|| x[3]);
    let [centered, deviation] = of.parts(x[0], x[2], mean)?;
    let grad = widened(x[1])?;
    let weighted = match weight {
        true => grad.mul(&of.beside(x[0], x[3 + usize::from(of.is_centered)])?)?,
        false => grad.clone(),
    };
    Ok([grad, weighted, centered.mul(&deviation)?, deviation])
}

impl Op for GradMoments {
    fn name(&self) -> &'static str {
        "norm_grad_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [text, _, rows, _] = grad_letters(&self.of, self.weight, operands);
        let stacked = letter(operands[0].n_dims());
        rule(self.name(), &format!("{text} -> {stacked}! {rows}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let [_, weighted, normal, _] = grad_parts(&self.of, self.weight, x)?;
        let along = sum(&weighted.mul(&normal)?, &self.of.over)?;
        match self.of.is_centered {
            true => one(Tensor::stack(&[&along, &sum(&weighted, &self.of.over)?], 0)),
            false => one(along.unsqueeze(0)),
        }
    }
}

/// Gradients of input, weight and, if the mean is subtracted, bias: from the operands of [`GradMoments`] and
/// what it has given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NormGrads {
    of: Normalization,
    weight: bool,
}

impl Op for NormGrads {
    fn name(&self) -> &'static str {
        "norm_grads_of_sums"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [text, x, rows, affine] = grad_letters(&self.of, self.weight, operands);
        let bias = if self.of.is_centered { format!(", {affine}") } else { String::new() };
        let stacked = letter(operands[0].n_dims());
        rule(self.name(), &format!("{text}, {stacked}! {rows} -> {x}, {affine}{bias}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let dtype = x[0].dtype();
        let [grad, weighted, normal, scale] = grad_parts(&self.of, self.weight, x)?;
        let means = x[x.len() - 1].div_scalar(self.of.count as f64)?;
        let mut input = weighted.sub(&normal.mul(&means.select(0, 0)?)?)?;
        if self.of.is_centered {
            input = input.sub(&means.select(0, 1)?)?;
        }
        let others: Vec<usize> =
            (0..x[0].n_dims()).filter(|dim| !self.of.affine.contains(dim)).collect();
        let affine = |terms: &Tensor| {
            let shape: Vec<usize> = self.of.affine.iter().map(|dim| terms.shape()[*dim]).collect();
            sum(terms, &others)?.reshape(&shape)?.to_dtype(dtype)
        };
        let mut grads: Outputs =
            [input.mul(&scale)?.to_dtype(dtype)?, affine(&grad.mul(&normal)?)?]
                .into_iter()
                .collect();
        if self.of.is_centered {
            grads.push(affine(&grad)?);
        }
        Ok(grads)
    }
}

/// The sum over dims, which are kept; over none of them the tensor itself.
fn sum(x: &Tensor, dims: &[usize]) -> Result<Tensor, LocalError> {
    match dims.is_empty() {
        true => Ok(x.clone()),
        false => x.sum(&dims.iter().map(|dim| *dim as isize).collect::<Vec<_>>(), true),
    }
}
