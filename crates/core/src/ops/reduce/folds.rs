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
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{self, Index, Signed},
        one,
    },
};

/// Rows `Type method by reduction |dtype| laws, value of nothing, values;`. The value is for kernels that
/// have none: what a rank contributes that holds no elements while others do. `, keeps WHAT |backward, over, grad|
/// gradient` where there is one.
macro_rules! folds {
    ($($(#[$doc:meta])* $Op:ident $name:ident by $by:ident |$dtype:ident| $laws:expr, $nothing:expr,
        $values:expr $(, keeps $keep:ident |$backward:ident, $over:ident, $grad:ident| $gradient:expr)?;)*) => {
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
                        Some(Keep::$keep)
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
        keeps NOTHING |backward, over, grad| over.spread("sum", &grad, backward.shape(0));
    /// The product over these dims, or over all if the list is empty. Integers and bools give `i64`.
    Prod prod by Product |_dtype| &[Joint(ReduceOp::Product)], None, Signed;
    /// The largest value over these dims, or over all if the list is empty; NaN if there is one.
    Amax amax by Max |_dtype| &[Joint(ReduceOp::Max)], Some(lowest), Signed;
    /// The smallest value over these dims, or over all if the list is empty; NaN if there is one.
    Amin amin by Min |_dtype| &[Joint(ReduceOp::Min)], Some(highest), Signed;
    // Of bools, a pending maximum is an *or*. Of numbers it may be 0 though no contribution is.
    /// Whether any element is not 0, over these dims or over all if the list is empty.
    Any any by Max |dtype| of_bools(dtype, &[Joint(ReduceOp::Max)]), None, Index(2);
    /// Whether no element is 0, over these dims or over all if the list is empty.
    All all by Min |dtype| of_bools(dtype, &[Joint(ReduceOp::Min)]), None, Index(2);
    /// How many elements are not 0, over these dims or over all if the list is empty, as `i64`.
    CountNonzero count_nonzero by Sum |_dtype| &[], None, Index(2);
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
