//! Second derivatives of normalisations: the gradients of what computes their gradients.

use super::{moments::Normalization, steps::wide};
use crate::{
    DTensor, Result,
    op::{Backward, Grads},
};

/// The operands of an operation that computes the gradients of a normalisation.
pub(super) struct FirstOrder {
    pub(super) of: Normalization,
    pub(super) x: DTensor,
    pub(super) grad: DTensor,
    pub(super) weight: Option<DTensor>,
    /// Mean and variance, where they are operands.
    pub(super) given: Option<[DTensor; 2]>,
    /// Whether the moments are constants of the normalisation.
    pub(super) is_eval: bool,
}

/// Gradients of these operands.
pub(super) struct SecondOrder {
    pub(super) x: DTensor,
    pub(super) grad: DTensor,
    pub(super) weight: Option<DTensor>,
    /// Of mean and variance, where they are operands.
    pub(super) given: Option<[DTensor; 2]>,
}

impl FirstOrder {
    /// Those of the operands in the order input, gradient, mean and variance, weight.
    pub(super) fn gradient(self, backward: &Backward<'_>) -> Result<Grads> {
        let n_results = if self.of.is_centered { 3 } else { 2 };
        let of_results = (0..n_results).map(|number| match backward.has_grad(number) {
            true => backward.grad_of(number).map(Some),
            false => Ok(None),
        });
        let found = self.second_order(&of_results.collect::<Result<Vec<_>>>()?)?;
        let all = [found.x, found.grad].into_iter();
        let all = all.chain(found.given.into_iter().flatten()).chain(found.weight);
        let all: Vec<DTensor> = all.collect();
        backward.each(|operand| Ok(all[operand].clone()))
    }

