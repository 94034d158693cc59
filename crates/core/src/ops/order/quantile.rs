//! Quantiles.

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::{Interpolation, LocalError, Scalar, Tensor};
use smallvec::SmallVec;

use super::{
    along::{
        Keep, Way, copied, from_lines, is_cut, lines_rule, placed, to_lines, uncut, way,
        with_whole_lines,
    },
    merge::Merge,
    sort::sort_in_parts,
};
use crate::{
    DTensor, Error, Result,
    dispatch::{call, call_one},
    op::{
        Backward, Grads, Keep as Kept, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        one,
    },
    ops::indexing::{
        held::{TENSOR, letters, normal},
        ragged::{Line, cut_axes, interval, rows_layout},
    },
};

/// `quantile` and `nanquantile`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Quantile {
    q: SmallVec<[Number; 2]>,
    dim: Option<isize>,
    keep_dims: bool,
    interpolation: Interpolation,
    skip_nan: bool,
}

impl Op for Quantile {
    fn name(&self) -> &'static str {
        if self.skip_nan { "nanquantile" } else { "quantile" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let text = match self.dim {
            // A new first dim before the others.
            Some(dim) => {
                let rule = lines_rule(n_dims, dim, 1, Keep::reduced(self.keep_dims)).to_string();
                rule.replacen("->", "-> q!", 1)
            }
            None => {
                let names = letters(TENSOR, n_dims);
                let names = names.iter().map(|name| format!("{name}! ")).collect::<String>();
                let ones = if self.keep_dims { " 1".repeat(n_dims) } else { String::new() };
                format!("{names} -> q!{ones}")
            }
        };
        Ok(Rule::of(&text, &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let q: SmallVec<[f64; 2]> = self.q.iter().map(|q| q.0).collect();
        let (dim, keep_dims, how) = (self.dim, self.keep_dims, self.interpolation);
        one(match self.skip_nan {
            true => x[0].nanquantile(&q, dim, keep_dims, how),
            false => x[0].quantile(&q, dim, keep_dims, how),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        match self.dim {
            Some(dim) => is_cut(operands[0], dim),
            None => {
                let n_ranks = n_parts(operands[0]);
                // Else what decides how to merge parts would be all there is.
                n_ranks > 1 && operands[0].numel() > n_ranks * n_ranks
            }
        }
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        let found = match self.dim.map(|dim| normal(dim, x.n_dims())) {
            Some(dim) if way(x.layout(), dim) == Way::InParts => {
                let (sorted, _) = sort_in_parts(op, &x, dim, false)?;
                self.of_sorted(&sorted, dim)?
            }
            Some(dim) => return call(self, &[&with_whole_lines(op, &x, dim)?]),
            None => self.of_sorted(&all_sorted(op, &x)?, 0)?,
        };
        let dim = self.dim.map_or(0, |dim| normal(dim, x.n_dims()));
        let moved = |placement: &Placement| match *placement {
            Placement::Shard(other) if other < dim || self.keep_dims => Placement::Shard(other + 1),
            other => other,
        };
        let placements: Vec<Placement> = found.placements().iter().map(moved).collect();
        let shape = self.finished(found.shape(), dim, x.n_dims());
        let layout = Layout::new(&shape, x.dtype(), x.mesh().mesh(), &placements);
        let result = placed(x.mesh(), layout.map_err(Error::layout(op))?, |_| {
            let last = found.n_dims() as isize - 1;
            let order: Vec<isize> = std::iter::once(last).chain(0..last).collect();
            let shape = self.finished(found.local().shape(), dim, x.n_dims());
            Ok(found.local().permute(&order)?.contiguous().reshape(&shape)?)
        })?;
        Ok([result].into())
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept::operands(&[0]))
    }

    /// The values are sorted again; a quantile is that of the two beside it.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (mut grad, mut x) = (backward.grad()?, backward.operand(0)?.detach().settled()?);
        let n_q = self.q.len();
        let dim = match self.dim {
            Some(dim) if x.n_dims() > 0 => normal(dim, x.n_dims()),
            _ => {
                x = x.reshape(&[-1])?;
                grad = grad.reshape(&[n_q as isize])?;
                0
            }
        };
        backward.first(|| {
            let line = dim as isize;
            // The quantiles in place of the dim.
            if grad.n_dims() > x.n_dims() {
                grad = grad.squeeze(line + 1)?;
            }
            let grad = grad.movedim(&[0], &[line])?;
            let ranks = self.ranks(&x, dim)?;
            let (low, high) = (ranks.floor()?, ranks.ceil()?);
            let weight = match self.interpolation {
                Interpolation::Midpoint => high.sub(&low)?.mul(Scalar::Float(0.5))?,
                _ => ranks.sub(&low)?,
            };
            let weight = weight.to_dtype(grad.dtype())?;
            let (places, of_high) = (x.argsort(line, false)?, grad.mul(&weight)?);
            let mut all = x.zeros_like()?;
            for (rank, part) in [(&low, grad.sub(&of_high)?), (&high, of_high)] {
                let place = places.gather(line, &rank.to_dtype(DType::I64)?)?;
                all = all.scatter_add(line, &place, &part)?;
            }
            let shape = backward.shape(0).iter().map(|size| size.cast_signed());
            all.reshape(&shape.collect::<Vec<_>>())
        })
    }
}

impl Quantile {
    /// From values that are sorted along a cut dim: in place of that dim one of size 1, and the quantiles as a
    /// new last dim. For every line the two values beside each quantile are picked, and nothing else moves.
    fn of_sorted(&self, sorted: &DTensor, dim: usize) -> Result<DTensor> {
        let op = self.name();
        let (mesh, n) = (sorted.mesh(), sorted.shape()[dim]);
        // NaN are the last in order.
        let n_numbers = sorted.isnan()?.logical_not()?.sum(&[dim as isize], true)?.settled()?;
        let numbers = |lines: &Tensor| lines.to_dtype(DType::I64)?.to_vec::<i64>();
        let n_q = self.q.len();
        let of_pairs = uncut(op, sorted.layout(), dim, 2 * n_q, DType::I64)?;
        let places = placed(mesh, of_pairs, |_| {
            let mut all = Vec::new();
            let n_lines = n_numbers.local().numel();
            for count in numbers(&to_lines(n_numbers.local(), dim)?)? {
                for q in &self.q {
                    let (low, high, _) = self.beside(q.0, self.counted(count as usize, n));
                    all.extend([low as i64, high as i64]);
                }
            }
            from_lines(&Tensor::from_vec(all, &[n_lines, 2 * n_q])?, n_numbers.local().shape(), dim)
        })?;
        let pairs = sorted.gather(dim as isize, &places)?.settled()?;
        let mut shape = uncut(op, sorted.layout(), dim, 1, sorted.dtype())?.global_shape().to_vec();
        shape.push(n_q);
        let placements = pairs.placements();
        let layout = Layout::new(&shape, sorted.dtype(), mesh.mesh(), placements);
        placed(mesh, layout.map_err(Error::layout(op))?, |coord| {
            let lines = to_lines(pairs.local(), dim)?;
            let counts = numbers(&to_lines(n_numbers.local(), dim)?)?;
            let mut found = Vec::with_capacity(counts.len() * n_q);
            for (line, count) in counts.iter().enumerate() {
                let counted = self.counted(*count as usize, n);
                let is_nan = counted == 0 || (*count as usize) < counted;
                for (number, q) in self.q.iter().enumerate() {
                    let (_, _, weight) = self.beside(q.0, counted);
                    let pair = lines.select(0, line as isize)?.narrow(0, 2 * number, 2)?;
                    found.push(match is_nan {
                        true => Tensor::from_vec(vec![f64::NAN], &[1])?.to_dtype(lines.dtype())?,
                        false => pair.quantile(&[weight], None, false, self.between())?,
                    });
                }
            }
            // In the order of lines the dim, whose size is 1, is the last.
            let mut shape = uncut(op, pairs.layout(), dim, 1, pairs.dtype())?.local_shape(coord);
            let last = shape.len() - 1;
            shape.swap(dim, last);
            shape.push(n_q);
            let found = Tensor::pack(pairs.dtype(), &found)?.reshape(&shape)?;
            Ok(found.transpose(dim as isize, last as isize)?.contiguous())
        })
    }

    /// Where in the order of each line of a dim the quantiles are, in place of that dim.
    fn ranks(&self, x: &DTensor, dim: usize) -> Result<DTensor> {
        let (n, line) = (x.shape()[dim], dim as isize);
        let n_numbers = x.isnan()?.logical_not()?.sum(&[line], true)?.settled()?;
        let numbers = n_numbers.to_dtype(DType::F64)?;
        let mut shape = vec![1; x.n_dims()];
        shape[dim] = self.q.len();
        let q = Tensor::from_vec(self.q.iter().map(|q| q.0).collect::<Vec<f64>>(), &shape)?;
        let q = copied(self.name(), x.mesh(), q)?;
        let last = numbers.mul(Scalar::Float(0.0))?.add(Scalar::Float(n as f64 - 1.0))?;
        let ranks = match self.skip_nan {
            true => numbers.sub(Scalar::Float(1.0))?.maximum(Scalar::Float(0.0))?.mul(&q)?,
            // A NaN is the result, and is the last in order.
            false => n_numbers.lt(Scalar::Int(n as i64))?.where_self(&last, &last.mul(&q)?)?,
        };
        Ok(match self.interpolation {
            Interpolation::Lower => ranks.floor()?,
            Interpolation::Higher => ranks.ceil()?,
            Interpolation::Nearest => ranks.round()?,
            Interpolation::Linear | Interpolation::Midpoint => ranks,
        })
    }

    /// The shape of the result, from one in which the quantiles are the last dim and the reduced dim has size 1.
    fn finished(&self, shape: &[usize], dim: usize, n_dims: usize) -> Vec<usize> {
        let mut shape = shape.to_vec();
        shape.rotate_right(1);
        match (self.dim, self.keep_dims) {
            (_, false) => {
                shape.remove(1 + dim);
            }
            (Some(_), true) => {}
            (None, true) => shape.resize(1 + n_dims, 1),
        }
        shape
    }

    /// How many values of a line count, of which so many are numbers.
    fn counted(&self, n_numbers: usize, n: usize) -> usize {
        if self.skip_nan { n_numbers } else { n }
    }

    /// The places of the values below and above a quantile of so many, and how far it is from the first.
    fn beside(&self, q: f64, counted: usize) -> (usize, usize, f64) {
        let rank = q * counted.saturating_sub(1) as f64;
        let rank = match self.interpolation {
            Interpolation::Lower => rank.floor(),
            Interpolation::Higher => rank.ceil(),
            Interpolation::Nearest => rank.round_ties_even(),
            Interpolation::Linear | Interpolation::Midpoint => rank,
        };
        (rank.floor() as usize, rank.ceil() as usize, rank - rank.floor())
    }

    /// Between the two the kernel finds the value: where the quantile is that of one of them, both are that.
    fn between(&self) -> Interpolation {
        match self.interpolation {
            Interpolation::Midpoint => Interpolation::Midpoint,
            _ => Interpolation::Linear,
        }
    }
}

/// All values, sorted in one dim, cut by the axes that cut the tensor.
fn all_sorted(op: &'static str, x: &DTensor) -> Result<DTensor> {
    let (mesh, axes) = (x.mesh(), cut_axes(&[x]));
    let layout = rows_layout(op, mesh, &axes, &[x.numel()], x.dtype())?;
    if mesh.coord().is_none() {
        return Ok(DTensor::from_parts(x.to_local(), layout, mesh.clone()));
    }
    let line = Line { op, mesh, axes: &axes };
    let sizes: Vec<usize> =
        line.members()?.iter().map(|coord| x.layout().local_numel(coord)).collect();
    let wanted = |coord: &[usize]| interval(&layout, 0, coord);
    let merge = Merge { line: &line, sizes: &sizes, descending: false, wanted: &wanted };
    // In any order: where a value was does not matter.
    let part = x.local().contiguous().reshape(&[1, x.local().numel()])?;
    let values = merge.run(&part)?.values;
    let n = values.numel();
    Ok(DTensor::from_parts(values.reshape(&[n])?, layout, mesh.clone()))
}

/// How many parts a tensor is cut into.
fn n_parts(layout: &Layout) -> usize {
    let cuts = layout.placements().iter().enumerate();
    let cuts = cuts.filter(|(_, placement)| placement.shard_dim().is_some());
    cuts.map(|(axis, _)| layout.mesh().axis_size(axis)).product()
}

impl DTensor {
    /// The quantiles `q`, each from 0 to 1, along a dim or of all elements. The result has a new first dim
    /// that counts them. Of floats only; NaN where there is one.
    ///
    /// What is cut is sorted as by [`sort`](DTensor::sort), and the values beside each quantile are picked.
    pub fn quantile(
        &self,
        q: &[f64],
        dim: Option<isize>,
        keep_dims: bool,
        interpolation: Interpolation,
    ) -> Result<DTensor> {
        let q = q.iter().map(|q| Number(*q)).collect();
        let skip_nan = false;
        call_one(&Quantile { q, dim, keep_dims, interpolation, skip_nan }, &[self])
    }

    /// As [`quantile`](DTensor::quantile) without the NaN; NaN where there is nothing else.
    pub fn nanquantile(
        &self,
        q: &[f64],
        dim: Option<isize>,
        keep_dims: bool,
        interpolation: Interpolation,
    ) -> Result<DTensor> {
        let q = q.iter().map(|q| Number(*q)).collect();
        let skip_nan = true;
        call_one(&Quantile { q, dim, keep_dims, interpolation, skip_nan }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "quantile", samples: || samples(false) },
    // The same but for NaN, which samples do not have.
    OpRecord { name: "nanquantile", samples: || samples(true).into_iter().step_by(2).collect() },
];

fn samples(skip_nan: bool) -> Vec<Sample> {
    let sample = |q: &[f64], dim, keep_dims, interpolation, shape: &[usize]| {
        let q = q.iter().map(|q| Number(*q)).collect();
        Sample::new(Quantile { q, dim, keep_dims, interpolation, skip_nan }, &[shape])
    };
    vec![
        sample(&[0.25, 0.9], Some(1), false, Interpolation::Linear, &[3, 5]),
        sample(&[0.5], Some(0), true, Interpolation::Midpoint, &[4, 3]),
        sample(&[0.3, 0.0, 1.0], Some(-1), false, Interpolation::Linear, &[2, 17]),
        sample(&[0.4], Some(1), true, Interpolation::Nearest, &[1, 18, 1]),
        sample(&[0.7], None, false, Interpolation::Midpoint, &[4, 5]),
        sample(&[0.1, 0.6], None, true, Interpolation::Higher, &[19, 1]),
        sample(&[0.6], None, false, Interpolation::Lower, &[]),
    ]
}
