//! Reductions of which the parts are reduced as the elements are.

use dtensor_layout::{
    DType, ReduceOp,
    rule::{
        Law::{self, Joint, Linear},
        Rule,
    },
};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::over::Over;
use crate::{
    DTensor, Error, Result,
    autograd::is_grad_enabled,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, Index, Signed},
        one,
    },
};

/// Rows `Type method by reduction |dtype| laws, value of nothing, values;`. The value is for kernels that
/// have none: what a rank contributes that holds no elements while others do. `, keeps WHAT, |backward, over, grad|
/// gradient` where there is one.
macro_rules! folds {
    ($($(#[$doc:meta])* $Op:ident $name:ident by $by:ident |$dtype:ident| $laws:expr, $nothing:expr,
        $values:expr $(, keeps $keep:expr, |$backward:ident, $over:ident, $grad:ident| $gradient:expr)?;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op(Over);

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    let $dtype = operands[0].dtype;
                    let laws: &[Law] = $laws;
                    let rule = self.0.rule(self.name(), &operands[0], ReduceOp::$by)?;
                    rule.with_laws(laws).map_err(Error::rule(self.name()))
                }

                fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
                    let nothing: Option<fn(DType) -> Scalar> = $nothing;
                    if let Some(nothing) = nothing
                        && let (0, 1..) = self.0.counts(self.name(), x[0], context)?
                    {
                        return one(self.0.filled(x[0], nothing(x[0].dtype())));
                    }
                    one(x[0].$name(&self.0.dims, self.0.keep_dims))
                }

                $(
                    fn keeps(&self) -> Option<Keep> {
                        Some($keep)
                    }

                    fn gradient(&self, $backward: &Backward<'_>) -> Result<Grads> {
                        let ($over, $grad) = (&self.0, $backward.grad()?);
                        $backward.first(|| $gradient)
                    }
                )?
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
                    call_one(&$Op(Over::new(dims, keep_dims)), &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || samples($values, $Op) },
        )*];
    };
}

folds! {
    /// The sum over these dims, or over all if the list is empty. Integers and bools give `i64`.
    Sum sum by Sum |_dtype| &[Linear], None, Signed,
        keeps Keep::NOTHING, |backward, over, grad| over.spread("sum", &grad, backward.shape(0));
    /// The product over these dims, or over all if the list is empty. Integers and bools give `i64`.
    Prod prod by Product |_dtype| &[Joint(ReduceOp::Product)], None, Signed,
        keeps Keep::OPERANDS, |backward, over, grad| of_others(&backward.operand(0)?, over, &grad);
    /// The largest value over these dims, or over all if the list is empty; NaN if there is one.
    Amax amax by Max |_dtype| &[Joint(ReduceOp::Max)], Some(lowest), Signed,
        keeps Keep::OPERANDS.and(Keep::RESULTS), |backward, over, grad| {
            to_equals("amax", &backward.operand(0)?, &backward.result(0)?, over, &grad)
        };
    /// The smallest value over these dims, or over all if the list is empty; NaN if there is one.
    Amin amin by Min |_dtype| &[Joint(ReduceOp::Min)], Some(highest), Signed,
        keeps Keep::OPERANDS.and(Keep::RESULTS), |backward, over, grad| {
            to_equals("amin", &backward.operand(0)?, &backward.result(0)?, over, &grad)
        };
    // Of bools, a pending maximum is an *or*. Of numbers it may be 0 though no contribution is.
    /// Whether any element is not 0, over these dims or over all if the list is empty.
    Any any by Max |dtype| of_bools(dtype, &[Joint(ReduceOp::Max)]), None, Index(2);
    /// Whether no element is 0, over these dims or over all if the list is empty.
    All all by Min |dtype| of_bools(dtype, &[Joint(ReduceOp::Min)]), None, Index(2);
    /// How many elements are not 0, over these dims or over all if the list is empty, as `i64`.
    CountNonzero count_nonzero by Sum |_dtype| &[], None, Index(2);
}

/// The gradient of a product: times the product of the other elements. A zero among the elements is left out of the
/// products, by which one could not divide then, and counted.
fn of_others(x: &DTensor, over: &Over, grad: &DTensor) -> Result<DTensor> {
    let x = x.settled()?;
    let grad = over.kept("prod", grad, x.shape())?;
    let is_zero = x.eq(0.0)?;
    let factors = x.masked_fill(&is_zero, 1.0)?;
    let others = grad.mul(&factors.prod(&over.dims, true)?.div(&factors)?)?;
    let n_zeros = is_zero.sum(&over.dims, true)?.sub(&is_zero)?;
    if !is_grad_enabled() {
        return others.masked_fill(&n_zeros.ne(0)?, 0.0);
    }
    // If one of the others is 0, it is itself a factor, with a gradient of its own: written as the sum of those that are.
    let zeros = x.masked_fill(&is_zero.logical_not()?, 0.0)?;
    let zero = zeros.sum(&over.dims, true)?.sub(&zeros)?;
    let left_out = zero.masked_fill(&n_zeros.eq(0)?, 1.0)?.masked_fill(&n_zeros.gt(1)?, 0.0)?;
    others.mul(&left_out)
}

/// The gradient of an extreme: in equal parts to all elements that are equal to it.
pub(super) fn to_equals(
    op: &'static str,
    x: &DTensor,
    extreme: &DTensor,
    over: &Over,
    grad: &DTensor,
) -> Result<DTensor> {
    let is_it = x.eq(&over.kept(op, extreme, x.shape())?)?;
    let grad = over.kept(op, grad, x.shape())?;
    // Of nothing but a NaN, which equals none, it is NaN as in PyTorch.
    grad.div(&is_it.sum(&over.dims, true)?)?.mul(&is_it)
}

/// Not above any value of the dtype.
pub(super) fn lowest(dtype: DType) -> Scalar {
    match dtype {
        DType::I64 => Scalar::Int(i64::MIN),
        DType::I32 => Scalar::Int(i64::from(i32::MIN)),
        DType::U8 => Scalar::Int(0),
        DType::Bool => Scalar::Bool(false),
        _ => Scalar::Float(f64::NEG_INFINITY),
    }
}

/// Not below any value of the dtype.
pub(super) fn highest(dtype: DType) -> Scalar {
    match dtype {
        DType::I64 => Scalar::Int(i64::MAX),
        DType::I32 => Scalar::Int(i64::from(i32::MAX)),
        DType::U8 => Scalar::Int(i64::from(u8::MAX)),
        DType::Bool => Scalar::Bool(true),
        _ => Scalar::Float(f64::INFINITY),
    }
}

fn of_bools(dtype: DType, laws: &'static [Law]) -> &'static [Law] {
    if dtype == DType::Bool { laws } else { &[] }
}

fn samples<O: Op>(values: SampleValues, op: fn(Over) -> O) -> Vec<Sample> {
    let cases: [(&[isize], bool, &[usize]); 5] = [
        (&[1], false, &[4, 3]),
        (&[0, -1], true, &[3, 2, 5]),
        (&[], false, &[4, 3]),
        (&[-2], true, &[5, 3]),
        (&[0], false, &[]),
    ];
    let sample = |(dims, keep_dims, shape): (&[isize], bool, &[usize])| {
        Sample::new(op(Over::new(dims, keep_dims)), &[shape]).with(0, values)
    };
    cases.into_iter().map(sample).collect()
}
