//! Products of two operands whose letters are the same for all shapes.

use dtensor_layout::{
    ReduceOp,
    rule::{
        Law::{Joint, Multilinear},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// Rows `Type method letters [laws] [shapes of samples];`.
macro_rules! pairs {
    ($($(#[$doc:meta])* $Op:ident $name:ident $letters:literal [$($law:expr),*]
        [$([$left:expr, $right:expr]),*];)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op;

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, _: &[Meta]) -> Result<Rule> {
                    Ok(Rule::of($letters, &[$($law),*]))
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
                samples: || vec![$(Sample::new($Op, &[&$left, &$right])),*],
            },
        )*];
    };
}

pairs! {
    /// The product of two matrices.
    Mm mm "m k, k n -> m n" [Multilinear] [[[3, 4], [4, 6]], [[5, 2], [2, 3]]];
    /// The products of two batches of matrices, `[b, m, k]` and `[b, k, n]`, without broadcasting.
    Bmm bmm "b m k, b k n -> b m n" [Multilinear] [[[2, 3, 4], [2, 4, 5]], [[3, 2, 5], [3, 5, 1]]];
    /// The sum of the products of two vectors, without dims.
    Dot dot "k, k ->" [Multilinear] [[[5], [5]]];
    // A product of contributions on both sides is the product of their products.
    /// All products of an element of one vector and one of another: `[m]` and `[n]` give `[m, n]`.
    Outer outer "m, n -> m n" [Multilinear, Joint(ReduceOp::Product)] [[[5], [3]]];
}
