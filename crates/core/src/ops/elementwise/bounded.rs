//! Functions of one operand with numbers as attributes.

use dtensor_layout::rule::{
    Law::{self, Increasing},
    Rule,
};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::unary::laws_for;
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues::Integer, Value, one,
    },
};

/// Rows `Type method(numbers) laws, [numbers of the samples], |x, grad| gradient;`.
macro_rules! with_numbers {
    ($($(#[$doc:meta])* $Op:ident $name:ident($($number:ident),+) $laws:expr,
        [$(($($sample:expr),+)),+], |$x:ident, $grad:ident| $gradient:expr;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op { $($number: Number),+ }

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    let $Op { $($number: Number($number)),+ } = *self;
                    let laws: &[Law] = $laws;
                    Ok(Rule::of("... -> ...", &laws_for(operands, laws)))
                }

                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name($(self.$number.0),+))
                }

                fn keeps(&self) -> Option<Keep> {
                    Some(Keep::OPERANDS)
                }

                fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
                    let $Op { $($number: Number($number)),+ } = *self;
                    let ($x, $grad) = (backward.operand(0)?.settled()?, backward.grad()?);
                    backward.first(|| $gradient)
                }
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, $($number: f64),+) -> Result<DTensor> {
                    call_one(&$Op { $($number: Number($number)),+ }, &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[
            $(OpRecord {
                name: stringify!($name),
                samples: || {
                    let op = |$($number),+| $Op { $($number: Number($number)),+ };
                    vec![$(Sample::new(op($($sample),+), &[&[5, 2]])),+]
                },
            },)*
            OpRecord { name: "clamp", samples: clamp_samples },
            OpRecord { name: "nan_to_num", samples: nan_to_num_samples },
        ];
    };
}

with_numbers! {
    /// The value if it is positive, else `slope` times the value.
    LeakyRelu leaky_relu(slope) rising(slope), [(0.1), (-0.5)],
        |x, grad| x.gt(0.0)?.where_self(&grad, &grad.mul(slope)?);
    /// The value if it is positive, else `alpha * (exp(x) - 1)`.
    Elu elu(alpha) rising(alpha), [(1.5), (-0.5)], |x, grad| {
        // Bounded, so that what is not taken is not infinite: times 0 it would be no number.
        let slope = x.clamp(None, Some(0.0.into()))?.exp()?.mul(alpha)?;
        x.gt(0.0)?.where_self(&grad, &grad.mul(&slope)?)
    };
    // At the bounds its gradient is 0, where that of `clamp` is 1: as in PyTorch.
    /// The value, at least `min` and at most `max`.
    Hardtanh hardtanh(min, max) { let _ = (min, max); &[Increasing] }, [(-1.0, 1.5), (1.0, -1.0)],
        |x, grad| grad.masked_fill(&x.le(min)?.logical_or(&x.ge(max)?)?, 0.0);
}

/// What a function that ascends above 0 is if below 0 it has this factor.
fn rising(factor: f64) -> &'static [Law] {
    if factor >= 0.0 && factor.is_finite() { &[Increasing] } else { &[] }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Clamp {
    min: Option<Value>,
    max: Option<Value>,
}

impl Op for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        // A NaN as a bound makes everything NaN, which does not descend either.
        Ok(Rule::of("... -> ...", &laws_for(operands, &[Increasing])))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].clamp(self.min.map(|min| min.0), self.max.map(|max| max.0)))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let x = backward.operand(0)?.settled()?;
        // Not the negations, which a NaN would pass.
        let above = self.min.map(|min| x.ge(min.0)).transpose()?;
        let below = self.max.map(|max| x.le(max.0)).transpose()?;
        let inside = match (above, below) {
            (Some(above), Some(below)) => above.logical_and(&below)?,
            (Some(inside), None) | (None, Some(inside)) => inside,
            (None, None) => return backward.first(|| backward.grad()),
        };
        backward.first(|| backward.grad()?.masked_fill(&inside.logical_not()?, 0.0))
    }
}

fn clamp_samples() -> Vec<Sample> {
    let op = |min: Option<f64>, max: Option<f64>| {
        let value = |number| Value(Scalar::Float(number));
        Clamp { min: min.map(value), max: max.map(value) }
    };
    let whole = Clamp { min: Some(Value(Scalar::Int(-3))), max: None };
    vec![
        Sample::new(op(Some(-1.0), Some(1.5)), &[&[5, 2]]),
        Sample::new(op(None, Some(0.5)), &[&[5, 2]]),
        Sample::new(whole, &[&[5, 2]]).with(0, Integer),
    ]
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NanToNum {
    nan: Number,
    positive: Option<Number>,
    negative: Option<Number>,
}

impl Op for NanToNum {
    fn name(&self) -> &'static str {
        "nan_to_num"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        // Not increasing: of a NaN and a number the larger is NaN, which becomes any number.
        Ok(Rule::of("... -> ...", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let number = |number: Option<Number>| number.map(|number| number.0);
        one(x[0].nan_to_num(self.nan.0, number(self.positive), number(self.negative)))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let replaced = backward.operand(0)?.isfinite()?.logical_not()?;
        backward.first(|| backward.grad()?.masked_fill(&replaced, 0.0))
    }
}

fn nan_to_num_samples() -> Vec<Sample> {
    let op = NanToNum { nan: Number(1.0), positive: None, negative: Some(Number(-2.0)) };
    vec![Sample::new(op, &[&[5, 2]])]
}

impl DTensor {
    /// The value, at least `min` and at most `max` (`max` if they cross); NaN stays.
    pub fn clamp(&self, min: Option<Scalar>, max: Option<Scalar>) -> Result<DTensor> {
        call_one(&Clamp { min: min.map(Value), max: max.map(Value) }, &[self])
    }

    /// NaN replaced by `nan` and the infinities by `positive` and `negative`; where those are `None`, by the
    /// largest and the smallest finite number of the dtype.
    pub fn nan_to_num(
        &self,
        nan: f64,
        positive: Option<f64>,
        negative: Option<f64>,
    ) -> Result<DTensor> {
        let (positive, negative) = (positive.map(Number), negative.map(Number));
        call_one(&NanToNum { nan: Number(nan), positive, negative }, &[self])
    }
}
