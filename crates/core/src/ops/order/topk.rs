//! The largest or smallest values along a dim. Along one that is cut, every rank gives its best, and the best of
//! these are the result.

use dtensor_layout::{DType, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor};

use super::{
    along::{
        Keep, Way, axes_of, copied, from_lines, is_cut, lines_rule, placed, to_lines, uncut, way,
        with_whole_lines, without_dim,
    },
    merge::beside,
    sort::sort_in_parts,
};
use crate::{
    DTensor, Result,
    dispatch::{call, call_two},
    op::{Backward, Grads, Keep as Kept, LocalContext, Meta, Op, OpRecord, Outputs, Sample, two},
    ops::indexing::{
        held::normal,
        pick::spread_back,
        ragged::{Line, interval},
    },
};

/// `topk`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TopK {
    k: usize,
    dim: isize,
    largest: bool,
}

impl Op for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(lines_rule(operands[0].n_dims(), self.dim, 2, Keep::Other))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(x[0].topk(self.k, self.dim, self.largest))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        let dim = normal(self.dim, x.n_dims());
        if gives_candidates(x.layout(), dim, self.k) {
            let (values, indices) = best(op, &x, dim, self.k, self.largest)?;
            return Ok([values, indices].into_iter().collect());
        }
        if way(x.layout(), dim) == Way::InParts {
            let (values, indices) = sort_in_parts(op, &x, dim, self.largest)?;
            let first = i64::try_from(self.k).unwrap_or(i64::MAX);
            let first: Vec<i64> = (0..first).collect();
            let first = copied(op, x.mesh(), Tensor::from_vec(first, &[self.k])?)?;
            let pick = |of: DTensor| of.index_select(dim as isize, &first);
            return Ok([pick(values)?, pick(indices)?].into_iter().collect());
        }
        call(self, &[&with_whole_lines(op, &x, dim)?])
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| spread_back(backward, self.dim, &backward.result(1)?, &grad))
    }
}

/// `kthvalue`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KthValue {
    k: usize,
    dim: isize,
    keep_dims: bool,
}

impl Op for KthValue {
    fn name(&self) -> &'static str {
        "kthvalue"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let keep = Keep::reduced(self.keep_dims);
        Ok(lines_rule(operands[0].n_dims(), self.dim, 2, keep))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(x[0].kthvalue(self.k, self.dim, self.keep_dims))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        let dim = normal(self.dim, x.n_dims());
        let (values, indices, at) = if gives_candidates(x.layout(), dim, self.k) {
            let (values, indices) = best(op, &x, dim, self.k, false)?;
            (values, indices, self.k - 1)
        } else if way(x.layout(), dim) == Way::InParts {
            let (values, indices) = sort_in_parts(op, &x, dim, false)?;
            (values, indices, self.k - 1)
        } else {
            return call(self, &[&with_whole_lines(op, &x, dim)?]);
        };
        let at = copied(op, x.mesh(), Tensor::from_vec(vec![at as i64], &[1])?)?;
        let pick = |of: DTensor| {
            let picked = of.index_select(dim as isize, &at)?;
            if self.keep_dims { Ok(picked) } else { without_dim(op, &picked, dim) }
        };
        Ok([pick(values)?, pick(indices)?].into_iter().collect())
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        of_one(backward, self.dim, self.keep_dims)
    }
}

/// `median`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Median {
    dim: isize,
    keep_dims: bool,
}

impl Op for Median {
    fn name(&self) -> &'static str {
        "median"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let keep = Keep::reduced(self.keep_dims);
        Ok(lines_rule(operands[0].n_dims(), self.dim, 2, keep))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(x[0].median(self.dim, self.keep_dims))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        let dim = normal(self.dim, x.n_dims());
        if way(x.layout(), dim) != Way::InParts {
            return call(self, &[&with_whole_lines(op, &x, dim)?]);
        }
        let (values, indices) = sort_in_parts(op, &x, dim, false)?;
        let n = x.shape()[dim];
        // The last one is NaN if there is any, and then is the result.
        let at = vec![((n - 1) / 2) as i64, (n - 1) as i64];
        let at = copied(op, x.mesh(), Tensor::from_vec(at, &[2])?)?;
        let pick = |of: DTensor| of.index_select(dim as isize, &at)?.settled();
        let (values, indices) = (pick(values)?, pick(indices)?);
        let of = |pair: &DTensor| -> Result<DTensor> {
            let layout = uncut(op, pair.layout(), dim, 1, pair.dtype())?;
            let one = placed(x.mesh(), layout, |_| {
                let one = |of: &DTensor, at| of.local().narrow(dim as isize, at, 1);
                let has_nan = one(&values, 1)?.isnan()?;
                Ok(has_nan.where_self(&one(pair, 1)?, &one(pair, 0)?)?)
            })?;
            if self.keep_dims { Ok(one) } else { without_dim(op, &one, dim) }
        };
        Ok([of(&values)?, of(&indices)?].into_iter().collect())
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        of_one(backward, self.dim, self.keep_dims)
    }
}

