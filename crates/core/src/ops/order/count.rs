//! Counting values. Every rank counts its part, and the result is a pending sum.

use dtensor_layout::{DType, Layout, Placement, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Error, Result,
    dispatch::{call, call_one, call_two},
    op::{
        LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues::{Ascending, Index},
        one, two,
    },
    ops::indexing::{
        held::{TENSOR, letters},
        ragged::{Line, check_values, cut_axes, infer_by_values},
    },
};

/// `bincount`; weights are the second operand, if there are any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bincount {
    min_length: usize,
}

impl Op for Bincount {
    fn name(&self) -> &'static str {
        "bincount"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        // What the ranks count is as long as the largest value of each; see `decompose`.
        Ok(Rule::of(if operands.len() == 1 { "a! -> n!" } else { "a!, a! -> n!" }, &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].bincount(x.get(1).copied(), self.min_length))
    }

    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        infer_by_values(self, operands)
    }

    fn decomposes(&self, _: &[&Layout]) -> bool {
        true
    }

    /// The ranks tell each other their extreme values, so that all count as many numbers.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        check_values(op, &x)?;
        let weights = match operands.get(1) {
            Some(weights) => {
                let like = x.layout().with_dtype(weights.dtype()).map_err(Error::layout(op))?;
                Some(weights.settled()?.redistribute_as(op, &like)?)
            }
            None => None,
        };
        let (mesh, axes) = (x.mesh(), cut_axes(&[&x]));
        let line = Line { op, mesh, axes: &axes };
        let numbers = x.local().to_dtype(DType::I64)?.to_vec::<i64>()?;
        let largest = numbers.iter().copied().max().unwrap_or(-1);
        let smallest = numbers.iter().copied().min().unwrap_or(0);
        let extremes = line.agree(&[largest, smallest])?;
        if let Some(wrong) = extremes.iter().map(|one| one[1]).find(|smallest| *smallest < 0) {
            let (name, got, want) = ("a value", wrong.to_string(), "numbers from 0 on");
            return Err(LocalError::BadNumber { op, name, got, want }.into());
        }
        let largest = extremes.iter().map(|one| one[0]).max().unwrap_or(-1);
        let n = usize::try_from(largest.saturating_add(1)).unwrap_or(0).max(self.min_length);
        let counts = x.local().bincount(weights.as_ref().map(DTensor::local), n)?;
        let pending = |axis: usize| match axes.contains(&axis) {
            true => Placement::Partial(ReduceOp::Sum),
            false => Placement::Replicate,
        };
        let placements: Vec<Placement> = (0..mesh.n_axes()).map(pending).collect();
        let layout = Layout::new(&[n], counts.dtype(), mesh.mesh(), &placements);
        let layout = layout.map_err(Error::layout(op))?;
        Ok([DTensor::from_parts(counts, layout, mesh.clone())].into())
    }
}

/// `histc`. If the two ends are equal, the range is that of the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Histc {
    bins: usize,
    min: Number,
    max: Number,
}

impl Op for Histc {
    fn name(&self) -> &'static str {
        "histc"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(Rule::of(&format!("{} -> n!", counted(&operands[0], self.has_range())), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].histc(self.bins, self.min.0, self.max.0))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        !self.has_range() && is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled()?;
        let (min, max) = range_of(self.name(), &x, self.min.0)?;
        call(&Histc { bins: self.bins, min: Number(min), max: Number(max) }, &[&x])
    }
}

impl Histc {
    fn has_range(&self) -> bool {
        self.min.0 != self.max.0
    }
}

/// `histogram` of bins of equal size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Histogram {
    bins: usize,
    range: Option<(Number, Number)>,
}

impl Op for Histogram {
    fn name(&self) -> &'static str {
        "histogram"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let mut text = format!("{} -> n!, m!", counted(&operands[0], false));
        if self.has_range() {
            for dim in 0..operands[0].n_dims() {
                // All ranks have the edges.
                text += &format!("; S({dim}) -> P(sum) R");
            }
        }
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(x[0].histogram(self.bins, self.range.map(|(min, max)| (min.0, max.0))))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        !self.has_range() && is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled()?;
        let single = self.range.map_or(0.0, |(min, _)| min.0);
        let (min, max) = range_of(self.name(), &x, single)?;
        let range = Some((Number(min), Number(max)));
        call(&Histogram { bins: self.bins, range }, &[&x])
    }
}

impl Histogram {
    fn has_range(&self) -> bool {
        self.range.is_some_and(|(min, max)| min.0 != max.0)
    }
}

/// `histogram` of given edges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HistogramOfEdges;

impl Op for HistogramOfEdges {
    fn name(&self) -> &'static str {
        "histogram_of_edges"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(Rule::of(&format!("{}, m! -> n!", counted(&operands[0], true)), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].histogram_of_edges(x[1]))
    }
}

/// The names of dims over which counts are summed up, or which are needed whole.
fn counted(operand: &Meta, may_be_cut: bool) -> String {
    let mark = if may_be_cut { " " } else { "! " };
    letters(TENSOR, operand.n_dims()).iter().map(|name| format!("{name}{mark}")).collect()
}

