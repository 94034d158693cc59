use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::{letter, rule},
};

/// The Kronecker product: every dim of the result is made of one of each operand, the first's outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kron;

impl Op for Kron {
    fn name(&self) -> &'static str {
        "kron"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims().max(operands[1].n_dims());
        let (mut left, mut right, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for dim in 0..n_dims {
            // The operand with fewer dims has none in front.
            let has = |operand: &Meta| dim + operand.n_dims() >= n_dims;
            let (a, b) = (letter(2 * dim), letter(2 * dim + 1));
            match (has(&operands[0]), has(&operands[1])) {
                (true, true) => result.push(format!("({a} {b})")),
                (true, false) => result.push(a.clone()),
                _ => result.push(b.clone()),
            }
            left.extend(has(&operands[0]).then_some(a));
            right.extend(has(&operands[1]).then_some(b));
        }
        let [left, right, result] = [left, right, result].map(|dims| dims.join(" "));
        rule("kron", &format!("{left}, {right} -> {result} | Multilinear, Joint(product)"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].kron(x[1]))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OTHERS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let n_dims = backward.shape(0).len().max(backward.shape(1).len());
        // Every dim of the result as the two that it is made of, of which those of the other operand are summed over.
        let (mut split, mut letters, mut names) =
            (Vec::new(), String::new(), [const { String::new() }; 2]);
        for dim in 0..n_dims {
            for (operand, name) in names.iter_mut().enumerate() {
                let shape = backward.shape(operand);
                if let Some(own) = (dim + shape.len()).checked_sub(n_dims) {
                    let letter = letter(2 * dim + operand);
                    split.push(shape[own].cast_signed());
                    letters += &letter;
                    *name += &letter;
                }
            }
        }
        let grad = backward.grad()?.reshape(&split)?;
        backward.each(|operand| {
            let (own, other) = (&names[operand], &names[1 - operand]);
            let equation = format!("{letters},{other}->{own}");
            DTensor::einsum(&equation, &[&grad, &backward.operand(1 - operand)?])
        })
    }
}

impl DTensor {
    /// Every element times all of another tensor, laid out as blocks. The tensor with fewer dims gets new ones
    /// in front.
    pub fn kron(&self, other: &DTensor) -> Result<DTensor> {
        call_one(&Kron, &[self, other])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "kron",
    samples: || {
        vec![
            Sample::new(Kron, &[&[4, 3], &[2, 2]]),
            Sample::new(Kron, &[&[3], &[4, 2]]),
            Sample::new(Kron, &[&[2, 3], &[5]]),
        ]
    },
}];
