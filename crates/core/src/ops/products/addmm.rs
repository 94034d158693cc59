use dtensor_layout::rule::{
    Law::{self, Affine, DecreasingIn, IncreasingIn},
    Rule,
};
use dtensor_local::{LocalError, Tensor};

use super::addend::adds;
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
    ops::letters::rule,
};

/// `beta * c + alpha * (a b)`.
///
/// Where the inner dim is cut, every rank has a share of the product, and one of them adds `c`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Addmm {
    beta: Number,
    alpha: Number,
}

impl Op for Addmm {
    fn name(&self) -> &'static str {
        "addmm"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        // What is added is broadcast to the product.
        let result = [operands[1].shape[0], operands[2].shape[1]];
        let added = &operands[0].shape;
        let letters =
            ["m", "n"].into_iter().zip(result).skip(2_usize.saturating_sub(added.len())).zip(added);
        let letters = letters.map(|((letter, size), own)| if *own == size { letter } else { "1" });
        let letters = letters.collect::<Vec<_>>().join(" ");
        let letters = format!("{letters}, m k, k n -> m n");
        if !self.beta.0.is_finite() || !self.alpha.0.is_finite() {
            return rule("addmm", &letters, &[]);
        }
        // As long as a factor is pending, so is the product, to which one rank adds what is added; or each its own.
        let rows = "R P(sum) R -> P(sum); R R P(sum) -> P(sum); \
                    P(sum) P(sum) R -> P(sum); P(sum) R P(sum) -> P(sum); \
                    P(avg) P(avg) R -> P(avg); P(avg) R P(avg) -> P(avg); \
                    P(sum) S(1) S(0) -> P(sum)";
        let monotone = if self.beta.0 >= 0.0 { IncreasingIn(0) } else { DecreasingIn(0) };
        let laws: &[Law] = match operands[0].dtype.is_float() {
            true => &[Affine, monotone],
            // Integers wrap around.
            false => &[Affine],
        };
        let rule = rule("addmm", &format!("{letters}; {rows}"), &[])?;
        rule.with_laws(laws).map_err(Error::rule("addmm"))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let beta = if adds(context, 0) { self.beta.0 } else { 0.0 };
        one(x[0].addmm(x[1], x[2], beta, self.alpha.0))
    }

    fn keeps(&self) -> Option<Keep> {
        // The gradient of what is added needs neither of the factors.
        Some(Keep::others_among(&[1, 2]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let scaled = |x: DTensor, factor: Number| match factor.0 {
            1.0 => Ok(x),
            factor => x.mul(factor),
        };
        backward.each(|operand| match operand {
            0 => scaled(grad.clone(), self.beta),
            1 => scaled(grad.mm(&backward.operand(2)?.t()?)?, self.alpha),
            _ => scaled(backward.operand(1)?.t()?.mm(&grad)?, self.alpha),
        })
    }
}

impl DTensor {
    /// `beta * self + alpha * (a b)` for two matrices; `self` is broadcast to the shape of the product.
    pub fn addmm(&self, a: &DTensor, b: &DTensor, beta: f64, alpha: f64) -> Result<DTensor> {
        call_one(&Addmm { beta: Number(beta), alpha: Number(alpha) }, &[self, a, b])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "addmm",
    samples: || {
        let op = |beta, alpha| Addmm { beta: Number(beta), alpha: Number(alpha) };
        vec![
            Sample::new(op(1.0, 1.0), &[&[3, 4], &[3, 2], &[2, 4]]),
            Sample::new(op(0.5, -2.0), &[&[5], &[3, 4], &[4, 5]]),
            Sample::new(op(1.0, 2.0), &[&[3, 1], &[3, 5], &[5, 2]]),
            Sample::new(op(0.0, 1.0), &[&[], &[3, 5], &[5, 2]]),
        ]
    },
}];