fn is_cut(layout: &Layout) -> bool {
    layout.placements().iter().any(|placement| placement.shard_dim().is_some())
}

/// The range of all values, which the ranks tell each other; if there is only one value, a range around it, as
/// the kernels take it. `single` is the range of no values.
fn range_of(op: &'static str, x: &DTensor, single: f64) -> Result<(f64, f64)> {
    let mesh = x.mesh();
    if mesh.coord().is_none() || mesh.is_fake() {
        // There the values do not matter, only the layout of the result does.
        return Ok((0.0, 1.0));
    }
    let axes = cut_axes(&[x]);
    let own = match x.local().numel() {
        0 => (f64::INFINITY, f64::NEG_INFINITY),
        _ => {
            let value = |extreme: Tensor| extreme.to_dtype(DType::F64)?.item::<f64>();
            (value(x.local().amin(&[], false)?)?, value(x.local().amax(&[], false)?)?)
        }
    };
    let all =
        Line { op, mesh, axes: &axes }.agree(&[own.0.to_bits() as i64, own.1.to_bits() as i64])?;
    let all: Vec<(f64, f64)> = all
        .iter()
        .map(|one| (f64::from_bits(one[0] as u64), f64::from_bits(one[1] as u64)))
        .collect();
    if all.iter().any(|(min, _)| min.is_nan()) {
        return Ok((f64::NAN, f64::NAN));
    }
    let (min, max) = match x.numel() {
        0 => (single, single),
        _ => all.iter().fold(own, |a, b| (a.0.min(b.0), a.1.max(b.1))),
    };
    if min != max {
        return Ok((min, max));
    }
    let (min, max) = (min - 1.0, max + 1.0);
    if min == max {
        // So large that it is its own neighbour. The kernel refuses it, too; and a range that is none would
        // be looked for again.
        let (got, want) = (format!("{min}..={max}"), "finite numbers, the first not the larger");
        return Err(LocalError::BadNumber { op, name: "range", got, want }.into());
    }
    Ok((min, max))
}

impl DTensor {
    /// How often each number from 0 to the largest is there, or the sum of the weights of its elements; at
    /// least `min_length` results. For a tensor of one dim of integers that are not negative.
    ///
    /// The result is a pending sum over the axes that cut the tensor. The ranks tell each other their largest
    /// number.
    pub fn bincount(&self, weights: Option<&DTensor>, min_length: usize) -> Result<DTensor> {
        let op = Bincount { min_length };
        match weights {
            Some(weights) => call_one(&op, &[self, weights]),
            None => call_one(&op, &[self]),
        }
    }

    /// How many elements are in each of `bins` equal parts of `min..=max`, in the dtype of the tensor; if the
    /// two are equal, of the range of its values, on which the ranks agree first. Of floats only. Elements
    /// outside, and NaN, do not count.
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> Result<DTensor> {
        call_one(&Histc { bins, min: Number(min), max: Number(max) }, &[self])
    }

    /// Counts as [`histc`](DTensor::histc), and the `bins + 1` edges of the parts. Without a range, that of
    /// the values is taken.
    pub fn histogram(&self, bins: usize, of: Option<(f64, f64)>) -> Result<(DTensor, DTensor)> {
        let range = of.map(|(min, max)| (Number(min), Number(max)));
        call_two(&Histogram { bins, range }, &[self])
    }

    /// How many elements are between each two neighbours of the sorted `edges`.
    pub fn histogram_of_edges(&self, edges: &DTensor) -> Result<DTensor> {
        call_one(&HistogramOfEdges, &[self, edges])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "bincount",
        samples: || {
            let sample = |min_length, shapes: &[&[usize]]| {
                Sample::new(Bincount { min_length }, shapes).with(0, Index(4))
            };
            vec![sample(0, &[&[7]]), sample(6, &[&[5]]), sample(0, &[&[6], &[6]])]
        },
    },
    OpRecord {
        name: "histc",
        samples: || {
            let sample = |bins, min, max, shape: &[usize]| {
                Sample::new(Histc { bins, min: Number(min), max: Number(max) }, &[shape])
            };
            vec![
                sample(4, -2.0, 2.0, &[5, 3]),
                sample(3, 0.0, 0.0, &[7]),
                sample(3, 0.0, 0.0, &[2, 3]),
                sample(2, 1.0, 1.0, &[]),
            ]
        },
    },
    OpRecord {
        name: "histogram",
        samples: || {
            let sample = |bins, range: Option<(f64, f64)>, shape: &[usize]| {
                let range = range.map(|(min, max)| (Number(min), Number(max)));
                Sample::new(Histogram { bins, range }, &[shape])
            };
            vec![
                sample(4, Some((-2.0, 2.0)), &[5, 3]),
                sample(3, None, &[7]),
                sample(3, None, &[2, 3]),
            ]
        },
    },
    OpRecord {
        name: "histogram_of_edges",
        samples: || {
            let sample =
                |shapes: &[&[usize]; 2]| Sample::new(HistogramOfEdges, shapes).with(1, Ascending);
            vec![sample(&[&[5, 3], &[4]]), sample(&[&[7], &[3]])]
        },
    },
];
