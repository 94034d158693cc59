//! Windows of a dim.

use dtensor_layout::{
    Layout,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{cuts, letters, rule};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    exchange::{Exchange, Run, blank, carried, held_by, in_ranges, placed},
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
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
}

impl DTensor {
    /// Windows of `size` indices of a dim, `step` apart: the dim counts windows, a new last dim runs within
    /// them. Along a cut dim the ranks exchange the indices that windows of both are over.
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<DTensor> {
        call_one(&Unfold { dim, size, step }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "unfold",
    samples: || {
        vec![
            Sample::new(Unfold { dim: 0, size: 3, step: 1 }, &[&[7, 2]]),
            Sample::new(Unfold { dim: -1, size: 2, step: 2 }, &[&[3, 5]]),
            Sample::new(Unfold { dim: 0, size: 1, step: 3 }, &[&[8]]),
        ]
    },
}];
