//! Logic and bits of two tensors.

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Index, Integer, Truth},
        one,
    },
};

/// Rows `Type method values;`.
macro_rules! logic {
    ($($(#[$doc:meta])* $Op:ident $name:ident $values:expr;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op;

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, _: &[Meta]) -> Result<Rule> {
                    Ok(Rule::of("..., ... -> ...", &[]))
                }

                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name(x[1]))
                }
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, other: &DTensor) -> Result<DTensor> {
                    call_one(&$Op, &[self, other])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord {
                name: stringify!($name),
                samples: || {
                    let sample = |shapes: &[&[usize]], values| {
                        Sample::new($Op, shapes).with(0, values).with(1, values)
                    };
                    vec![
                        sample(&[&[5, 2], &[5, 2]], $values),
                        sample(&[&[4, 1], &[4, 3]], Truth),
                    ]
                },
            },
        )*];
    };
}

logic! {
    /// Whether both are not zero.
    LogicalAnd logical_and Index(3);
    /// Whether one is not zero.
    LogicalOr logical_or Index(3);
    /// Whether exactly one is not zero.
    LogicalXor logical_xor Index(3);
    /// The bits that both integers have.
    BitwiseAnd bitwise_and Integer;
    /// The bits that one of two integers has.
    BitwiseOr bitwise_or Integer;
    /// The bits that exactly one of two integers has.
    BitwiseXor bitwise_xor Integer;
}
