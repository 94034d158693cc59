//! Gradients of activation functions, each in one pass, and the gradients of those.

use dtensor_layout::rule::{Law::LinearIn, Rule};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, Signed, Unit},
        one,
    },
};

/// Rows `Type method of function where "what the tensor is", values, |x, grad| second;`. The last is the gradient of
/// the gradient with respect to `x`, without the factor that arrives from above.
macro_rules! backward {
    ($($Op:ident $name:ident of $function:ident where $is:literal, $values:expr,
        |$x:ident, $grad:ident| $second:expr;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op;

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, _: &[Meta]) -> Result<Rule> {
                    Ok(Rule::of("..., ... -> ...", &[LinearIn(1)]))
                }

                #[inline]
                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name(x[1]))
                }

                fn keeps(&self) -> Option<Keep> {
                    Some(Keep::OPERANDS)
                }

                fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
                    let (above, $x, $grad) =
                        (backward.grad()?, backward.operand(0)?, backward.operand(1)?);
                    backward.each_or_none(|operand| match operand {
                        1 => $x.$name(&above).map(Some),
                        _ => {
                            let second: Option<DTensor> = $second;
                            second.map(|second| above.mul(&second)).transpose()
                        }
                    })
                }
            }
        )*

        impl DTensor {
            $(
                #[doc = concat!("The gradient of [`", stringify!($function), "`](DTensor::", stringify!($function), ")")]
                #[doc = concat!("with respect to its operand, where `self` is ", $is, " and `grad` the gradient of the result.")]
                pub fn $name(&self, grad: &DTensor) -> Result<DTensor> {
                    call_one(&$Op, &[self, grad])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || samples($values, || $Op) },
        )*];
    };
}

backward! {
    // Its slope is 0 or 1, and does not change but at 0.
    ReluBackward relu_backward of relu where "that operand or its result", Signed, |_x, _grad| None;
    TanhBackward tanh_backward of tanh where "its result", Unit, |y, grad| Some(grad.mul(&y.mul(-2.0)?)?);
    SigmoidBackward sigmoid_backward of sigmoid where "its result", Unit,
        |y, grad| Some(grad.mul(&y.mul(-2.0)?.add(1.0)?)?);
    SiluBackward silu_backward of silu where "that operand", Signed, |x, grad| {
        // s (1 - s) (2 + x (1 - 2 s)), where s is the logistic function.
        let s = x.sigmoid()?;
        let factor = x.mul(&falling(&s)?)?.add(2.0)?;
        Some(grad.mul(&s.sigmoid_backward(&factor)?)?)
    };
    GeluBackward gelu_backward of gelu where "that operand", Signed, |x, grad| {
        // The density of the normal distribution times 2 - x^2.
        const FRAC_1_SQRT_TAU: f64 = 0.398_942_280_401_432_7;
        let square = x.square()?;
        let density = square.mul(-0.5)?.exp()?.mul(FRAC_1_SQRT_TAU)?;
        Some(grad.mul(&density)?.mul(&square.neg()?.add(2.0)?)?)
    };
    GeluTanhBackward gelu_tanh_backward of gelu_tanh where "that operand", Signed, |x, grad| {
        // s (1 - s) (2 u' + x u'' + x (1 - 2 s) u'^2), where s is the logistic function of u = a x (1 + b x^2).
        const A: f64 = 1.595_769_121_605_730_7;
        const B: f64 = 0.044_715;
        let square = x.square()?;
        let s = x.mul(&square.mul(A * B)?.add(A)?)?.sigmoid()?;
        let slope = square.mul(3.0 * A * B)?.add(A)?;
        let factor = x.mul(&falling(&s)?)?.mul(&slope.square()?)?;
        let factor = factor.add(&square.mul(12.0 * A * B)?)?.add(2.0 * A)?;
        Some(grad.mul(&s.sigmoid_backward(&factor)?)?)
    };
}

/// `1 - 2 s`.
fn falling(s: &DTensor) -> Result<DTensor> {
    s.mul(-2.0)?.add(1.0)
}

fn samples<O: Op>(values: SampleValues, op: fn() -> O) -> Vec<Sample> {
    let shapes: [[&[usize]; 2]; 2] = [[&[5, 2], &[5, 2]], [&[4, 3], &[3]]];
    shapes.iter().map(|shapes| Sample::new(op(), shapes).with(0, values)).collect()
}
