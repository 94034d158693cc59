//! Diagonals: taken, laid out, summed.

use std::ops::Range;

use dtensor_layout::{
    Layout, ReduceOp,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{cuts, grown, letter, letters, rule};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Exchange, Run, blank, carried, held_by, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::indexing::zeros::zeros_for,
};

/// Two dims that disappear, and a new last one along their diagonal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Diagonal {
    offset: isize,
    dim1: isize,
    dim2: isize,
}

/// The last dim on the diagonal of two new ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DiagEmbed {
    offset: isize,
    dim1: isize,
    dim2: isize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Trace;

impl Op for Diagonal {
    fn name(&self) -> &'static str {
        "diagonal"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, plane) = (operands[0].n_dims(), self.plane(&operands[0])?);
        let from = letters(0..n_dims, |dim| plane.contains(&dim)).join(" ");
        let mut to = letters((0..n_dims).filter(|dim| !plane.contains(dim)), |_| false);
        to.push(format!("{}!", letter(n_dims)));
        rule("diagonal", &format!("{from} -> {}", to.join(" ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].diagonal(self.offset, self.dim1, self.dim2))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let plane = self.plane(&Meta::of_layout(operands[0]));
        plane.is_ok_and(|plane| plane.iter().any(|dim| cuts(operands[0], *dim)))
    }

    /// A block of the matrix has one stretch of the diagonal, in general not the one of the result.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("diagonal", operands[0])?;
        let meta = Meta::of_layout(x.layout());
        let [rows, columns] = self.plane(&meta)?;
        let others: Vec<usize> =
            (0..x.n_dims()).filter(|dim| ![rows, columns].contains(dim)).collect();
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let length = shape[others.len()];
        let place = |dim: usize| {
            Some(others.iter().position(|other| *other == dim).unwrap_or(others.len()))
        };
        let result = carried("diagonal", x.layout(), shape, place)?;
        let order = x.layout().order();
        let mut axes: Vec<usize> =
            order.cuts(rows).iter().chain(order.cuts(columns)).map(|cut| cut.axis).collect();
        axes.sort_unstable();
        let (down, right) = skipped(self.offset);
        let held = |coord: &[usize]| {
            let held = held_by(x.layout(), coord);
            let mut ranges: Vec<Range<usize>> =
                others.iter().map(|dim| held[*dim].clone()).collect();
            let (rows, columns) = (shifted(&held[rows], down), shifted(&held[columns], right));
            let end = rows.end.min(columns.end).min(length);
            ranges.push(rows.start.max(columns.start).min(end)..end);
            ranges
        };
        let wanted = |coord: &[usize]| {
            let part = held_by(&result, coord);
            part.into_iter().map(|range| vec![Run::of(range)]).collect::<Vec<_>>()
        };
        let exchange =
            Exchange { op: "diagonal", mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let diagonal = placed(x.mesh(), &result, |coord| {
            let block = held_by(x.layout(), coord);
            let offset = local_offset(self.offset, &block[rows], &block[columns]);
            let local = x.local().diagonal(offset, rows as isize, columns as isize)?;
            exchange.run(&local, blank(x.mesh(), &result.local_shape(coord), x.dtype())?)
        })?;
        Ok(smallvec![diagonal])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    /// A square with the gradient on its diagonal, and zeros around it.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let [rows, columns] = self.plane(&meta)?;
        let length = grad.shape()[meta.n_dims() - 2];
        backward.first(|| {
            let mut matrix = grad.diag_embed(0, rows as isize, columns as isize)?;
            let (down, right) = skipped(self.offset);
            for (dim, before) in [(rows, down), (columns, right)] {
                // Beyond the matrix there is no diagonal.
                let (size, before) = (meta.shape[dim], before.min(meta.shape[dim]));
                let after = size - before - length;
                matrix = grown(&matrix, dim, before as isize, after as isize)?;
            }
            Ok(matrix)
        })
    }
}

impl Diagonal {
    fn plane(&self, operand: &Meta) -> Result<[usize; 2]> {
        Ok([operand.dim("diagonal", self.dim1)?, operand.dim("diagonal", self.dim2)?])
    }
}

impl Op for DiagEmbed {
    fn name(&self) -> &'static str {
        "diag_embed"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let last = operands[0].n_dims().saturating_sub(1);
        let from = letters(0..=last, |dim| dim == last).join(" ");
        let [rows, columns] = self.plane(&operands[0])?;
        let mut others = letters(0..last, |_| false).into_iter();
        let to = (0..last + 2).filter_map(|dim| match dim {
            dim if dim == rows => Some(format!("{}!", letter(last + 1))),
            dim if dim == columns => Some(format!("{}!", letter(last + 2))),
            _ => others.next(),
        });
        let to = to.collect::<Vec<_>>().join(" ");
        rule("diag_embed", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].diag_embed(self.offset, self.dim1, self.dim2))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let last = operands[0].n_dims().checked_sub(1);
        last.is_some_and(|last| cuts(operands[0], last))
    }

    /// The rows are cut as the values were. A rank gets the values of its rows.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("diag_embed", operands[0])?;
        let meta = Meta::of_layout(x.layout());
        let last = meta.n_dims().saturating_sub(1);
        let [rows, columns] = self.plane(&meta)?;
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let others: Vec<usize> =
            (0..shape.len()).filter(|dim| ![rows, columns].contains(dim)).collect();
        let place = |dim: usize| others.get(dim).copied().or(Some(rows));
        let result = carried("diag_embed", x.layout(), shape, place)?;
        let axes: Vec<usize> = x.layout().order().cuts(last).iter().map(|cut| cut.axis).collect();
        let (down, right) = skipped(self.offset);
        let stretch = |coord: &[usize]| {
            let rows = shifted(&held_by(&result, coord)[rows], down);
            rows.start.min(meta.shape[last])..rows.end.min(meta.shape[last])
        };
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let wanted = |coord: &[usize]| {
            let held = held_by(x.layout(), coord);
            let mut runs: Vec<Vec<Run>> = held.into_iter().map(|own| vec![Run::of(own)]).collect();
            runs[last] = vec![Run::of(stretch(coord))];
            runs
        };
        let op = "diag_embed";
        let exchange = Exchange { op, mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let embedded = placed(x.mesh(), &result, |coord| {
            let (stretch, own) = (stretch(coord), held_by(&result, coord)[rows].clone());
            let mut part = x.local().shape().to_vec();
            part[last] = stretch.len();
            let values = exchange.run(x.local(), blank(x.mesh(), &part, x.dtype())?)?;
            part[last] = own.len();
            part.push(shape[columns]);
            let zeros = blank(x.mesh(), &part, x.dtype())?.zeros_like()?;
            // All of the dims before, then the square around the stretch.
            let mut square: Vec<Range<usize>> = part[..last].iter().map(|size| 0..*size).collect();
            let first = if stretch.is_empty() { 0 } else { stretch.start + down - own.start };
            square.push(first..first + stretch.len());
            let first = if stretch.is_empty() { 0 } else { stretch.start + right };
            square.push(first..first + stretch.len());
            let embedded = zeros.slice_assign(&square, &values.diag_embed(0, -2, -1)?)?;
            Ok(embedded.movedim(&[-2, -1], &[rows as isize, columns as isize])?)
        })?;
        Ok(smallvec![embedded])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| grad.diagonal(self.offset, self.dim1, self.dim2))
    }
}