/// The gradient of an operation that picked one element of every line: to where that was.
fn of_one(backward: &Backward<'_>, dim: isize, keep_dims: bool) -> Result<Grads> {
    let (mut grad, mut places) = (backward.grad()?, backward.result(1)?);
    let n_dims = backward.shape(0).len();
    backward.first(|| {
        if !keep_dims && n_dims > 0 {
            let dim = normal(dim, n_dims) as isize;
            (grad, places) = (grad.unsqueeze(dim)?, places.unsqueeze(dim)?);
        }
        spread_back(backward, dim, &places, &grad)
    })
}

/// Whether the best of every rank are fewer than all.
fn gives_candidates(layout: &Layout, dim: usize, k: usize) -> bool {
    k.saturating_mul(axes_of(layout, dim).1) < layout.global_shape()[dim]
}

/// The best along a cut dim, from the best of every rank: two gathers. Of equal values the first are taken:
/// the candidates come in the order of the ranks, and from each in that order.
fn best(
    op: &'static str,
    x: &DTensor,
    dim: usize,
    k: usize,
    largest: bool,
) -> Result<(DTensor, DTensor)> {
    // In plain order: then the parts continue from rank to rank.
    let x = &x.redistribute(x.placements())?;
    let (mesh, layout) = (x.mesh(), x.layout());
    let (axes, _) = axes_of(layout, dim);
    let line = Line { op, mesh, axes: &axes };
    let of_values = uncut(op, layout, dim, k, x.dtype())?;
    let of_indices = uncut(op, layout, dim, k, DType::I64)?;
    if mesh.coord().is_none() {
        let nothing = |_: &[usize]| Ok(Tensor::empty(&[0], DType::I64)?);
        return Ok((placed(mesh, of_values, nothing)?, placed(mesh, of_indices, nothing)?));
    }
    let held: Vec<_> = line.members()?.iter().map(|coord| interval(layout, dim, coord)).collect();
    let own = held[line.position(mesh.own_coord(op)?)].clone();
    let lines = to_lines(x.local(), dim)?;
    let (values, places) = lines.topk(k.min(own.len()), 1, largest)?;
    let indices = places.add_scalar(own.start as i64)?;
    let n_lines = lines.shape()[0];
    let counts: Vec<usize> = held.iter().map(|held| k.min(held.len())).collect();
    let all: Vec<usize> = counts.iter().map(|count| count * n_lines).collect();
    let gather = |own: &Tensor| beside(&line.gather(own, &all)?, n_lines, &counts);
    let (values, order) = gather(&values)?.topk(k, 1, largest)?;
    let indices = gather(&indices)?.gather(1, &order)?;
    let shape = x.local().shape();
    let place = |lines: Tensor, layout: Layout| -> Result<DTensor> {
        Ok(DTensor::from_parts(from_lines(&lines, shape, dim)?, layout, mesh.clone()))
    };
    Ok((place(values, of_values)?, place(indices, of_indices)?))
}

impl DTensor {
    /// The `k` largest or smallest values along a dim, in order, and where they were. Of equal values the
    /// first are taken.
    ///
    /// If the dim is cut, every rank sends the best `k` of its part, and nothing else.
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> Result<(DTensor, DTensor)> {
        call_two(&TopK { k, dim, largest }, &[self])
    }

    /// The `k`-th smallest value along a dim, counted from 1, and where it was. Along a cut dim as
    /// [`topk`](DTensor::topk) if `k` is small, else as [`sort`](DTensor::sort).
    pub fn kthvalue(&self, k: usize, dim: isize, keep_dims: bool) -> Result<(DTensor, DTensor)> {
        call_two(&KthValue { k, dim, keep_dims }, &[self])
    }

    /// The median along a dim, of an even number the lower one, and where it was. NaN if there is one. Along
    /// a cut dim as [`sort`](DTensor::sort).
    pub fn median(&self, dim: isize, keep_dims: bool) -> Result<(DTensor, DTensor)> {
        call_two(&Median { dim, keep_dims }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "topk",
        samples: || {
            let sample = |k, dim, largest, shape| Sample::new(TopK { k, dim, largest }, &[shape]);
            vec![
                sample(2, 1, true, &[3, 7]),
                sample(1, 0, false, &[5, 2]),
                sample(4, -1, true, &[6]),
                sample(12, 0, false, &[19]),
                sample(0, 0, true, &[5]),
                sample(1, 0, true, &[]),
            ]
        },
    },
    OpRecord {
        name: "kthvalue",
        samples: || {
            let sample =
                |k, dim, keep_dims, shape| Sample::new(KthValue { k, dim, keep_dims }, &[shape]);
            vec![
                sample(2, 1, false, &[3, 7]),
                sample(4, 0, true, &[5, 2]),
                sample(14, 0, false, &[19]),
                sample(9, -1, true, &[1, 17]),
            ]
        },
    },
    OpRecord {
        name: "median",
        samples: || {
            let sample = |dim, keep_dims, shape| Sample::new(Median { dim, keep_dims }, &[shape]);
            vec![
                sample(1, false, &[3, 6]),
                sample(0, true, &[5, 2]),
                sample(0, false, &[18]),
                sample(-1, true, &[2, 17]),
                sample(0, false, &[]),
            ]
        },
    },
];
