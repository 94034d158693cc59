//! Operations on two tensors, or on a tensor and a number.

use dtensor_layout::{
    ReduceOp,
    rule::{
        Law::{
            self, Affine, DecreasingIn, Increasing, IncreasingIn, Joint, Linear, LinearIn,
            Multilinear,
        },
        Rule,
    },
};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::{unary::laws_for, zero};
use crate::{
    DTensor, Operand, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, Integer, Signed},
        Value, one,
    },
};

/// Rows `Type WithNumber method kernel_with_number [laws] |number| [laws] values;`, and before the end
/// `, keeps WHAT |backward, grad, operand| gradient, keeps WHAT |backward, grad, number| gradient` for the two forms of
/// those that have gradients, or [`zero`].
macro_rules! binary {
    ($($(#[$doc:meta])* $Op:ident $OpScalar:ident $name:ident $scalar:ident
        [$($law:expr),*] |$number:ident| $scalar_laws:expr, $values:expr
        $(, keeps $keep:ident |$backward:ident, $grad:ident, $operand:ident| $gradient:expr,
            keeps $scalar_keep:ident |$scalar_backward:ident, $scalar_grad:ident, $scalar_number:ident|
            $scalar_gradient:expr)?;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op;

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    Ok(Rule::of("..., ... -> ...", &laws_for(operands, &[$($law),*])))
                }

                #[inline]
                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name(x[1]))
                }

                $(
                    fn keeps(&self) -> Option<Keep> {
                        Some(Keep::$keep)
                    }

                    fn gradient(&self, $backward: &Backward<'_>) -> Result<Grads> {
                        let $grad = $backward.grad()?;
                        $backward.each_or_none(|$operand| $gradient.map(Into::into))
                    }
                )?

                fn may_refuse(&self, operand: usize, operands: &[Meta]) -> bool {
                    operand == 1 && divides_integers(self.name(), operands)
                }
            }

            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $OpScalar(Value);

            impl Op for $OpScalar {
                fn name(&self) -> &'static str {
                    stringify!($scalar)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    let $number = self.0.0.to_f64();
                    let laws: &[Law] = $scalar_laws;
                    Ok(Rule::of("... -> ...", &laws_for(operands, laws)))
                }

                #[inline]
                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$scalar(self.0.0))
                }

                $(
                    fn keeps(&self) -> Option<Keep> {
                        Some(Keep::$scalar_keep)
                    }

                    fn gradient(&self, $scalar_backward: &Backward<'_>) -> Result<Grads> {
                        let ($scalar_grad, $scalar_number) = ($scalar_backward.grad()?, self.0.0);
                        $scalar_backward.each_or_none(|_| $scalar_gradient.map(Into::into))
                    }
                )?
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                ///
                /// The second operand is a tensor, broadcast, or a number.
                pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<DTensor> {
                    match other.into().beside(stringify!($name), self)? {
                        Ok(other) => call_one(&$Op, &[self, &other]),
                        Err(number) => call_one(&$OpScalar(Value(number)), &[self]),
                    }
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || samples($values, || $Op) },
            OpRecord {
                name: stringify!($scalar),
                samples: || scalar_samples($values, |number| $OpScalar(Value(number))),
            },
        )*];
    };
}

