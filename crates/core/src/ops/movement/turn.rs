//! Dims backwards, rotated and turned.

use dtensor_layout::{
    Layout,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::runs::Runs;
use crate::{
    DTensor, Result,
    dispatch::call_one,
    exchange::{Run, blank},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// A dim of which the elements come in another order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turn {
    how: How,
    dim: isize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    Flip,
    Roll(isize),
}

impl Turn {
    fn runs(&self, operand: &Meta) -> Result<Runs> {
        let dim = operand.dim(self.name(), self.dim)?;
        let size = operand.shape[dim];
        let shift = match self.how {
            _ if size < 2 => return Ok(Runs::still(operand)),
            How::Flip => {
                let backwards = Run { to: 0..size, from: size - 1, step: -1 };
                return Ok(Runs::still(operand).with(dim, [backwards]));
            }
            How::Roll(shift) => shift.rem_euclid(size as isize).unsigned_abs(),
        };
        let tail = Run { to: 0..shift, from: size - shift, step: 1 };
        let head = Run { to: shift..size, from: 0, step: 1 };
        Ok(Runs::still(operand).with(dim, [tail, head]))
    }
}

impl Op for Turn {
    fn name(&self) -> &'static str {
        match self.how {
            How::Flip => "flip",
            How::Roll(_) => "roll",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.runs(&operands[0])?.rule(self.name(), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // A part must not be turned where the whole comes back to where it was.
        if let Some(whole) = context.operand(0)
            && self.runs(&Meta::of_layout(whole)).is_ok_and(|runs| runs.are_still())
        {
            return one(Ok(x[0].clone()));
        }
        one(match self.how {
            How::Flip => x[0].flip(self.dim),
            How::Roll(shift) => x[0].roll(shift, self.dim),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.runs(&Meta::of_layout(operands[0])).is_ok_and(|runs| runs.cross(operands[0]))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0];
        let runs = self.runs(&Meta::of_layout(x.layout()))?;
        let into = |part: &[usize]| blank(x.mesh(), part, x.dtype());
        Ok(smallvec![runs.run(self.name(), x, x.shape(), into)?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let size = meta.shape[meta.dim(self.name(), self.dim)?].max(1);
        let how = match self.how {
            How::Flip => How::Flip,
            How::Roll(shift) => How::Roll(-(shift % size.cast_signed())),
        };
        backward.first(|| call_one(&Turn { how, dim: self.dim }, &[&grad]))
    }
}

impl DTensor {
    /// A dim in the opposite order.
    pub fn flip(&self, dim: isize) -> Result<DTensor> {
        call_one(&Turn { how: How::Flip, dim }, &[self])
    }

    /// A dim rotated: element `i` comes to `(i + shift) % size`.
    pub fn roll(&self, shift: isize, dim: isize) -> Result<DTensor> {
        call_one(&Turn { how: How::Roll(shift), dim }, &[self])
    }

    /// Turned by `k` times 90 degrees in the plane of two dims, from the first towards the second.
    pub fn rot90(&self, k: isize, dims: [isize; 2]) -> Result<DTensor> {
        // The kernel says what is wrong.
        Tensor::meta(self.shape(), self.dtype())?.rot90(k, dims)?;
        let [first, second] = dims;
        match k.rem_euclid(4) {
            1 => self.flip(second)?.transpose(first, second),
            2 => self.flip(first)?.flip(second),
            3 => self.flip(first)?.transpose(first, second),
            _ => Ok(self.clone()),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "flip",
        samples: || {
            let flip = |dim| Turn { how: How::Flip, dim };
            vec![
                Sample::new(flip(0), &[&[5, 2]]),
                Sample::new(flip(-1), &[&[2, 7]]),
                Sample::new(flip(1), &[&[3, 1]]),
            ]
        },
    },
    OpRecord {
        name: "roll",
        samples: || {
            let roll = |shift, dim| Turn { how: How::Roll(shift), dim };
            vec![
                Sample::new(roll(2, 0), &[&[5, 2]]),
                Sample::new(roll(-3, -1), &[&[2, 7]]),
                Sample::new(roll(3, 0), &[&[3, 2]]),
            ]
        },
    },
];
