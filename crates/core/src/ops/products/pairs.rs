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
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// Rows `Type method letters [laws] [shapes of samples] |gradient, right| gradient of the left, |gradient, left| gradient
/// of the right;`.
macro_rules! pairs {
    ($($(#[$doc:meta])* $Op:ident $name:ident $letters:literal [$($law:expr),*]
        [$([$left:expr, $right:expr]),*]
        |$grad:ident, $b:ident| $of_left:expr, |$again:ident, $a:ident| $of_right:expr;)*) => {
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

                fn keeps(&self) -> Option<Keep> {
                    Some(Keep::OTHERS)
                }

                fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
                    let of_result = &backward.grad()?;
                    backward.each(|operand| match (operand, of_result, backward.operand(1 - operand)?) {
                        (0, $grad, $b) => $of_left,
                        (_, $again, $a) => $of_right,
                    })
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
    Mm mm "m k, k n -> m n" [Multilinear] [[[3, 4], [4, 6]], [[5, 2], [2, 3]]]
        |grad, b| grad.mm(&b.t()?), |grad, a| a.t()?.mm(grad);
    /// The products of two batches of matrices, `[b, m, k]` and `[b, k, n]`, without broadcasting.
    Bmm bmm "b m k, b k n -> b m n" [Multilinear] [[[2, 3, 4], [2, 4, 5]], [[3, 2, 5], [3, 5, 1]]]
        |grad, b| grad.bmm(&b.transpose(1, 2)?), |grad, a| a.transpose(1, 2)?.bmm(grad);
    /// The sum of the products of two vectors, without dims.
    Dot dot "k, k ->" [Multilinear] [[[5], [5]]]
        |grad, b| b.mul(grad), |grad, a| a.mul(grad);
    // A product of contributions on both sides is the product of their products.
    /// All products of an element of one vector and one of another: `[m]` and `[n]` give `[m, n]`.
    Outer outer "m, n -> m n" [Multilinear, Joint(ReduceOp::Product)] [[[5], [3]]]
        |grad, b| grad.matmul(&b), |grad, a| a.matmul(grad);
}
