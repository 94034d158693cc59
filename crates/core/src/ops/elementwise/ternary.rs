//! Operations on three operands, and on two with a number.

use dtensor_layout::rule::{
    Law::{self, Affine, DecreasingIn, Increasing, IncreasingIn, Linear, MovesIn},
    Rule,
};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::unary::laws_for;
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Positive, Truth},
        Value, one,
    },
};

/// Defines an operation `Type(attributes) name |operands, self| rule, |x, self| kernel, keeps WHAT,
/// |backward, self, grad, operand| gradient;`.
macro_rules! operations {
    ($($(#[$doc:meta])* $Op:ident($($attribute:ty)?) $name:literal
        |$operands:ident, $own:ident| $rule:expr, |$x:ident, $of:ident| $kernel:expr,
        keeps $keep:expr, |$backward:ident, $of_op:ident, $grad:ident, $operand:ident| $gradient:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $Op($($attribute)?);

        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn rule(&self, $operands: &[Meta]) -> Result<Rule> {
                let $own = self;
                $rule
            }

            fn eval(&self, $x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                let $of = self;
                one($kernel)
            }

            fn keeps(&self) -> Option<Keep> {
                Some($keep)
            }

            fn gradient(&self, $backward: &Backward<'_>) -> Result<Grads> {
                let ($of_op, $grad) = (self, $backward.grad()?);
                $backward.each(|$operand| $gradient)
            }
        }
    )*};
}

