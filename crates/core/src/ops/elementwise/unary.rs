//! Functions of one operand without attributes.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use dtensor_layout::{
    ReduceOp,
    rule::{
        Law::{self, Decreasing, Increasing, Joint, Linear},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};

use super::zero;
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, AboveOne, Integer, Positive, Signed, Truth, Unit},
        one,
    },
};

/// Rows `Type method [laws] values;`, and before the end `, keeps WHAT |backward, grad| gradient` for those that have one,
/// or [`zero`]. The values are what the samples have.
macro_rules! unary {
    ($($(#[$doc:meta])* $Op:ident $name:ident [$($law:expr),*] $values:expr
        $(, keeps $keep:ident |$backward:ident, $grad:ident| $gradient:expr)?;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op;

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    Ok(Rule::of("... -> ...", &laws_for(operands, &[$($law),*])))
                }

                #[inline]
                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name())
                }

                $(
                    fn keeps(&self) -> Option<Keep> {
                        Some(Keep::$keep)
                    }

                    fn gradient(&self, $backward: &Backward<'_>) -> Result<Grads> {
                        let $grad = $backward.grad()?;
                        $backward.each_or_none(|_| $gradient.map(Into::into))
                    }
                )?
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Result<DTensor> {
                    call_one(&$Op, &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord {
                name: stringify!($name),
                samples: || samples($values, || $Op),
            },
        )*];
    };
}