binary! {
    /// Sum; of bools, *or*.
    Add AddScalar add add_scalar [Linear, Affine, Increasing] |_number| &[Affine, Increasing], Signed,
        keeps NOTHING |backward, grad, _operand| Ok(grad.clone()),
        keeps NOTHING |backward, grad, _number| Ok(grad.clone());
    /// Difference.
    Sub SubScalar sub sub_scalar [Linear, Affine, IncreasingIn(0), DecreasingIn(1)]
        |_number| &[Affine, Increasing], Signed,
        keeps NOTHING |backward, grad, operand| if operand == 0 { Ok(grad.clone()) } else { grad.neg() },
        keeps NOTHING |backward, grad, _number| Ok(grad.clone());
    /// Product; of bools, *and*.
    Mul MulScalar mul mul_scalar [Multilinear, Joint(ReduceOp::Product)] |number| scaling(number), Signed,
        keeps OTHERS |backward, grad, operand| grad.mul(&backward.operand(1 - operand)?),
        keeps NOTHING |backward, grad, number| grad.mul(number);
    /// Quotient.
    Div DivScalar div div_scalar [LinearIn(0), Joint(ReduceOp::Product)] |number| scaling(1.0 / number), Signed,
        keeps OPERANDS |backward, grad, operand| {
            let divisor = backward.operand(1)?.settled()?;
            match operand {
                0 => grad.div(&divisor),
                _ => grad.mul(&backward.operand(0)?.div(&divisor)?)?.div(&divisor.neg()?),
            }
        },
        keeps NOTHING |backward, grad, number| grad.div(number);
    /// The larger.
    Maximum MaximumScalar maximum maximum_scalar [Increasing, Joint(ReduceOp::Max)]
        |_number| &[Increasing], Signed,
        keeps OPERANDS |backward, grad, operand| {
            let own = backward.operand(operand)?.settled()?;
            let other = backward.operand(1 - operand)?.settled()?;
            to_the_winner(&grad, &own.lt(&other)?, &own.eq(&other)?)
        },
        keeps OPERANDS |backward, grad, number| {
            let x = backward.operand(0)?.settled()?;
            to_the_winner(&grad, &x.lt(number)?, &x.eq(number)?)
        };
    /// The smaller.
    Minimum MinimumScalar minimum minimum_scalar [Increasing, Joint(ReduceOp::Min)]
        |_number| &[Increasing], Signed,
        keeps OPERANDS |backward, grad, operand| {
            let own = backward.operand(operand)?.settled()?;
            let other = backward.operand(1 - operand)?.settled()?;
            to_the_winner(&grad, &own.gt(&other)?, &own.eq(&other)?)
        },
        keeps OPERANDS |backward, grad, number| {
            let x = backward.operand(0)?.settled()?;
            to_the_winner(&grad, &x.gt(number)?, &x.eq(number)?)
        };
    /// Quotient rounded towards minus infinity. Of integers by zero it is an error, on every rank.
    FloorDiv FloorDivScalar floor_div floor_div_scalar [] |_number| &[], Signed,
        keeps NOTHING |backward, _grad, _operand| zero(),
        keeps NOTHING |backward, _grad, _number| zero();
    /// Remainder with the sign of the divisor. Of integers by zero it is an error, on every rank.
    Rem RemScalar rem rem_scalar [] |_number| &[], Signed,
        keeps OPERANDS |backward, grad, operand| match operand {
            0 => Ok(grad.clone()),
            _ => grad.mul(&backward.operand(0)?.floor_div(&backward.operand(1)?)?.neg()?),
        },
        keeps NOTHING |backward, grad, _number| Ok(grad.clone());
    /// Remainder with the sign of the dividend. Of integers by zero it is an error, on every rank.
    Fmod FmodScalar fmod fmod_scalar [] |_number| &[], Signed,
        keeps OPERANDS |backward, grad, operand| match operand {
            0 => Ok(grad.clone()),
            _ => grad.mul(&backward.operand(0)?.div(&backward.operand(1)?)?.trunc()?.neg()?),
        },
        keeps NOTHING |backward, grad, _number| Ok(grad.clone());
    /// Power.
    Pow PowScalar pow pow_scalar [] |_number| &[], SampleValues::Positive,
        keeps OPERANDS |backward, grad, operand| {
            let (base, exponent) = (backward.operand(0)?.settled()?, backward.operand(1)?.settled()?);
            match operand {
                // Of a constant, 1, whatever the base is: it might be 0.
                0 => {
                    let slope = base.pow(&exponent.sub(1.0)?)?.mul(&exponent)?;
                    grad.mul(&slope)?.masked_fill(&exponent.eq(0.0)?, 0.0)
                }
                // A power of 0 stays 0, though the logarithm is infinite.
                _ => {
                    let stays = base.eq(0.0)?.logical_and(&exponent.ge(0.0)?)?;
                    let slope = base.pow(&exponent)?.mul(&base.log()?)?;
                    grad.mul(&slope)?.masked_fill(&stays, 0.0)
                }
            }
        },
        keeps OPERANDS |backward, grad, number| match number.to_f64() {
            0.0 => Ok(None),
            number => grad.mul(&backward.operand(0)?.pow(number - 1.0)?.mul(number)?).map(Some),
        };
    /// The angle of the point (`other`, `self`).
    Atan2 Atan2Scalar atan2 atan2_scalar [] |_number| &[], Signed,
        keeps OPERANDS |backward, grad, operand| {
            let (y, x) = (backward.operand(0)?.settled()?, backward.operand(1)?.settled()?);
            let across = if operand == 0 { x.clone() } else { y.neg()? };
            grad.mul(&across.div(&y.square()?.addcmul(&x, &x, 1.0)?)?)
        },
        keeps OPERANDS |backward, grad, number| {
            let x = number.to_f64();
            grad.div(&backward.operand(0)?.square()?.add(x * x)?)?.mul(x)
        };
    /// Length of the hypotenuse.
    Hypot HypotScalar hypot hypot_scalar [] |_number| &[], Signed,
        keeps OPERANDS |backward, grad, operand| {
            let own = backward.operand(operand)?.settled()?;
            grad.mul(&own.div(&own.hypot(&backward.operand(1 - operand)?)?)?)
        },
        keeps OPERANDS |backward, grad, number| {
            let x = backward.operand(0)?.settled()?;
            grad.mul(&x.div(&x.hypot(number)?)?)
        };
    /// The logarithm of the sum of the exponentials.
    Logaddexp LogaddexpScalar logaddexp logaddexp_scalar [Increasing] |_number| &[Increasing], Signed,
        keeps OPERANDS |backward, grad, operand| {
            let (own, other) = (backward.operand(operand)?, backward.operand(1 - operand)?);
            grad.mul(&own.sub(&other)?.sigmoid()?)
        },
        keeps OPERANDS |backward, grad, number| {
            grad.mul(&backward.operand(0)?.sub(number)?.sigmoid()?)
        };
    /// The magnitude of the first with the sign of the second.
    Copysign CopysignScalar copysign copysign_scalar [] |_number| &[], Signed,
        keeps OPERANDS |backward, grad, operand| match operand {
            0 => {
                let sign = backward.operand(0)?.sign()?;
                grad.mul(&sign.mul(&sign.copysign(&backward.operand(1)?)?)?).map(Some)
            }
            _ => Ok(None),
        },
        keeps OPERANDS |backward, grad, number| {
            let sign = backward.operand(0)?.sign()?;
            grad.mul(&sign.mul(&sign.copysign(number)?)?)
        };
    /// Whether the values are equal.
    Eq EqScalar eq eq_scalar [] |_number| &[], Integer;
    /// Whether the values differ.
    Ne NeScalar ne ne_scalar [] |_number| &[], Integer;
    /// Whether the first is less.
    Lt LtScalar lt lt_scalar [] |_number| &[], Signed;
    /// Whether the first is less or equal.
    Le LeScalar le le_scalar [] |_number| &[], Signed;
    /// Whether the first is greater.
    Gt GtScalar gt gt_scalar [] |_number| &[], Signed;
    /// Whether the first is greater or equal.
    Ge GeScalar ge ge_scalar [] |_number| &[], Signed;
}

