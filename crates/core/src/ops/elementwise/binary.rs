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

use super::unary::laws_for;
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
/// those that have gradients.
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
                        $backward.each(|$operand| $gradient)
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
                        $scalar_backward.first(|| $scalar_gradient)
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
        keeps NOTHING |backward, grad, _number| Ok(grad);
    /// Difference.
    Sub SubScalar sub sub_scalar [Linear, Affine, IncreasingIn(0), DecreasingIn(1)]
        |_number| &[Affine, Increasing], Signed;
    /// Product; of bools, *and*.
    Mul MulScalar mul mul_scalar [Multilinear, Joint(ReduceOp::Product)] |number| scaling(number), Signed,
        keeps OTHERS |backward, grad, operand| grad.mul(&backward.operand(1 - operand)?),
        keeps NOTHING |backward, grad, number| grad.mul(number);
    /// Quotient.
    Div DivScalar div div_scalar [LinearIn(0), Joint(ReduceOp::Product)] |number| scaling(1.0 / number), Signed;
    /// The larger.
    Maximum MaximumScalar maximum maximum_scalar [Increasing, Joint(ReduceOp::Max)]
        |_number| &[Increasing], Signed;
    /// The smaller.
    Minimum MinimumScalar minimum minimum_scalar [Increasing, Joint(ReduceOp::Min)]
        |_number| &[Increasing], Signed;
    /// Quotient rounded towards minus infinity. Of integers by zero it is an error, on every rank.
    FloorDiv FloorDivScalar floor_div floor_div_scalar [] |_number| &[], Signed;
    /// Remainder with the sign of the divisor. Of integers by zero it is an error, on every rank.
    Rem RemScalar rem rem_scalar [] |_number| &[], Signed;
    /// Remainder with the sign of the dividend. Of integers by zero it is an error, on every rank.
    Fmod FmodScalar fmod fmod_scalar [] |_number| &[], Signed;
    /// Power.
    Pow PowScalar pow pow_scalar [] |_number| &[], SampleValues::Positive;
    /// The angle of the point (`other`, `self`).
    Atan2 Atan2Scalar atan2 atan2_scalar [] |_number| &[], Signed;
    /// Length of the hypotenuse.
    Hypot HypotScalar hypot hypot_scalar [] |_number| &[], Signed;
    /// The logarithm of the sum of the exponentials.
    Logaddexp LogaddexpScalar logaddexp logaddexp_scalar [Increasing] |_number| &[Increasing], Signed;
    /// The magnitude of the first with the sign of the second.
    Copysign CopysignScalar copysign copysign_scalar [] |_number| &[], Signed;
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