impl DiagEmbed {
    /// The new dims among those of the result.
    fn plane(&self, operand: &Meta) -> Result<[usize; 2]> {
        let mut wider = operand.clone();
        wider.shape.push(1);
        Ok([wider.dim("diag_embed", self.dim1)?, wider.dim("diag_embed", self.dim2)?])
    }
}

impl Op for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    /// Every block adds what it has of the diagonal.
    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Rule::reduce(2, &[0, 1], false, ReduceOp::Sum).map_err(Error::rule("trace"))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let Some(whole) = context.operand(0) else { return one(x[0].trace()) };
        let [rows, columns] =
            [0, 1].map(|dim| context.operand_range(0, dim, whole.global_shape()[dim]));
        one(x[0].diagonal(local_offset(0, &rows, &columns), 0, 1)?.sum(&[], false))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    /// Cut as the operand is: what is sent is one number at most.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| {
            let zeros = zeros_for(backward, 0, &grad, |_| None)?;
            zeros.add(&grad)?.tril(0)?.triu(0)
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }
}

/// Rows and columns before the first element of a diagonal.
fn skipped(offset: isize) -> (usize, usize) {
    if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset.unsigned_abs()) }
}

/// The indices counted from one further on.
fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start.saturating_sub(by)..range.end.saturating_sub(by)
}