/// Whether there is no result where the second is zero.
fn divides_integers(op: &str, operands: &[Meta]) -> bool {
    matches!(op, "floor_div" | "rem" | "fmod")
        && !operands.iter().any(|operand| operand.dtype.is_float())
}

/// The gradient where the value was taken, half of it where both are equal, none elsewhere.
fn to_the_winner(grad: &DTensor, loses: &DTensor, ties: &DTensor) -> Result<DTensor> {
    ties.where_self(&grad.mul(0.5)?, grad)?.masked_fill(loses, 0.0)
}

/// Multiplication by a number. What is infinite or no number makes contributions such that their sum is not
/// what it should be.
fn scaling(factor: f64) -> &'static [Law] {
    match factor {
        factor if !factor.is_finite() => &[],
        factor if factor > 0.0 => &[Linear, Increasing],
        factor if factor < 0.0 => &[Linear, Law::Decreasing],
        _ => &[Linear],
    }
}

fn samples<O: Op>(values: SampleValues, op: fn() -> O) -> Vec<Sample> {
    let shapes: [[&[usize]; 2]; 3] = [[&[5, 2], &[5, 2]], [&[4, 3], &[3]], [&[4, 1], &[4, 3]]];
    let sample = |shapes: &[&[usize]; 2]| Sample::new(op(), shapes).with(0, values).with(1, values);
    shapes.iter().map(sample).collect()
}

fn scalar_samples<O: Op>(values: SampleValues, op: fn(Scalar) -> O) -> Vec<Sample> {
    let numbers = match values {
        SampleValues::Integer => [Scalar::Int(2), Scalar::Int(-3)],
        SampleValues::Positive => [Scalar::Float(1.5), Scalar::Float(2.0)],
        _ => [Scalar::Float(0.5), Scalar::Float(-3.0)],
    };
    numbers.into_iter().map(|number| Sample::new(op(number), &[&[5, 2]]).with(0, values)).collect()
}
