//! The same values several times.

use dtensor_layout::{
    Layout,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::{SmallVec, smallvec};

use super::{cuts, letter, letters, rule, runs::Runs};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Exchange, Run, blank, held_by, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// Copies side by side: one number per dim of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Repeat(SmallVec<[usize; 4]>);

impl Repeat {
    /// Dims of the result that the operand does not have.
    fn new_dims(&self, operand: &Meta) -> usize {
        self.0.len().saturating_sub(operand.n_dims())
    }

    /// Of an operand that has as many dims as there are numbers.
    fn runs(&self, operand: &Meta) -> Runs {
        let dims = operand.shape.iter().zip(&self.0).enumerate();
        dims.fold(Runs::still(operand), |runs, (dim, (size, count))| match (*size, *count) {
            (_, 1) => runs,
            (1, count) => runs.with(dim, [Run { to: 0..count, from: 0, step: 0 }]),
            (size, count) => {
                let copy =
                    |number| Run { to: number * size..(number + 1) * size, from: 0, step: 1 };
                runs.with(dim, (0..count).map(copy))
            }
        })
    }
}

impl Op for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (new, n_dims) = (self.new_dims(&operands[0]), self.0.len());
        let whole = |dim: usize| dim < new || self.0[dim] != 1;
        let from = letters(new..n_dims, whole).join(" ");
        let to = letters(0..n_dims, whole).join(" ");
        rule("repeat", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].repeat(&self.0))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let new = self.new_dims(&Meta::of_layout(operands[0]));
        (0..operands[0].n_dims()).any(|dim| self.0[new + dim] != 1 && cuts(operands[0], dim))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let metas = [Meta::of_layout(operands[0].layout())];
        let shape = &self.infer(&metas)?[0].shape;
        let mut x = operands[0].clone();
        for _ in 0..self.new_dims(&metas[0]) {
            x = x.unsqueeze(0)?;
        }
        let runs = self.runs(&Meta::of_layout(x.layout()));
        let into = |part: &[usize]| blank(x.mesh(), part, x.dtype());
        Ok(smallvec![runs.run("repeat", &x, shape, into)?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    /// The sum of the copies, each with a dim that counts it.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let new = self.new_dims(&backward.meta(0));
        let (mut shape, mut counts) = (Vec::new(), Vec::new());
        for (dim, count) in self.0.iter().enumerate() {
            if dim < new || *count != 1 {
                counts.push(shape.len() as isize);
                shape.push(*count as isize);
            }
            if let Some(old) = dim.checked_sub(new) {
                shape.push(backward.shape(0)[old] as isize);
            }
        }
        backward.first(|| match counts.is_empty() {
            true => Ok(grad),
            false => grad.reshape(&shape)?.sum(&counts, false),
        })
    }
}

/// Every slice of a dim several times in a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RepeatInterleave {
    repeats: usize,
    dim: isize,
}

impl Op for RepeatInterleave {
    fn name(&self) -> &'static str {
        "repeat_interleave"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, dim) = (operands[0].n_dims(), operands[0].dim(self.name(), self.dim)?);
        let mut dims = letters(0..n_dims, |other| other == dim && self.repeats != 1);
        let from = dims.join(" ");
        if self.repeats != 1 {
            dims[dim] = format!("{}!", letter(n_dims));
        }
        rule(self.name(), &format!("{from} -> {}", dims.join(" ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].repeat_interleave(self.repeats, Some(self.dim)))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dim = Meta::of_layout(operands[0]).dim(self.name(), self.dim);
        self.repeats != 1 && dim.is_ok_and(|dim| cuts(operands[0], dim))
    }

    /// A rank gets the slices that its part of the result has, once, and repeats them itself.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), in_ranges(self.name(), operands[0])?);
        let meta = Meta::of_layout(x.layout());
        let dim = meta.dim(op, self.dim)?;
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let result = x.layout().with_shape(shape).map_err(Error::layout(op))?;
        let axes: Vec<usize> = x.layout().order().cuts(dim).iter().map(|cut| cut.axis).collect();
        let slices = |coord: &[usize]| {
            let part = held_by(&result, coord)[dim].clone();
            let repeats = self.repeats.max(1);
            part.start / repeats..part.end.div_ceil(repeats)
        };
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let wanted = |coord: &[usize]| {
            let held = held_by(x.layout(), coord);
            let mut runs: Vec<Vec<Run>> = held.into_iter().map(|own| vec![Run::of(own)]).collect();
            runs[dim] = vec![Run::of(slices(coord))];
            runs
        };
        let exchange = Exchange { op, mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let repeated = placed(x.mesh(), &result, |coord| {
            let mut once = x.local().shape().to_vec();
            once[dim] = slices(coord).len();
            let once = exchange.run(x.local(), blank(x.mesh(), &once, x.dtype())?)?;
            let (d, part) = (dim as isize, held_by(&result, coord)[dim].clone());
            let all = once.repeat_interleave(self.repeats, Some(d))?;
            Ok(all.narrow(d, part.start - slices(coord).start * self.repeats, part.len())?)
        })?;
        Ok(smallvec![repeated])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let dim = meta.dim(self.name(), self.dim)?;
        let mut shape: Vec<isize> = meta.shape.iter().map(|size| *size as isize).collect();
        shape.insert(dim + 1, self.repeats as isize);
        backward.first(|| match self.repeats {
            1 => Ok(grad),
            _ => grad.reshape(&shape)?.sum(&[dim as isize + 1], false),
        })
    }
}

impl DTensor {
    /// Copies side by side: `repeats[d]` of them in dim `d` of the result. There are as many numbers as dims,
    /// or more: the first ones then are new dims.
    pub fn repeat(&self, repeats: &[usize]) -> Result<DTensor> {
        call_one(&Repeat(repeats.into()), &[self])
    }

    /// As [`repeat`](DTensor::repeat), but there may also be fewer numbers than dims: the first dims then are
    /// not repeated.
    pub fn tile(&self, repeats: &[usize]) -> Result<DTensor> {
        let missing = self.n_dims().saturating_sub(repeats.len());
        let all = std::iter::repeat_n(1, missing).chain(repeats.iter().copied());
        call_one(&Repeat(all.collect()), &[self])
    }

    /// Every slice of a dim `repeats` times in a row. Without a dim, every element of the tensor seen as one
    /// line.
    pub fn repeat_interleave(&self, repeats: usize, dim: Option<isize>) -> Result<DTensor> {
        match dim {
            Some(dim) => call_one(&RepeatInterleave { repeats, dim }, &[self]),
            None => call_one(&RepeatInterleave { repeats, dim: 0 }, &[&self.reshape(&[-1])?]),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "repeat",
        samples: || {
            let repeat = |repeats: &[usize]| Repeat(repeats.into());
            vec![
                Sample::new(repeat(&[3, 1]), &[&[3, 2]]),
                Sample::new(repeat(&[2, 1, 2]), &[&[3, 2]]),
                Sample::new(repeat(&[2, 3]), &[&[1, 2]]),
                Sample::new(repeat(&[0]), &[&[3]]),
            ]
        },
    },
    OpRecord {
        name: "repeat_interleave",
        samples: || {
            let repeat = |repeats, dim| RepeatInterleave { repeats, dim };
            vec![
                Sample::new(repeat(2, 0), &[&[5, 2]]),
                Sample::new(repeat(3, -1), &[&[2, 3]]),
                Sample::new(repeat(1, 0), &[&[3]]),
                Sample::new(repeat(0, 0), &[&[3]]),
            ]
        },
    },
];
