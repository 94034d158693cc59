//! Windows of a dim.

use std::ops::Range;

use dtensor_layout::{
    Layout, Placement, ReduceOp,
    rule::{
        Law::{Linear, Moves},
        Rule,
    },
};
use dtensor_local::{LocalError, PadMode, Scalar, Tensor};
use smallvec::smallvec;

use super::{cuts, letter, letters, rule};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Exchange, Run, blank, carried, held_by, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unfold {
    dim: isize,
    size: usize,
    step: usize,
}

impl Op for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, dim) = (operands[0].n_dims(), operands[0].dim("unfold", self.dim)?);
        let whole = |other: usize| other == dim || other == n_dims;
        let from = letters(0..n_dims, whole).join(" ");
        let to = letters(0..=n_dims, whole).join(" ");
        rule("unfold", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].unfold(self.dim, self.size, self.step))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dim = Meta::of_layout(operands[0]).dim("unfold", self.dim);
        dim.is_ok_and(|dim| cuts(operands[0], dim))
    }

    /// The windows are cut. A rank gets the indices that its windows are over, and sees them as windows.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("unfold", operands[0])?;
        let meta = Meta::of_layout(x.layout());
        let dim = meta.dim("unfold", self.dim)?;
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let result = carried("unfold", x.layout(), shape, Some)?;
        let axes: Vec<usize> = x.layout().order().cuts(dim).iter().map(|cut| cut.axis).collect();
        // The indices of the windows of a part.
        let span = |coord: &[usize]| {
            let windows = held_by(&result, coord)[dim].clone();
            match windows.is_empty() {
                true => 0..0,
                false => windows.start * self.step..(windows.end - 1) * self.step + self.size,
            }
        };
        let wanted = |coord: &[usize]| {
            let held = held_by(x.layout(), coord);
            let mut runs: Vec<Vec<Run>> = held.into_iter().map(|own| vec![Run::of(own)]).collect();
            let span = span(coord);
            runs[dim] = match self.step > self.size {
                false => vec![Run::of(span)],
                // What lies between the windows is not sent.
                true => (0..span.len().div_ceil(self.step))
                    .map(|window| window * self.step)
                    .map(|at| Run { to: at..at + self.size, from: span.start + at, step: 1 })
                    .collect(),
            };
            runs
        };
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let exchange =
            Exchange { op: "unfold", mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let unfolded = placed(x.mesh(), &result, |coord| {
            let mut part = x.local().shape().to_vec();
            part[dim] = span(coord).len();
            let part = exchange.run(x.local(), blank(x.mesh(), &part, x.dtype())?)?;
            match span(coord).is_empty() {
                true => blank(x.mesh(), &result.local_shape(coord), x.dtype()),
                false => Ok(part.unfold(dim as isize, self.size, self.step)?),
            }
        })?;
        Ok(smallvec![unfolded])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let dim = meta.dim("unfold", self.dim)?;
        let fold = Fold { length: meta.shape[dim], dim, size: self.size, step: self.step };
        backward.first(|| call_one(&fold, &[&grad]))
    }
}

/// The opposite: windows, added up where they were in a dim of this length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fold {
    length: usize,
    dim: usize,
    size: usize,
    step: usize,
}

impl Op for Fold {
    fn name(&self) -> &'static str {
        "unfold_backward"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims().saturating_sub(1);
        let whole = |other: usize| other == self.dim || other == n_dims;
        let from = letters(0..=n_dims, whole).join(" ");
        let mut to = letters(0..n_dims, whole);
        if let Some(name) = to.get_mut(self.dim) {
            *name = format!("{}!", letter(n_dims + 1));
        }
        rule(self.name(), &format!("{from} -> {}", to.join(" ")), &[Linear])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let mut shape = x[0].shape().to_vec();
        shape.pop();
        let Some(size) = shape.get_mut(self.dim) else {
            let (op, name) = (self.name(), "the dim");
            let (got, want) = (self.dim.to_string(), "one of the windowed tensor");
            return Err(LocalError::BadNumber { op, name, got, want });
        };
        *size = self.length;
        if context.operand(0).is_none() {
            let windows = Tensor::meta(&shape, x[0].dtype())?;
            let windows = windows.unfold(self.dim as isize, self.size, self.step)?;
            if windows.shape() != x[0].shape() {
                return Err(LocalError::ShapeMismatch {
                    op: self.name(),
                    from: x[0].shape().to_vec(),
                    to: windows.shape().to_vec(),
                    why: "these are not the windows of such a tensor",
                });
            }
        }
        match x[0].is_meta() {
            true => one(Tensor::meta(&shape, x[0].dtype())),
            false => one(self.folded(x[0], self.length)),
        }
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        cuts(operands[0], self.dim)
    }

    /// A rank gets the windows that are over its part of the result.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), self.settled(operands[0])?);
        let (dim, last) = (self.dim, x.n_dims() - 1);
        let mut shape = x.shape().to_vec();
        shape.pop();
        shape[dim] = self.length;
        let result = carried(op, x.layout(), &shape, |dim| Some(dim).filter(|dim| *dim != last))?;
        let axes: Vec<usize> = x.layout().order().cuts(dim).iter().map(|cut| cut.axis).collect();
        let windows = |coord: &[usize]| self.over(&held_by(&result, coord)[dim], x.shape()[dim]);
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let wanted = |coord: &[usize]| {
            let held = held_by(x.layout(), coord);
            let mut runs: Vec<Vec<Run>> = held.into_iter().map(|own| vec![Run::of(own)]).collect();
            runs[dim] = vec![Run::of(windows(coord))];
            runs
        };
        let exchange = Exchange { op, mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let folded = placed(x.mesh(), &result, |coord| {
            let mut part = x.local().shape().to_vec();
            let (windows, own) = (windows(coord), held_by(&result, coord)[dim].clone());
            part[dim] = windows.len();
            let part = exchange.run(x.local(), blank(x.mesh(), &part, x.dtype())?)?;
            if windows.is_empty() || part.is_meta() {
                let part = result.local_shape(coord);
                return Ok(blank(x.mesh(), &part, x.dtype())?.zeros_like()?);
            }
            let first = windows.start * self.step;
            let length = (windows.len() - 1) * self.step + self.size;
            let folded = self.folded(&part, length)?;
            // From where the windows are to where the part is.
            let mut pads = vec![0; 2 * (last - dim)];
            let pair = pads.len() - 2;
            pads[pair] = first as isize - own.start as isize;
            pads[pair + 1] = own.end as isize - (first + length) as isize;
            Ok(folded.pad(&pads, PadMode::Constant(Scalar::Int(0)))?)
        })?;
        Ok(smallvec![folded])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| grad.unfold(self.dim as isize, self.size, self.step))
    }
}

