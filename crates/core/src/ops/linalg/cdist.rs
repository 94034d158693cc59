use dtensor_layout::{DType, Layout, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Scalar, Tensor};
use smallvec::smallvec;

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
    ops::{
        letters::{cuts, rule},
        reduce::{reduction_of_norms, root},
    },
};

/// The distances between all pairs of rows. Rows may be cut; along them, it is a norm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cdist(Number);

/// The sums of the powers of differences, as `f64`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Powers(Number);

impl Op for Cdist {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        match reduction_of_norms(self.0.0) {
            Some(by) => letters(by),
            None => Ok(Rule::of("... m d!, ... n d! -> ... m n", &[])),
        }
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].cdist(x[1], self.0.0))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let mut widths = operands.iter().map(|layout| (layout, layout.n_dims().saturating_sub(1)));
        reduction_of_norms(self.0.0).is_none()
            && widths.any(|(layout, width)| cuts(layout, |dim| dim == width))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let powers = call_one(&Powers(self.0), operands)?;
        Ok(smallvec![root(&powers, self.0.0, operands[0].dtype())?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS.and(Keep::RESULTS))
    }

    /// As PyTorch: nothing comes from rows that are equal, and of the norm infinity all largest differences count.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (p, grad) = (self.0.0, backward.grad()?);
        let [x, y, distances] = [backward.operand(0)?, backward.operand(1)?, backward.result(0)?];
        let is_same = distances.eq(0.0)?;
        if p == 2.0 {
            // Two products, instead of the differences of all pairs.
            let weights = grad.div(&distances)?.masked_fill(&is_same, 0)?;
            return backward.each(|operand| match operand {
                0 => x.mul(&weights.sum(&[-1], true)?)?.sub(&weights.matmul(&y)?),
                _ => {
                    let weights = weights.transpose(-1, -2)?;
                    y.mul(&weights.sum(&[-1], true)?)?.sub(&weights.matmul(&x)?)
                }
            });
        }
        if p == 0.0 {
            return backward.each_or_none(|_| Ok(None));
        }
        let differences = x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?;
        let (signs, sizes) = (differences.sign()?, differences.abs()?);
        let terms = match p {
            1.0 => signs.mul(&grad.unsqueeze(-1)?)?,
            f64::INFINITY => {
                let is_largest = sizes.eq(&sizes.amax(&[-1], true)?)?.to_dtype(signs.dtype())?;
                signs.mul(&is_largest)?.mul(&grad.unsqueeze(-1)?)?
            }
            p => {
                let powers = sizes.pow(p - 1.0)?.masked_fill(&sizes.eq(0.0)?, 0)?;
                let weights = grad.mul(&distances.pow(1.0 - p)?)?.masked_fill(&is_same, 0)?;
                signs.mul(&powers)?.mul(&weights.unsqueeze(-1)?)?
            }
        };
        backward.each(|operand| match operand {
            0 => terms.sum(&[-2], false),
            _ => terms.sum(&[-3], false)?.neg(),
        })
    }
}

impl Op for Powers {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        letters(ReduceOp::Sum)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let distances = x[0].cdist(x[1], self.0.0)?;
        one(distances.to_dtype(DType::F64)?.pow_scalar(Scalar::Float(self.0.0)))
    }
}

fn letters(by: ReduceOp) -> Result<Rule> {
    rule("cdist", &format!("... m d, ... n d -> ... m n @{by}"), &[])
}

impl DTensor {
    /// The distances between every row of `self` and every row of `other`, as the norm `p` of their
    /// difference: `[.., m, d]` and `[.., n, d]` give `[.., m, n]`. The batch dims are broadcast.
    pub fn cdist(&self, other: &DTensor, p: f64) -> Result<DTensor> {
        call_one(&Cdist(Number(p)), &[self, other])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "cdist",
    samples: || {
        let sample = |p, shapes: &[&[usize]]| Sample::new(Cdist(Number(p)), shapes);
        vec![
            sample(2.0, &[&[4, 3], &[5, 3]]),
            sample(1.0, &[&[2, 3, 3], &[5, 3]]),
            sample(f64::INFINITY, &[&[4, 5], &[3, 5]]),
            sample(0.0, &[&[4, 3], &[2, 3]]),
            sample(2.5, &[&[4, 5], &[3, 5]]),
        ]
    },
}];