operations! {
    // Whatever is pending, it is so at the same place. A whole operand beside it is the mean, the largest and
    // the smallest of itself, not the sum.
    WhereSelf() "where_self" |_operands, _own| Ok(Rule::of(
        "..., ..., ... -> ...; R P(sum) P(sum) -> P(sum); R P(avg) P(avg) -> P(avg); \
         R P(max) P(max) -> P(max); R P(min) P(min) -> P(min); \
         R P(product) P(product) -> P(product); R P(avg) R -> P(avg); R R P(avg) -> P(avg)",
        &[IncreasingIn(1), IncreasingIn(2)],
    )), |x, _of| x[0].where_self(x[1], x[2]),
        keeps Keep::operands(&[0]), |backward, _of, grad, operand| {
            let mask = backward.operand(0)?;
            grad.masked_fill(&if operand == 1 { mask.logical_not()? } else { mask }, 0.0)
        };

    MaskedFill(Value) "masked_fill" |_operands, own| Ok(match own.0.0.to_f64() {
        0.0 => Rule::of("..., ... -> ...", &[MovesIn(0)]),
        _ => Rule::of("..., ... -> ...; P(avg) R -> P(avg)", &[IncreasingIn(0)]),
    }), |x, of| x[0].masked_fill(x[1], of.0.0),
        keeps Keep::operands(&[1]), |backward, _of, grad, _operand| {
            grad.masked_fill(&backward.operand(1)?, 0.0)
        };

    // The smaller of the last and of the larger of the first two: the larger commutes with a maximum of both,
    // the smaller with a minimum of both, and either ascends in one.
    ClampTensor() "clamp_tensor" |operands, _own| real(
        "..., ..., ... -> ...",
        "P(max) P(max) R -> P(max); P(min) R P(min) -> P(min); R P(min) P(min) -> P(min)",
        operands,
        &[Increasing],
    ), |x, _of| x[0].clamp_tensor(x[1], x[2]),
        keeps Keep::OPERANDS, |backward, _of, grad, operand| {
            let whole = |operand| backward.operand(operand)?.settled();
            let (x, min, max) = (whole(0)?, whole(1)?, whole(2)?);
            let is_it = match operand {
                // At a bound it is still the value that passes.
                0 => x.ge(&min)?.logical_and(&x.le(&max)?)?,
                1 => x.lt(&min)?.logical_and(&min.lt(&max)?)?,
                _ => x.gt(&max)?.logical_or(&max.lt(&min)?)?,
            };
            grad.masked_fill(&is_it.logical_not()?, 0.0)
        };

    Lerp(Value) "lerp" |operands, own| {
        let laws = weighted(own.0.0.to_f64());
        Ok(Rule::of("..., ... -> ...", &laws_for(operands, &laws)))
    }, |x, of| x[0].lerp(x[1], of.0.0),
        keeps Keep::NOTHING, |backward, of, grad, operand| {
            let weight = of.0.0.to_f64();
            grad.mul(if operand == 0 { 1.0 - weight } else { weight })
        };

    // Linear in both ends together, and up to a constant in the weight.
    LerpTensor() "lerp_tensor" |_operands, _own| Ok(Rule::of(
        "..., ..., ... -> ...; P(sum) P(sum) R -> P(sum); P(avg) P(avg) R -> P(avg)",
        &[Affine],
    )), |x, _of| x[0].lerp_tensor(x[1], x[2]),
        keeps Keep::OPERANDS, |backward, _of, grad, operand| match operand {
            0 => grad.addcmul(&grad, &backward.operand(2)?, -1.0),
            1 => grad.mul(&backward.operand(2)?),
            _ => grad.mul(&backward.operand(1)?.sub(&backward.operand(0)?)?),
        };

    // Linear in the first together with a factor.
    Addcmul(Value) "addcmul" |operands, own| finite(
        own.0,
        "..., ..., ... -> ...",
        "P(sum) P(sum) R -> P(sum); P(sum) R P(sum) -> P(sum); \
         P(avg) P(avg) R -> P(avg); P(avg) R P(avg) -> P(avg)",
        &laws_for(operands, &[Affine, IncreasingIn(0)]),
    ), |x, of| x[0].addcmul(x[1], x[2], of.0.0),
        keeps Keep::operands(&[1, 2]), |backward, of, grad, operand| match operand {
            0 => Ok(grad.clone()),
            _ => grad.mul(&backward.operand(3 - operand)?)?.mul(of.0.0),
        };

    // Linear in the first together with the numerator.
    Addcdiv(Value) "addcdiv" |operands, own| finite(
        own.0,
        "..., ..., ... -> ...",
        "P(sum) P(sum) R -> P(sum); P(avg) P(avg) R -> P(avg); \
         P(avg) R R -> P(avg); R P(avg) R -> P(avg)",
        &laws_for(operands, &[IncreasingIn(0)]),
    ), |x, of| x[0].addcdiv(x[1], x[2], of.0.0),
        keeps Keep::operands(&[1, 2]), |backward, of, grad, operand| {
            let (b, value) = (backward.operand(2)?.settled()?, of.0.0.to_f64());
            match operand {
                0 => Ok(grad.clone()),
                1 => grad.mul(value)?.div(&b),
                _ => grad.mul(&backward.operand(1)?.div(&b)?)?.div(&b)?.mul(-value),
            }
        };
}

/// Rows and laws that hold for real numbers alone.
fn real(letters: &str, rows: &str, operands: &[Meta], laws: &[Law]) -> Result<Rule> {
    let is_real = operands.iter().all(|operand| operand.dtype.is_float());
    Ok(match is_real {
        true => Rule::of(&format!("{letters}; {rows}"), laws),
        false => Rule::of(letters, &[]),
    })
}

/// Rows and laws that hold for a finite factor: another makes contributions such that their sum is not what
/// it should be.
fn finite(factor: Value, letters: &str, rows: &str, laws: &[Law]) -> Result<Rule> {
    Ok(match factor.0.to_f64().is_finite() {
        true => Rule::of(&format!("{letters}; {rows}"), laws),
        false => Rule::of(letters, &[]),
    })
}

/// The laws of `(1 - weight) a + weight b`.
fn weighted(weight: f64) -> Vec<Law> {
    if !weight.is_finite() {
        return Vec::new();
    }
    let of_first = if weight <= 1.0 { IncreasingIn(0) } else { DecreasingIn(0) };
    let of_second = if weight >= 0.0 { IncreasingIn(1) } else { DecreasingIn(1) };
    vec![Linear, Affine, of_first, of_second]
}

impl DTensor {
    /// `a` where the tensor, of `bool`, is true, else `b`. All three are broadcast.
    pub fn where_self(&self, a: &DTensor, b: &DTensor) -> Result<DTensor> {
        call_one(&WhereSelf(), &[self, a, b])
    }