    /// From the gradients of the results, which are those of input, weight and bias.
    fn second_order(&self, of_results: &[Option<DTensor>]) -> Result<SecondOrder> {
        if let Some(groups) = self.of.groups {
            return self.by_groups(groups, of_results);
        }
        let of = &self.of;
        let dtype = wide(self.x.dtype());
        let (x, grad) = (self.x.to_dtype(dtype)?, self.grad.to_dtype(dtype)?);
        let dims = |dims: &[usize]| dims.iter().map(|dim| dim.cast_signed()).collect::<Vec<_>>();
        let over = dims(&of.over);
        let sum = |x: &DTensor| if over.is_empty() { Ok(x.clone()) } else { x.sum(&over, true) };
        let mean = |x: &DTensor| sum(x)?.div(of.count as f64);
        // What has the dims of the weight, to stand beside the input.
        let mut affine = vec![1; x.n_dims()];
        of.affine.iter().for_each(|dim| affine[*dim] = x.shape()[*dim].cast_signed());
        let beside = |affine_x: &DTensor| affine_x.to_dtype(dtype)?.reshape(&affine);

        let [center, var] = match &self.given {
            Some([mean, var]) => [Some(beside(mean)?), Some(beside(var)?)],
            None if of.is_centered => [Some(mean(&x)?), None],
            None => [None, None],
        };
        let centered = center.map_or(Ok(x.clone()), |center| x.sub(&center))?;
        let var = var.map_or_else(|| mean(&centered.mul(&centered)?), Ok)?;
        let scale = var.add(of.eps.0)?.rsqrt()?;
        let normal = centered.mul(&scale)?;
        let weight = self.weight.as_ref().map(beside).transpose()?;
        let weighted = |x: &DTensor| weight.as_ref().map_or(Ok(x.clone()), |weight| x.mul(weight));
        // What is left of a gradient without what the moments take away.
        let project = |x: &DTensor| {
            if self.is_eval {
                return Ok(x.clone());
            }
            let left = x.sub(&normal.mul(&mean(&x.mul(&normal)?)?)?)?;
            if of.is_centered { left.sub(&mean(x)?) } else { Ok(left) }
        };
        let of_weighted = weighted(&grad)?;

        let mut second = SecondOrder {
            x: x.zeros_like()?,
            grad: grad.settled()?.zeros_like()?,
            weight: None,
            given: None,
        };
        let mut of_normal = second.x.clone();
        let mut of_scale = var.zeros_like()?;
        if let Some(of_x) = &of_results[0] {
            let of_x = of_x.to_dtype(dtype)?;
            let projected = project(&of_x)?.mul(&scale)?;
            second.grad = weighted(&projected)?;
            if let Some(weight) = &self.weight {
                let others: Vec<usize> =
                    (0..x.n_dims()).filter(|dim| !of.affine.contains(dim)).collect();
                let terms = grad.mul(&projected)?;
                let sums =
                    if others.is_empty() { terms } else { terms.sum(&dims(&others), false)? };
                let shape: Vec<isize> = weight.shape().iter().map(|s| s.cast_signed()).collect();
                second.weight = Some(sums.reshape(&shape)?);
            }
            of_scale = sum(&of_x.mul(&project(&of_weighted)?)?)?;
            if !self.is_eval {
                let along = mean(&of_weighted.mul(&normal)?)?;
                let other = mean(&of_x.mul(&normal)?)?;
                let terms = of_x.mul(&along)?.add(&of_weighted.mul(&other)?)?;
                of_normal = terms.mul(&scale)?.neg()?;
            }
        } else if let Some(weight) = &self.weight {
            second.weight = Some(weight.settled()?.zeros_like()?);
        }
        if let Some(of_weight) = &of_results[1] {
            let of_weight = beside(of_weight)?;
            second.grad = second.grad.add(&normal.mul(&of_weight)?)?;
            of_normal = of_normal.add(&grad.mul(&of_weight)?)?;
        }
        if let Some(Some(of_bias)) = of_results.get(2) {
            second.grad = second.grad.add(&beside(of_bias)?)?;
        }

        second.x = of_normal.mul(&scale)?;
        let of_var = sum(&of_normal.mul(&centered)?)?.add(&of_scale)?;
        let of_var = of_var.mul(&scale.mul(&scale)?.mul(&scale)?)?.mul(-0.5)?;
        let of_mean = sum(&second.x)?.neg()?;
        match &self.given {
            Some([mean, _]) => {
                let shape: Vec<isize> = mean.shape().iter().map(|s| s.cast_signed()).collect();
                second.given = Some([of_mean.reshape(&shape)?, of_var.reshape(&shape)?]);
            }
            None => {
                // The moments are means, of the values and of the squared deviations.
                let n = of.count as f64;
                second.x = second.x.add(&centered.mul(&of_var.mul(2.0 / n)?)?)?;
                if of.is_centered {
                    second.x = second.x.add(&of_mean.div(n)?)?;
                }
            }
        }
        Ok(second)
    }

    /// With the groups of channels in a dim of their own.
    fn by_groups(&self, groups: usize, of_results: &[Option<DTensor>]) -> Result<SecondOrder> {
        let shape: Vec<isize> = self.x.shape().iter().map(|size| size.cast_signed()).collect();
        let mut split = shape.clone();
        split[1] /= groups.max(1).cast_signed();
        split.insert(1, groups.cast_signed());
        let of = Normalization {
            over: (2..split.len()).collect(),
            affine: [1, 2].into_iter().collect(),
            groups: None,
            ..self.of.clone()
        };
        let (x, grad) = (self.x.reshape(&split)?, self.grad.reshape(&split)?);
        let weight = self.weight.clone();
        let inner = FirstOrder { of, x, grad, weight, given: None, is_eval: self.is_eval };
        let mut of_results = of_results.to_vec();
        of_results[0] = of_results[0].as_ref().map(|of_x| of_x.reshape(&split)).transpose()?;
        let found = inner.second_order(&of_results)?;
        let (x, grad) = (found.x.reshape(&shape)?, found.grad.reshape(&shape)?);
        Ok(SecondOrder { x, grad, ..found })
    }
}