unary! {
    /// Minus the value.
    Neg neg [Linear, Decreasing] Signed, keeps NOTHING |backward, grad| grad.neg();
    /// Magnitude.
    Abs abs [Joint(ReduceOp::Product)] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.sign()?);
    /// -1, 0 or 1.
    Sign sign [Joint(ReduceOp::Product)] Signed, keeps NOTHING |backward, _grad| zero();
    /// The value times itself.
    Square square [Joint(ReduceOp::Product)] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.mul(2.0)?);
    /// Exponential, base e.
    Exp exp [Increasing] Signed, keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?);
    /// Exponential, base 2.
    Exp2 exp2 [Increasing] Signed,
        keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?.mul(LN_2)?);
    /// `exp(x) - 1`, exact near zero.
    Expm1 expm1 [Increasing] Signed,
        keeps RESULTS |backward, grad| grad.addcmul(&grad, &backward.result(0)?, 1.0);
    // Not increasing: what ranks hold of a pending maximum may be outside of the domain.
    /// Natural logarithm.
    Log log [] Positive, keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?);
    /// Logarithm, base 2.
    Log2 log2 [] Positive, keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?.mul(LN_2)?);
    /// Logarithm, base 10.
    Log10 log10 [] Positive,
        keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?.mul(LN_10)?);
    /// `log(1 + x)`, exact near zero.
    Log1p log1p [] Positive, keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?.add(1.0)?);
    /// Square root.
    Sqrt sqrt [] Positive, keeps RESULTS |backward, grad| grad.div(&backward.result(0)?.mul(2.0)?);
    /// One over the square root.
    Rsqrt rsqrt [] Positive,
        keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?.pow(3.0)?.mul(-0.5)?);
    /// One over the value.
    Reciprocal reciprocal [Joint(ReduceOp::Product)] Signed,
        keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?.square()?.neg()?);
    /// Sine.
    Sin sin [] Signed, keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.cos()?);
    /// Cosine.
    Cos cos [] Signed, keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.sin()?.neg()?);
    /// Tangent.
    Tan tan [] Unit,
        keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?.square()?.add(1.0)?);
    /// Inverse sine.
    Asin asin [] Unit,
        keeps OPERANDS |backward, grad| grad.mul(&one_less_square(&backward.operand(0)?)?.rsqrt()?);
    /// Inverse cosine.
    Acos acos [] Unit,
        keeps OPERANDS |backward, grad| grad.mul(&one_less_square(&backward.operand(0)?)?.rsqrt()?.neg()?);
    /// Inverse tangent.
    Atan atan [Increasing] Signed,
        keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?.square()?.add(1.0)?);
    /// Hyperbolic sine.
    Sinh sinh [Increasing] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.cosh()?);
    /// Hyperbolic cosine.
    Cosh cosh [] Signed, keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.sinh()?);
    /// Hyperbolic tangent.
    Tanh tanh [Increasing] Signed,
        keeps RESULTS |backward, grad| backward.result(0)?.tanh_backward(&grad);
    /// Inverse hyperbolic sine.
    Asinh asinh [Increasing] Signed,
        keeps OPERANDS |backward, grad| grad.div(&backward.operand(0)?.hypot(1.0)?);
    /// Inverse hyperbolic cosine.
    Acosh acosh [] AboveOne,
        keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.square()?.sub(1.0)?.rsqrt()?);
    /// Inverse hyperbolic tangent.
    Atanh atanh [] Unit,
        keeps OPERANDS |backward, grad| grad.div(&one_less_square(&backward.operand(0)?)?);
    /// Error function.
    Erf erf [Increasing] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&bell(&backward.operand(0)?, FRAC_2_SQRT_PI)?);
    /// One minus the error function.
    Erfc erfc [Decreasing] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&bell(&backward.operand(0)?, -FRAC_2_SQRT_PI)?);
    /// `1 / (1 + exp(-x))`.
    Sigmoid sigmoid [Increasing] Signed,
        keeps RESULTS |backward, grad| backward.result(0)?.sigmoid_backward(&grad);
    /// `x sigmoid(x)`.
    Silu silu [] Signed, keeps OPERANDS |backward, grad| backward.operand(0)?.silu_backward(&grad);
    /// `x` times the normal distribution function of `x`.
    Gelu gelu [] Signed, keeps OPERANDS |backward, grad| backward.operand(0)?.gelu_backward(&grad);
    /// [`gelu`](DTensor::gelu) by way of a hyperbolic tangent.
    GeluTanh gelu_tanh [] Signed,
        keeps OPERANDS |backward, grad| backward.operand(0)?.gelu_tanh_backward(&grad);
    /// The value, or 0 if that is larger.
    Relu relu [Increasing] Signed,
        keeps RESULTS |backward, grad| backward.result(0)?.relu_backward(&grad);
    /// `log(1 + exp(x))`.
    Softplus softplus [Increasing] Signed,
        keeps OPERANDS |backward, grad| grad.mul(&backward.operand(0)?.sigmoid()?);
    /// `x tanh(softplus(x))`.
    Mish mish [] Signed, keeps OPERANDS |backward, grad| {
        // With t = tanh(softplus(x)): t + x sigmoid(x) (1 - t^2).
        let x = backward.operand(0)?.settled()?;
        let t = x.softplus()?.tanh()?;
        grad.mul(&t.add(&t.tanh_backward(&x.silu()?)?)?)
    };
    /// `x relu6(x + 3) / 6`.
    Hardswish hardswish [] Signed, keeps OPERANDS |backward, grad| {
        let x = backward.operand(0)?.settled()?;
        let slope = x.mul(1.0 / 3.0)?.add(0.5)?.masked_fill(&x.le(-3.0)?, 0.0)?;
        grad.mul(&slope.masked_fill(&x.ge(3.0)?, 1.0)?)
    };
    /// Nearest integer below or equal.
    Floor floor [Increasing] Signed, keeps NOTHING |backward, _grad| zero();
    /// Nearest integer above or equal.
    Ceil ceil [Increasing] Signed, keeps NOTHING |backward, _grad| zero();
    /// Nearest integer, ties to even.
    Round round [Increasing] Signed, keeps NOTHING |backward, _grad| zero();
    /// Integer part.
    Trunc trunc [Increasing] Signed, keeps NOTHING |backward, _grad| zero();
    /// What [`trunc`](DTensor::trunc) leaves.
    Frac frac [] Signed, keeps NOTHING |backward, grad| Ok(grad.clone());
    /// Whether the value is zero.
    LogicalNot logical_not [] Truth;
    /// The bits that an integer has not.
    BitwiseNot bitwise_not [] Integer;
    /// Whether the value is not a number.
    Isnan isnan [] Signed;
    /// Whether the value is an infinity.
    Isinf isinf [] Signed;
    /// Whether the value is a number and not an infinity.
    Isfinite isfinite [] Signed;
}

/// The laws that hold for these dtypes. What ascends for real numbers does not where integers wrap around.
pub(super) fn laws_for(operands: &[Meta], laws: &[Law]) -> Vec<Law> {
    let real = operands.iter().all(|operand| operand.dtype.is_float());
    let monotone = |law: &Law| {
        matches!(
            law,
            Increasing | Decreasing | Law::IncreasingIn(_) | Law::DecreasingIn(_) | Joint(_)
        )
    };
    laws.iter().filter(|law| real || !monotone(law)).copied().collect()
}

/// `1 - x^2`.
fn one_less_square(x: &DTensor) -> Result<DTensor> {
    x.square()?.neg()?.add(1.0)
}

/// `height exp(-x^2)`.
fn bell(x: &DTensor, height: f64) -> Result<DTensor> {
    x.square()?.neg()?.exp()?.mul(height)
}

fn samples<O: Op>(values: SampleValues, op: fn() -> O) -> Vec<Sample> {
    let shapes: [&[usize]; 3] = [&[5, 2], &[1, 3], &[]];
    shapes.iter().map(|shape| Sample::new(op(), &[*shape]).with(0, values)).collect()
}
