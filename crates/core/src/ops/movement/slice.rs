//! Parts of a dim.

use dtensor_layout::{
    Layout, Placement,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{cuts, grown, letters, rule, runs::Runs};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    exchange::{Run, along, blank, carried, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::indexing::zeros::zeros_for,
};

/// Every `step`-th index of a dim. Narrowing is the same with a step of 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slice {
    op: &'static str,
    dim: isize,
    start: usize,
    end: usize,
    step: usize,
}

impl Slice {
    fn runs(&self, operand: &Meta) -> Result<Runs> {
        let dim = operand.dim(self.op, self.dim)?;
        let n = self.end.saturating_sub(self.start).div_ceil(self.step.max(1));
        // Of one index the step does not matter; a huge one must not overflow.
        let step = if n > 1 { self.step as isize } else { 1 };
        Ok(Runs::still(operand).with(dim, [Run { to: 0..n, from: self.start, step }]))
    }
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        self.op
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.runs(&operands[0])?.rule(self.op, &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // All of a dim is all that there is of it here.
        if let Some(whole) = context.operand(0)
            && self.runs(&Meta::of_layout(whole)).is_ok_and(|runs| runs.are_still())
        {
            return one(Ok(x[0].clone()));
        }
        let length = self.end.saturating_sub(self.start);
        // Both have the same checks, under their own names.
        one(match self.op {
            "narrow" => x[0].narrow(self.dim, self.start, length),
            _ => x[0].slice(self.dim, self.start, self.end, self.step),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.runs(&Meta::of_layout(operands[0])).is_ok_and(|runs| runs.cross(operands[0]))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (x, meta) = (operands[0], Meta::of_layout(operands[0].layout()));
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let into = |part: &[usize]| blank(x.mesh(), part, x.dtype());
        let result = self.runs(&meta)?.run(self.op, x, shape, into)?;
        Ok(smallvec![result])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    /// Zeros between the indices and around them. Along a cut dim that is an exchange, as the slice was.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (mut grad, meta) = (backward.grad()?, backward.meta(0));
        let dim = meta.dim(self.op, self.dim)?;
        let size = meta.shape[dim];
        backward.first(|| {
            if self.step > 1 && grad.shape()[dim] > 1 {
                let between =
                    grown(&grad.unsqueeze(dim as isize + 1)?, dim + 1, 0, self.step as isize - 1)?;
                grad = between.flatten(dim as isize, dim as isize + 1)?;
            }
            let before = self.start.min(size) as isize;
            grown(&grad, dim, before, size as isize - before - grad.shape()[dim] as isize)
        })
    }
}

/// One index of a dim, which disappears.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Select {
    dim: isize,
    index: isize,
}

impl Op for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let gone = operands[0].dim("select", self.dim)?;
        let mut dims = letters(0..operands[0].n_dims(), |dim| dim == gone);
        let from = dims.join(" ");
        dims.remove(gone);
        rule("select", &format!("{from} -> {}", dims.join(" ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].select(self.dim, self.index))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dim = Meta::of_layout(operands[0]).dim("select", self.dim);
        dim.is_ok_and(|dim| cuts(operands[0], dim))
    }

    /// The rank that has the slice gives it to those that cut the dim.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("select", operands[0])?;
        let meta = Meta::of_layout(x.layout());
        let dim = meta.dim("select", self.dim)?;
        let size = meta.shape[dim];
        let index = self.index.unsigned_abs();
        let from = if self.index < 0 { size.saturating_sub(index) } else { index };
        let mut kept = meta.shape.clone();
        kept[dim] = 1;
        let stays = |old: usize| Some(old).filter(|old| *old != dim);
        let slice = carried("select", x.layout(), &kept, stays)?;
        let runs: Vec<Vec<Run>> = (kept.iter().enumerate())
            .map(|(d, size)| match d == dim {
                true => vec![Run { to: 0..1, from, step: 0 }],
                false => vec![Run::whole(*size)],
            })
            .collect();
        let one = along("select", &x, &slice, &runs, |part| blank(x.mesh(), part, x.dtype()))?;
        kept.remove(dim);
        let without = |old: usize| match old.cmp(&dim) {
            std::cmp::Ordering::Less => Some(old),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(old - 1),
        };
        let layout = carried("select", x.layout(), &kept, without)?;
        let result = placed(x.mesh(), &layout, |_| Ok(one.local().select(dim as isize, 0)?))?;
        Ok(smallvec![result])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let dim = meta.dim("select", self.dim)?;
        let size = meta.shape[dim];
        let index = match self.index < 0 {
            true => size.saturating_add_signed(self.index),
            false => self.index.unsigned_abs(),
        };
        backward.first(|| {
            let slice = grad.unsqueeze(dim as isize)?;
            if !cuts(backward.layout(0), dim) {
                return grown(&slice, dim, index as isize, (size - index) as isize - 1);
            }
            // Every rank has the slice, and one of them has it in its part of the operand.
            let zeros = zeros_for(backward, 0, &slice, |other| Some(Placement::Shard(other)))?;
            let mut place: Vec<_> = meta.shape.iter().map(|size| 0..*size).collect();
            place[dim] = index..index + 1;
            zeros.slice_assign(&place, &slice)
        })
    }
}

impl DTensor {
    /// `length` indices of a dim, from `start`. Along a dim that is cut, the ranks exchange what they lack,
    /// and the result is cut again.
    pub fn narrow(&self, dim: isize, start: usize, length: usize) -> Result<DTensor> {
        let end = start.saturating_add(length);
        call_one(&Slice { op: "narrow", dim, start, end, step: 1 }, &[self])
    }

    /// Every `step`-th index of a dim from `start` to before `end`.
    pub fn slice(&self, dim: isize, start: usize, end: usize, step: usize) -> Result<DTensor> {
        call_one(&Slice { op: "slice", dim, start, end, step }, &[self])
    }

    /// One index of a dim, which disappears. The index may count from the end. If the dim is cut, the rank
    /// that has the slice gives it to the others.
    pub fn select(&self, dim: isize, index: isize) -> Result<DTensor> {
        call_one(&Select { dim, index }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "narrow",
        samples: || {
            let narrow = |dim, start, end| Slice { op: "narrow", dim, start, end, step: 1 };
            vec![
                Sample::new(narrow(0, 1, 5), &[&[7, 2]]),
                Sample::new(narrow(-1, 0, 2), &[&[3, 5]]),
                Sample::new(narrow(0, 0, 5), &[&[5, 3]]),
                Sample::new(narrow(0, 3, 3), &[&[5]]),
            ]
        },
    },
    OpRecord {
        name: "slice",
        samples: || {
            let slice = |dim, start, end, step| Slice { op: "slice", dim, start, end, step };
            vec![
                Sample::new(slice(0, 1, 7, 2), &[&[7, 2]]),
                Sample::new(slice(-1, 0, 5, 3), &[&[2, 5]]),
                Sample::new(slice(0, 2, 4, 9), &[&[5]]),
            ]
        },
    },
    OpRecord {
        name: "select",
        samples: || {
            vec![
                Sample::new(Select { dim: 0, index: 3 }, &[&[5, 3]]),
                Sample::new(Select { dim: -2, index: -1 }, &[&[2, 3, 4]]),
                Sample::new(Select { dim: 0, index: 1 }, &[&[2]]),
            ]
        },
    },
];
