use dtensor_layout::{DType, Layout, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Scalar, Tensor};
use smallvec::smallvec;

use super::{folds::to_equals, over::Over};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
};

/// The `p`-norm over dims.
///
/// The norms that are a sum, a largest or a smallest value are those of the norms of the parts. Of the
/// others the powers are added, and the root is drawn of the sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Norm {
    p: Number,
    over: Over,
}

/// The sum of the powers, as `f64`: beyond the range of small floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Powers(Norm);

/// The root of a sum of powers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Root {
    p: Number,
    dtype: DType,
}

/// From a sum of powers `p` the norm, of this dtype.
pub(in crate::ops) fn root(powers: &DTensor, p: f64, dtype: DType) -> Result<DTensor> {
    call_one(&Root { p: Number(p), dtype }, &[powers])
}

/// How the norms of parts are reduced to that of the whole, if they are.
pub(in crate::ops) fn reduction_of_norms(p: f64) -> Option<ReduceOp> {
    match p {
        f64::INFINITY => Some(ReduceOp::Max),
        f64::NEG_INFINITY => Some(ReduceOp::Min),
        0.0 | 1.0 => Some(ReduceOp::Sum),
        _ => None,
    }
}

impl Op for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        match reduction_of_norms(self.p.0) {
            Some(by) => self.over.rule("norm", &operands[0], by),
            None => self.over.rule_of_whole_dims("norm", &operands[0]),
        }
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // Magnitudes are not below 0.
        let nothing = if self.p.0 == f64::INFINITY { 0.0 } else { f64::INFINITY };
        match self.over.counts("norm", x[0], context)? {
            (0, 1..) if self.p.0.is_infinite() => one(self.over.filled(x[0], nothing)),
            _ => one(x[0].norm(self.p.0, &self.over.dims, self.over.keep_dims)),
        }
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        reduction_of_norms(self.p.0).is_none() && self.over.is_cut("norm", operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let powers = call_one(&Powers(self.clone()), operands)?.settled()?;
        Ok(smallvec![root(&powers, self.p.0, operands[0].dtype())?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(match self.p.0 {
            0.0 => Keep::NOTHING,
            1.0 => Keep::OPERANDS,
            _ => Keep::OPERANDS.and(Keep::RESULTS),
        })
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (p, grad) = (self.p.0, backward.grad()?);
        if p == 0.0 {
            return backward.each_or_none(|_| Ok(None));
        }
        let x = backward.operand(0)?.settled()?;
        let kept = |reduced: &DTensor| self.over.kept("norm", reduced, x.shape());
        if p == 1.0 {
            return backward.first(|| kept(&grad)?.mul(&x.sign()?));
        }
        let norm = backward.result(0)?.settled()?;
        if p.is_infinite() {
            let of_magnitude = || to_equals("norm", &x.abs()?, &norm, &self.over, &grad);
            return backward.first(|| of_magnitude()?.mul(&x.sign()?));
        }
        // x |x|^(p-2) / norm^(p-1); of zeros alone it is 0, as in PyTorch.
        let of_norm = norm.pow(1.0 - p)?.masked_fill(&norm.eq(0.0)?, 0.0)?;
        let grad = kept(&grad.mul(&of_norm)?)?;
        let powers = match p {
            2.0 => x,
            _ if p > 2.0 => x.mul(&x.abs()?.pow(p - 2.0)?)?,
            _ => {
                let powers = x.sign()?.mul(&x.abs()?.pow(p - 1.0)?)?;
                // Infinite there if p is below 1, times 0.
                if p < 1.0 { powers.masked_fill(&x.eq(0.0)?, 0.0)? } else { powers }
            }
        };
        backward.first(|| grad.mul(&powers))
    }
}

impl Op for Powers {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.0.over.rule("norm", &operands[0], ReduceOp::Sum)
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let Norm { p, over } = &self.0;
        let norm = match over.counts("norm", x[0], context)? {
            // Below 0 there is no norm of nothing, though the sum of its powers is.
            (0, 1..) => return one(over.filled(x[0], 0.0)?.to_dtype(DType::F64)),
            _ => x[0].norm(p.0, &over.dims, over.keep_dims)?,
        };
        one(norm.to_dtype(DType::F64)?.pow_scalar(Scalar::Float(p.0)))
    }
}

impl Op for Root {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("... -> ...", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].pow_scalar(Scalar::Float(1.0 / self.p.0))?.to_dtype(self.dtype))
    }
}

impl DTensor {
    /// The `p`-norm over these dims, or over all if the list is empty; of floats only. Infinite `p` give the
    /// largest and the smallest magnitude, 0 the number of elements that are not 0.
    pub fn norm(&self, p: f64, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
        call_one(&Norm { p: Number(p), over: Over::new(dims, keep_dims) }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "norm",
    samples: || {
        let op = |p, dims: &[isize], keep_dims| {
            let over = Over::new(dims, keep_dims);
            Norm { p: Number(p), over }
        };
        vec![
            Sample::new(op(2.0, &[1], false), &[&[4, 3]]),
            Sample::new(op(f64::INFINITY, &[0], true), &[&[5, 3]]),
            Sample::new(op(f64::NEG_INFINITY, &[0, -1], false), &[&[3, 2, 2]]),
            Sample::new(op(0.0, &[], false), &[&[5, 2]]),
            Sample::new(op(1.0, &[-1], true), &[&[5, 2]]),
            Sample::new(op(2.5, &[0], false), &[&[5, 2]]),
            Sample::new(op(-1.5, &[], true), &[&[5, 2]]),
        ]
    },
}];