impl Fold {
    /// All windows, into a dim of this length.
    fn folded(&self, windows: &Tensor, length: usize) -> Result<Tensor, LocalError> {
        let (n, dim) = (windows.shape()[self.dim], self.dim as isize);
        let mut shape = windows.shape().to_vec();
        shape.pop();
        shape[self.dim] = length;
        let zeros = Tensor::zeros(&shape, windows.dtype())?;
        let places = (0..n).flat_map(|window| {
            (0..self.size).map(move |index| (window * self.step + index) as i64)
        });
        let places = Tensor::from_vec(places.collect::<Vec<i64>>(), &[n * self.size])?;
        shape[self.dim] = n * self.size;
        let windows = windows.movedim(&[-1], &[dim + 1])?.contiguous().reshape(&shape)?;
        zeros.index_add(dim, &places, &windows, Scalar::Int(1))
    }

    /// The windows, of so many, that are over some of these indices.
    fn over(&self, indices: &Range<usize>, n: usize) -> Range<usize> {
        if indices.is_empty() {
            return 0..0;
        }
        let first = (indices.start + 1).saturating_sub(self.size).div_ceil(self.step);
        let end = n.min((indices.end - 1) / self.step + 1);
        if first < end { first..end } else { 0..0 }
    }

    /// In plain order, with nothing pending that is not linear, and with the windows themselves whole.
    fn settled(&self, x: &DTensor) -> Result<DTensor> {
        let last = x.n_dims() - 1;
        let settle = |placement: &Placement| match placement {
            Placement::Partial(ReduceOp::Max | ReduceOp::Min | ReduceOp::Product) => {
                Placement::Replicate
            }
            Placement::Shard(dim) if *dim == last => Placement::Replicate,
            _ => *placement,
        };
        let placements: Vec<Placement> = x.placements().iter().map(settle).collect();
        if placements == x.placements() {
            return in_ranges(self.name(), x);
        }
        let layout = x.layout().with_placements(&placements).map_err(Error::layout(self.name()))?;
        x.redistribute_as(self.name(), &layout)
    }
}

impl DTensor {
    /// Windows of `size` indices of a dim, `step` apart: the dim counts windows, a new last dim runs within
    /// them. Along a cut dim the ranks exchange the indices that windows of both are over.
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<DTensor> {
        call_one(&Unfold { dim, size, step }, &[self])
    }

    /// The gradient of [`unfold`](DTensor::unfold): windows, added up where they were in a dim of `length` indices.
    /// Along a cut dim the ranks exchange the windows that are over parts of both.
    pub fn unfold_backward(
        &self,
        length: usize,
        dim: isize,
        size: usize,
        step: usize,
    ) -> Result<DTensor> {
        let mut meta = Meta::of_layout(self.layout());
        meta.shape.pop();
        let dim = meta.dim("unfold_backward", dim)?;
        call_one(&Fold { length, dim, size, step }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "unfold",
        samples: || {
            vec![
                Sample::new(Unfold { dim: 0, size: 3, step: 1 }, &[&[7, 2]]),
                Sample::new(Unfold { dim: -1, size: 2, step: 2 }, &[&[3, 5]]),
                Sample::new(Unfold { dim: 0, size: 1, step: 3 }, &[&[8]]),
            ]
        },
    },
    OpRecord {
        name: "unfold_backward",
        samples: || {
            let fold = |length, dim, size, step| Fold { length, dim, size, step };
            vec![
                Sample::new(fold(7, 0, 3, 1), &[&[5, 2, 3]]),
                Sample::new(fold(5, 1, 2, 2), &[&[3, 2, 2]]),
                Sample::new(fold(8, 0, 1, 3), &[&[3, 1]]),
            ]
        },
    },
];
