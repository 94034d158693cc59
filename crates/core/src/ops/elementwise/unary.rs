//! Functions of one operand without attributes.

use dtensor_layout::{
    ReduceOp,
    rule::{
        Law::{self, Decreasing, Increasing, Joint, Linear},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, AboveOne, Integer, Positive, Signed, Truth, Unit},
        one,
    },
};

/// Rows `Type method [laws] values;`, and before the end `, keeps WHAT |backward, grad| gradient` for those that have one.
/// The values are what the samples have.
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
                        $backward.first(|| $gradient)
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
    Abs abs [Joint(ReduceOp::Product)] Signed;
    /// -1, 0 or 1.
    Sign sign [Joint(ReduceOp::Product)] Signed;
    /// The value times itself.
    Square square [Joint(ReduceOp::Product)] Signed;
    /// Exponential, base e.
    Exp exp [Increasing] Signed, keeps RESULTS |backward, grad| grad.mul(&backward.result(0)?);
    /// Exponential, base 2.
    Exp2 exp2 [Increasing] Signed;
    /// `exp(x) - 1`, exact near zero.
    Expm1 expm1 [Increasing] Signed;
    // Not increasing: what ranks hold of a pending maximum may be outside of the domain.
    /// Natural logarithm.
    Log log [] Positive;
    /// Logarithm, base 2.
    Log2 log2 [] Positive;
    /// Logarithm, base 10.
    Log10 log10 [] Positive;
    /// `log(1 + x)`, exact near zero.
    Log1p log1p [] Positive;
    /// Square root.
    Sqrt sqrt [] Positive;
    /// One over the square root.
    Rsqrt rsqrt [] Positive;
    /// One over the value.
    Reciprocal reciprocal [Joint(ReduceOp::Product)] Signed;
    /// Sine.
    Sin sin [] Signed;
    /// Cosine.
    Cos cos [] Signed;
    /// Tangent.
    Tan tan [] Signed;
    /// Inverse sine.
    Asin asin [] Unit;
    /// Inverse cosine.
    Acos acos [] Unit;
    /// Inverse tangent.
    Atan atan [Increasing] Signed;
    /// Hyperbolic sine.
    Sinh sinh [Increasing] Signed;
    /// Hyperbolic cosine.
    Cosh cosh [] Signed;
    /// Hyperbolic tangent.
    Tanh tanh [Increasing] Signed;
    /// Inverse hyperbolic sine.
    Asinh asinh [Increasing] Signed;
    /// Inverse hyperbolic cosine.
    Acosh acosh [] AboveOne;
    /// Inverse hyperbolic tangent.
    Atanh atanh [] Unit;
    /// Error function.
    Erf erf [Increasing] Signed;
    /// One minus the error function.
    Erfc erfc [Decreasing] Signed;
    /// `1 / (1 + exp(-x))`.
    Sigmoid sigmoid [Increasing] Signed;
    /// `x sigmoid(x)`.
    Silu silu [] Signed;
    /// `x` times the normal distribution function of `x`.
    Gelu gelu [] Signed;
    /// [`gelu`](DTensor::gelu) by way of a hyperbolic tangent.
    GeluTanh gelu_tanh [] Signed;
    /// The value, or 0 if that is larger.
    Relu relu [Increasing] Signed;
    /// `log(1 + exp(x))`.
    Softplus softplus [Increasing] Signed;
    /// `x tanh(softplus(x))`.
    Mish mish [] Signed;
    /// `x relu6(x + 3) / 6`.
    Hardswish hardswish [] Signed;
    /// Nearest integer below or equal.
    Floor floor [Increasing] Signed;
    /// Nearest integer above or equal.
    Ceil ceil [Increasing] Signed;
    /// Nearest integer, ties to even.
    Round round [Increasing] Signed;
    /// Integer part.
    Trunc trunc [Increasing] Signed;
    /// What [`trunc`](DTensor::trunc) leaves.
    Frac frac [] Signed;
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

fn samples<O: Op>(values: SampleValues, op: fn() -> O) -> Vec<Sample> {
    let shapes: [&[usize]; 3] = [&[5, 2], &[1, 3], &[]];
    shapes.iter().map(|shape| Sample::new(op(), &[*shape]).with(0, values)).collect()
}
