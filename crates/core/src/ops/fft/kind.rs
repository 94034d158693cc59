//! The four kinds of transforms, and their rule.

use dtensor_layout::{Placement, rule::Rule};
use dtensor_local::{Tensor, fft::Norm};

use super::shift::made;
use crate::{
    DTensor, Result,
    op::{Backward, Grads, Meta},
    ops::{
        letters::{letter, rule},
        movement::resized,
        reduce::normal_dims,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Complex to complex.
    Forward,
    /// Complex to complex.
    Inverse,
    /// Real to half of the spectrum.
    Real,
    /// Half of the spectrum to real.
    InverseReal,
}

impl Kind {
    /// The shape of an operand without the dim of real and imaginary part.
    pub(super) fn shape(self, operand: &Meta) -> &[usize] {
        match (self, operand.shape.split_last()) {
            (Kind::Real, _) | (_, None) => &operand.shape,
            (_, Some((_, shape))) => shape,
        }
    }

    /// The dims, counted from the first.
    pub(super) fn dims(
        self,
        op: &'static str,
        operand: &Meta,
        dims: &[isize],
    ) -> Result<Vec<usize>> {
        Ok(normal_dims(op, dims, self.shape(operand))?)
    }
}

/// The rule of a transform over these dims: they are whole, and it is linear.
pub(super) fn transform_rule(
    op: &'static str,
    kind: Kind,
    operand: &Meta,
    dims: &[usize],
) -> Result<Rule> {
    let n_dims = kind.shape(operand).len();
    let parts = letter(2 * n_dims) + "!";
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for dim in 0..n_dims {
        let is_whole = dims.contains(&dim);
        from.push(letter(dim) + if is_whole { "!" } else { "" });
        // A dim that is transformed may get another size, so it gets another letter.
        to.push(if is_whole { letter(n_dims + dim) + "!" } else { letter(dim) });
    }
    if kind != Kind::Real {
        from.push(parts.clone());
    }
    if kind != Kind::InverseReal {
        to.push(parts);
    }
    rule(op, &format!("{} -> {} | Linear", from.join(" "), to.join(" ")), &[])
}

/// The gradient of a transform over these dims, of which the last was brought to a size, if it was.
///
/// The parts of a complex number being two real ones, it is the transposed conjugate of the transform: the one in the
/// other direction, divided by what this one was divided by. What was cropped or filled up is so the other way round.
///
/// Half of a spectrum stands for all of it: the values between the first and the one in the middle, if there is one, for
/// two each. The inverse of the real transform counts them twice, but here they count once; the real transform counts
/// them once, but here they count twice.
pub(super) fn adjoint(
    backward: &Backward<'_>,
    kind: Kind,
    dims: &[usize],
    size: Option<usize>,
    norm: Norm,
) -> Result<Grads> {
    let grad = backward.grad()?;
    let norm = match norm {
        Norm::Backward => Norm::Forward,
        Norm::Ortho => Norm::Ortho,
        Norm::Forward => Norm::Backward,
    };
    let named: Vec<isize> = dims.iter().map(|dim| dim.cast_signed()).collect();
    let Some(last) = dims.last() else { return backward.first(|| Ok(grad)) };
    backward.first(|| {
        let back = match kind {
            Kind::Forward => grad.ifftn(None, Some(&named), norm)?,
            Kind::Inverse => grad.fftn(None, Some(&named), norm)?,
            Kind::Real => {
                let n = size.unwrap_or(backward.shape(0)[*last]);
                let sizes = dims.iter().map(|dim| if dim == last { n } else { grad.shape()[*dim] });
                let sizes: Vec<usize> = sizes.collect();
                let half = weighted(&grad, *last, n, 0.5)?;
                half.irfftn(Some(&sizes), Some(&named), norm)?
            }
            Kind::InverseReal => {
                let half = grad.rfftn(None, Some(&named), norm)?;
                weighted(&half, *last, grad.shape()[*last], 2.0)?
            }
        };
        resized(&back, backward.shape(0))
    })
}

/// Half of the spectrum of `n` real values, with a factor for all that stand for two.
fn weighted(half: &DTensor, dim: usize, n: usize, factor: f64) -> Result<DTensor> {
    let is_single = |at: usize| at == 0 || 2 * at == n;
    let size = half.shape()[dim];
    let weights = (0..size).map(|at| if is_single(at) { 1.0 } else { factor });
    let weights = Tensor::from_vec(weights.collect::<Vec<f64>>(), &[size])?;
    let whole = vec![Placement::Replicate; half.mesh().n_axes()];
    let weights = made("fft", weights.to_dtype(half.dtype())?, half.mesh(), &whole)?;
    let mut shape = vec![1; half.n_dims() - dim];
    shape[0] = -1;
    half.mul(&weights.reshape(&shape)?)
}
