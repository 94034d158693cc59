//! Matrices with zeros on one side of a diagonal.

use dtensor_layout::rule::{Law::Moves, Rule};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Triangle {
    side: Side,
    diagonal: isize,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Lower,
    Upper,
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        match self.side {
            Side::Lower => "tril",
            Side::Upper => "triu",
        }
    }

    /// A part has to know where it lies, and nothing else.
    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("... -> ...", &[Moves]))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let start = |from_end: usize| match (context.operand(0), x[0].n_dims()) {
            (Some(whole), n_dims) if n_dims >= 2 => {
                let dim = n_dims - from_end;
                context.operand_range(0, dim, whole.global_shape()[dim]).start
            }
            _ => 0,
        };
        let (row, column) = (start(2), start(1));
        let diagonal = self.diagonal.saturating_add_unsigned(row).saturating_sub_unsigned(column);
        one(match self.side {
            Side::Lower => x[0].tril(diagonal),
            Side::Upper => x[0].triu(diagonal),
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| call_one(self, &[&grad]))
    }

    fn needs_offsets(&self) -> bool {
        true
    }
}

impl DTensor {
    /// The last two dims as matrices, with zeros above a diagonal: `diagonal` 0 is the main one, 1 the next
    /// one to the right. Nothing is sent.
    pub fn tril(&self, diagonal: isize) -> Result<DTensor> {
        call_one(&Triangle { side: Side::Lower, diagonal }, &[self])
    }

    /// The last two dims as matrices, with zeros below a diagonal, as [`tril`](DTensor::tril) counts them.
    pub fn triu(&self, diagonal: isize) -> Result<DTensor> {
        call_one(&Triangle { side: Side::Upper, diagonal }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "tril", samples: || samples(Side::Lower) },
    OpRecord { name: "triu", samples: || samples(Side::Upper) },
];

fn samples(side: Side) -> Vec<Sample> {
    vec![
        Sample::new(Triangle { side, diagonal: 0 }, &[&[5, 4]]),
        Sample::new(Triangle { side, diagonal: 1 }, &[&[2, 3, 5]]),
        Sample::new(Triangle { side, diagonal: -2 }, &[&[5, 3]]),
    ]
}