    /// The values, but `value` where the mask, of `bool`, is true. The dtype stays.
    pub fn masked_fill(&self, mask: &DTensor, value: impl Into<Scalar>) -> Result<DTensor> {
        call_one(&MaskedFill(Value(value.into())), &[self, mask])
    }

    /// As [`clamp`](DTensor::clamp), with bounds that are tensors.
    pub fn clamp_tensor(&self, min: &DTensor, max: &DTensor) -> Result<DTensor> {
        call_one(&ClampTensor(), &[self, min, max])
    }

    /// `self + weight * (end - self)`: linear interpolation.
    pub fn lerp(&self, end: &DTensor, weight: impl Into<Scalar>) -> Result<DTensor> {
        call_one(&Lerp(Value(weight.into())), &[self, end])
    }

    /// As [`lerp`](DTensor::lerp), with a weight for every element.
    pub fn lerp_tensor(&self, end: &DTensor, weight: &DTensor) -> Result<DTensor> {
        call_one(&LerpTensor(), &[self, end, weight])
    }

    /// `self + value * a * b`.
    pub fn addcmul(&self, a: &DTensor, b: &DTensor, value: impl Into<Scalar>) -> Result<DTensor> {
        call_one(&Addcmul(Value(value.into())), &[self, a, b])
    }

    /// `self + value * a / b`, a float.
    pub fn addcdiv(&self, a: &DTensor, b: &DTensor, value: impl Into<Scalar>) -> Result<DTensor> {
        call_one(&Addcdiv(Value(value.into())), &[self, a, b])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "where_self",
        samples: || {
            vec![
                Sample::new(WhereSelf(), &[&[4, 3], &[4, 3], &[4, 3]]).with(0, Truth),
                Sample::new(WhereSelf(), &[&[5, 1], &[3], &[5, 3]]).with(0, Truth),
            ]
        },
    },
    OpRecord {
        name: "masked_fill",
        samples: || {
            let op = |value: f64| MaskedFill(Value(value.into()));
            vec![
                Sample::new(op(1.5), &[&[4, 3], &[4, 3]]).with(1, Truth),
                Sample::new(op(0.0), &[&[5, 3], &[5, 1]]).with(1, Truth),
            ]
        },
    },
    OpRecord {
        name: "clamp_tensor",
        samples: || {
            vec![
                Sample::new(ClampTensor(), &[&[4, 3], &[4, 3], &[4, 3]]),
                Sample::new(ClampTensor(), &[&[5, 3], &[3], &[5, 1]]),
            ]
        },
    },
    OpRecord {
        name: "lerp",
        samples: || {
            let op = |weight: f64| Lerp(Value(weight.into()));
            vec![
                Sample::new(op(0.3), &[&[4, 3], &[4, 3]]),
                Sample::new(op(1.5), &[&[5, 3], &[3]]),
                Sample::new(op(-0.5), &[&[5, 1], &[5, 2]]),
            ]
        },
    },
    OpRecord {
        name: "lerp_tensor",
        samples: || {
            vec![
                Sample::new(LerpTensor(), &[&[4, 3], &[4, 3], &[4, 3]]),
                Sample::new(LerpTensor(), &[&[5, 3], &[3], &[5, 1]]),
            ]
        },
    },
    OpRecord {
        name: "addcmul",
        samples: || {
            let op = |value: f64| Addcmul(Value(value.into()));
            vec![
                Sample::new(op(-0.5), &[&[4, 3], &[4, 3], &[4, 3]]),
                Sample::new(op(2.0), &[&[5, 3], &[3], &[5, 1]]),
            ]
        },
    },
    OpRecord {
        name: "addcdiv",
        samples: || {
            let op = |value: f64| Addcdiv(Value(value.into()));
            vec![
                Sample::new(op(-0.5), &[&[4, 3], &[4, 3], &[4, 3]]).with(2, Positive),
                Sample::new(op(2.0), &[&[5, 3], &[3], &[5, 1]]).with(2, Positive),
            ]
        },
    },
];
