//! Variance and standard deviation.
//!
//! Over dims that are cut, two small reductions: the mean, and of the deviations from it the sum and the sum
//! of squares. The first of these is not 0, because the mean was rounded; that it is known makes the
//! variance as exact as that of one device, also where the mean is large beside the deviations.

use dtensor_layout::{DType, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{mean::pending_mean, over::Over};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::{letter, rule},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Variance,
    Deviation,
}

/// `var` or `std`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Spread {
    kind: Kind,
    over: Over,
    correction: usize,
}

/// Of a tensor and a number near its mean, as `f64`: the sum of squared deviations from that number, and the
/// sum of deviations, one after the other in a new first dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deviations(Over);

/// The result from those sums, over this many elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FromDeviations {
    kind: Kind,
    n: usize,
    correction: usize,
    dtype: DType,
}

impl Op for Spread {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Variance => "var",
            Kind::Deviation => "std",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.over.rule_of_whole_dims(self.name(), &operands[0])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let Over { dims, keep_dims } = &self.over;
        one(match self.kind {
            Kind::Variance => x[0].var(dims, self.correction, *keep_dims),
            Kind::Deviation => x[0].std(dims, self.correction, *keep_dims),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.over.is_cut(self.name(), operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled()?;
        let near = pending_mean(&x, &self.over)?.settled()?;
        let sums = call_one(&Deviations(self.over.clone()), &[&x, &near])?.settled()?;
        let dims = self.over.dims_of(self.name(), x.shape())?;
        let finish = FromDeviations {
            kind: self.kind,
            n: dims.iter().map(|dim| x.shape()[*dim]).product(),
            correction: self.correction,
            dtype: x.dtype(),
        };
        Ok(smallvec![call_one(&finish, &[&sums])?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(match self.kind {
            Kind::Variance => Keep::OPERANDS,
            Kind::Deviation => Keep::OPERANDS.and(Keep::RESULTS),
        })
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, grad) = (backward.operand(0)?.settled()?, backward.grad()?);
        let grad = match self.kind {
            Kind::Variance => grad.mul(2.0)?,
            // Of values that are all equal it is 0, as in PyTorch.
            Kind::Deviation => {
                let result = backward.result(0)?;
                grad.div(&result)?.masked_fill(&result.eq(0.0)?, 0.0)?
            }
        };
        let n = self.over.count(self.name(), x.shape())?;
        let grad = grad.div(n.saturating_sub(self.correction) as f64)?;
        let grad = self.over.kept(self.name(), &grad, x.shape())?;
        backward.first(|| grad.mul(&x.sub(&x.mean(&self.over.dims, true)?)?))
    }
}

impl Op for Deviations {
    fn name(&self) -> &'static str {
        "var"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let letters = self.0.letters("var", &operands[0], "")?;
        // A letter that no dim has: there are as many as dims.
        let new = letter(operands[0].n_dims());
        let result = &letters.result;
        rule("var", &format!("{}, {result} -> {new}! {result}", letters.operand), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (held, _) = self.0.counts("var", x[0], context)?;
        let Over { dims, keep_dims } = &self.0;
        let sums = match held {
            0 => [x[1].zeros_like()?, x[1].zeros_like()?],
            _ => {
                // Small floats would round the deviations.
                let small = !matches!(x[0].dtype(), DType::F32 | DType::F64);
                let wide = |x: &Tensor| if small { x.to_dtype(DType::F32) } else { Ok(x.clone()) };
                let (values, near) = (wide(x[0])?, wide(x[1])?);
                let near = self.0.beside("var", &near, &values)?;
                let double = |x: Tensor| x.to_dtype(DType::F64);
                let off = double(values.sub(&near)?.mean(dims, *keep_dims)?)?;
                let square = double(values.var(dims, 0, *keep_dims)?)?.add(&off.square()?)?;
                [square.mul_scalar(held as f64)?, off.mul_scalar(held as f64)?]
            }
        };
        let [square, off] = [sums[0].to_dtype(DType::F64)?, sums[1].to_dtype(DType::F64)?];
        one(Tensor::stack(&[&square, &off], 0))
    }
}

impl Op for FromDeviations {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Variance => "var",
            Kind::Deviation => "std",
        }
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("s! ... -> ...", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let (squares, off) = (x[0].select(0, 0)?, x[0].select(0, 1)?);
        let squares = squares.sub(&off.square()?.div_scalar(self.n as f64)?)?;
        // Rounding may have left less than nothing; a NaN stays.
        let squares = squares.maximum_scalar(0.0)?;
        let variance = squares.div_scalar(self.n.saturating_sub(self.correction) as f64)?;
        let result = match self.kind {
            Kind::Variance => variance,
            Kind::Deviation => variance.sqrt()?,
        };
        one(result.to_dtype(self.dtype))
    }
}

impl DTensor {
    /// The variance over these dims, or over all if the list is empty: the sum of squared deviations from the
    /// mean, divided by the number of elements less `correction`. Of floats only.
    pub fn var(&self, dims: &[isize], correction: usize, keep_dims: bool) -> Result<DTensor> {
        let over = Over::new(dims, keep_dims);
        call_one(&Spread { kind: Kind::Variance, over, correction }, &[self])
    }

    /// The square root of [`var`](DTensor::var).
    pub fn std(&self, dims: &[isize], correction: usize, keep_dims: bool) -> Result<DTensor> {
        let over = Over::new(dims, keep_dims);
        call_one(&Spread { kind: Kind::Deviation, over, correction }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "var", samples: || samples(Kind::Variance) },
    OpRecord { name: "std", samples: || samples(Kind::Deviation) },
];

fn samples(kind: Kind) -> Vec<Sample> {
    let op = |dims: &[isize], correction, keep_dims| {
        let over = Over::new(dims, keep_dims);
        Spread { kind, over, correction }
    };
    vec![
        Sample::new(op(&[1], 1, false), &[&[4, 5]]),
        Sample::new(op(&[0, -1], 0, true), &[&[3, 2, 5]]),
        Sample::new(op(&[], 2, false), &[&[5, 3]]),
    ]
}