/// The diagonal as a block of the matrix sees it.
fn local_offset(offset: isize, rows: &Range<usize>, columns: &Range<usize>) -> isize {
    offset.saturating_add_unsigned(rows.start).saturating_sub_unsigned(columns.start)
}

impl DTensor {
    /// The diagonal of two dims: they disappear, and a new last dim runs along it. `offset` columns (`dim2`)
    /// further right, or rows (`dim1`) further down if it is negative. Of a matrix that is cut the diagonal
    /// is cut, too.
    pub fn diagonal(&self, offset: isize, dim1: isize, dim2: isize) -> Result<DTensor> {
        call_one(&Diagonal { offset, dim1, dim2 }, &[self])
    }

    /// A square matrix with the values of one dim on a diagonal and zeros elsewhere, or the diagonal of a
    /// matrix; `offset` as for [`diagonal`](DTensor::diagonal).
    pub fn diag(&self, offset: isize) -> Result<DTensor> {
        // The kernel says what is wrong.
        Tensor::meta(self.shape(), self.dtype())?.diag(offset)?;
        match self.n_dims() {
            1 => self.diag_embed(offset, -2, -1),
            _ => self.diagonal(offset, 0, 1),
        }
    }

    /// The values of the last dim on a diagonal of two new dims, `dim1` and `dim2` of the result, with zeros
    /// elsewhere. If the values are cut, dim `dim1` of the result is.
    pub fn diag_embed(&self, offset: isize, dim1: isize, dim2: isize) -> Result<DTensor> {
        call_one(&DiagEmbed { offset, dim1, dim2 }, &[self])
    }

    /// The sum of the diagonal of a matrix. Of one that is cut, the sum is pending.
    pub fn trace(&self) -> Result<DTensor> {
        call_one(&Trace, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "diagonal",
        samples: || {
            let diagonal = |offset, dim1, dim2| Diagonal { offset, dim1, dim2 };
            vec![
                Sample::new(diagonal(0, 0, 1), &[&[3, 5]]),
                Sample::new(diagonal(1, -1, 0), &[&[4, 2, 6]]),
                Sample::new(diagonal(-2, 0, 1), &[&[5, 4]]),
                Sample::new(diagonal(7, 0, 1), &[&[3, 4]]),
            ]
        },
    },
    OpRecord {
        name: "diag_embed",
        samples: || {
            let embed = |offset, dim1, dim2| DiagEmbed { offset, dim1, dim2 };
            vec![
                Sample::new(embed(0, -2, -1), &[&[2, 5]]),
                Sample::new(embed(2, 2, 0), &[&[2, 3]]),
                Sample::new(embed(-1, 0, 1), &[&[5]]),
            ]
        },
    },
    OpRecord {
        name: "trace",
        samples: || vec![Sample::new(Trace, &[&[4, 4]]), Sample::new(Trace, &[&[5, 3]])],
    },
];
