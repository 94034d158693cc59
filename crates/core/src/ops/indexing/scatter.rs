//! Elements to the places that indices name, the opposite of a gather. Along a dim that is cut every rank
//! writes what falls into its part: the result stays cut, and no element is sent.

use std::ops::Range;

use dtensor_layout::{DType, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Scalar, ScatterReduce, Tensor};

use super::{
    held::{
        LIST, SOURCE, TENSOR, is_left_out, letter, letters, normal, numbers, ranges, with_a_dim,
    },
    last,
};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Index, Permutation},
        Value, one,
    },
    ops::movement::resized,
};

/// `scatter` and its family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scatter {
    dim: isize,
    how: How,
}

/// What becomes of an element that is written to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum How {
    /// It is that of the source.
    Set,
    /// It is this value.
    Fill(Value),
    Add,
    Reduce {
        reduce: ScatterReduce,
        include_self: bool,
    },
}

impl How {
    /// The reduction that several ranks may each do a part of, since what was there before counts like the
    /// values that arrive.
    fn shared(&self) -> Option<ReduceOp> {
        match self {
            How::Add => Some(ReduceOp::Sum),
            How::Reduce { reduce, include_self: true } => match reduce {
                ScatterReduce::Sum => Some(ReduceOp::Sum),
                ScatterReduce::Prod => Some(ReduceOp::Product),
                ScatterReduce::Amax => Some(ReduceOp::Max),
                ScatterReduce::Amin => Some(ReduceOp::Min),
                ScatterReduce::Mean => None,
            },
            _ => None,
        }
    }

    /// What may be pending: the tensor, the source, both; and the reduction.
    fn pending(&self, is_float: bool) -> Vec<(bool, bool, ReduceOp)> {
        use ReduceOp::{Avg, Max, Min, Product, Sum};
        let all = |op| [(true, false, op), (false, true, op), (true, true, op)];
        match self {
            // Elements only move; those that are whole do not change by a mean or an extreme.
            How::Set => {
                let moved = [Avg, Max, Min].into_iter().flat_map(all).chain(both(&[Sum, Product]));
                moved.chain([(false, true, Sum)]).collect()
            }
            // Nothing of a sum or a product is one of nothings.
            How::Fill(value) if value.0.to_f64() == 0.0 => {
                ReduceOp::ALL.map(|op| (true, false, op)).into()
            }
            How::Fill(_) => [Avg, Max, Min].map(|op| (true, false, op)).into(),
            // Sums are linear, and linear up to a constant in each alone.
            How::Add | How::Reduce { reduce: ScatterReduce::Sum, include_self: true } => {
                let rising = [(true, false, Max), (true, false, Min)].into_iter();
                // What ascends does not where integers wrap around.
                let rising = rising.filter(|_| is_float);
                [Sum, Avg].into_iter().flat_map(all).chain(rising).collect()
            }
            How::Reduce { reduce: ScatterReduce::Sum, .. } => both(&[Sum, Avg]).collect(),
            // A mean of integers is rounded, so it is not linear.
            How::Reduce { reduce: ScatterReduce::Mean, .. } if is_float => {
                [(true, true, Sum)].into_iter().chain(all(Avg)).collect()
            }
            How::Reduce { reduce: ScatterReduce::Mean, .. } => Vec::new(),
            How::Reduce { reduce: ScatterReduce::Prod, include_self: true } => all(Product).into(),
            How::Reduce { reduce: ScatterReduce::Prod, .. } => both(&[Product]).collect(),
            // The largest of the largest, in any order; and max(min(a, b), c) = min(max(a, c), max(b, c)).
            How::Reduce { reduce: ScatterReduce::Amax, .. } => {
                all(Max).into_iter().chain([(true, false, Min)]).collect()
            }
            How::Reduce { reduce: ScatterReduce::Amin, .. } => {
                all(Min).into_iter().chain([(true, false, Max)]).collect()
            }
        }
    }
}

fn both(ops: &[ReduceOp]) -> impl Iterator<Item = (bool, bool, ReduceOp)> + '_ {
    ops.iter().map(|op| (true, true, *op))
}

impl Op for Scatter {
    fn name(&self) -> &'static str {
        match &self.how {
            How::Set => "scatter",
            How::Fill(_) => "scatter_scalar",
            How::Add => "scatter_add",
            How::Reduce { .. } => "scatter_reduce",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, list, source) = (&operands[0], &operands[1], operands.get(2));
        let dim = normal(self.dim, x.n_dims());
        let shared = self.how.shared();
        let size = |of: &Meta, d: usize| of.shape.get(d).copied();
        let name = |of: &Meta, family: char, d: usize| {
            let sizes = [Some(x), Some(list), source].into_iter().flatten().map(|of| size(of, d));
            let equal = sizes.into_iter().all(|one| one == size(x, d));
            let entries = source.is_none_or(|source| size(source, d) == size(list, d));
            match d == dim {
                // Cut together wherever all of a dim is written.
                false if equal => letter(TENSOR, d),
                // The entries of one place may be on several ranks, which then have a part of the result.
                true if shared.is_some() && entries && of.n_dims() > 0 => letter(LIST, d),
                _ => format!("{}!", letter(family, d)),
            }
        };
        let names = |of: &Meta, family| {
            (0..of.n_dims()).map(|d| name(of, family, d)).collect::<Vec<_>>().join(" ")
        };
        let tensor = letters(TENSOR, x.n_dims()).join(" ");
        let mut text = format!("{tensor}, {}", names(list, LIST));
        if let Some(source) = source {
            text += &format!(", {}", names(source, SOURCE));
        }
        text += &format!(" -> {tensor}");
        if let Some(op) = shared.filter(|op| *op != ReduceOp::Sum) {
            text += &format!(" @{op}");
        }
        let place = |pending: bool, op| if pending { format!("P({op})") } else { "R".to_string() };
        for (tensor, of_source, op) in self.how.pending(x.dtype.is_float()) {
            text += &format!("; {} R", place(tensor, op));
            if source.is_some() {
                text += &format!(" {}", place(of_source, op));
            }
            text += &format!(" -> P({op})");
        }
        if let (Some(op), Some(source)) = (shared, source)
            && source.n_dims() > 0
            && list.n_dims() > 0
            && source.shape[dim] == list.shape[dim]
        {
            text += &format!("; P({op}) S({dim}) S({dim}) -> P({op})");
        }
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, list, source) = (operands[0], operands[1], operands.get(2).copied());
        let Some(layout) = context.operand(0) else { return one(self.kernel(x, list, source)) };
        if x.is_meta() || list.is_meta() || source.is_some_and(Tensor::is_meta) {
            return one(Tensor::meta(x.shape(), x.dtype()));
        }
        let dim = normal(self.dim, x.n_dims());
        let size = layout.global_shape().get(dim).copied().unwrap_or(1);
        // All of them, so that what is wrong is found wherever it is seen.
        let all = numbers(self.name(), list, dim, size, false)?;
        let start = match (is_left_out(context, &[0]), self.how.shared()) {
            (true, Some(ReduceOp::Product)) => x.ones_like()?,
            (true, _) => x.zeros_like()?,
            (false, _) => x.clone(),
        };
        let entries: &[usize] = if source.is_some() { &[1, 2] } else { &[1] };
        if self.how.shared().is_some() && is_left_out(context, entries) {
            return one(Ok(start));
        }
        let held = ranges(context, 0, x);
        let Some((list, source)) = self.within(&held, dim, context, list, source)? else {
            return one(Ok(start));
        };
        if held[dim].len() == size {
            return one(self.kernel(&start, &list, source.as_ref()));
        }
        let all = match all.len() == list.numel() {
            true => all,
            false => numbers(self.name(), &list, dim, size, false)?,
        };
        one(self.with_a_place_for_the_rest(&start, &held[dim], &list, &all, source.as_ref()))
    }

    fn keeps(&self) -> Option<Keep> {
        use ScatterReduce::{Amax, Amin, Prod};
        Some(match self.how {
            How::Reduce { reduce: Amax | Amin | Prod, .. } => Keep::OPERANDS.and(Keep::RESULTS),
            _ => Keep::operands(&[1]),
        })
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, list) = (backward.grad()?, backward.operand(1)?);
        // As if the tensor counted everywhere, and of what the list reaches of the source.
        let (of_tensor, of_source) = match &self.how {
            How::Reduce { reduce: ScatterReduce::Mean, include_self } => {
                let share = self.of_mean(&grad, &list, *include_self)?;
                (share.clone(), Some(share.gather(self.dim, &list)?))
            }
            How::Reduce { reduce: ScatterReduce::Prod, include_self } => {
                let (of_tensor, of_source) = self.of_product(backward, &grad, *include_self)?;
                (of_tensor, Some(of_source))
            }
            How::Reduce { reduce: ScatterReduce::Amax | ScatterReduce::Amin, include_self } => {
                let (of_tensor, of_source) = self.of_extreme(backward, &grad, *include_self)?;
                (of_tensor, Some(of_source))
            }
            _ => (grad.clone(), None),
        };
        let counts = match self.how {
            How::Set | How::Fill(_) => false,
            How::Add => true,
            How::Reduce { include_self, .. } => include_self,
        };
        backward.each(|operand| match (operand, &of_source) {
            (0, _) if counts => Ok(of_tensor.clone()),
            (0, _) => of_tensor.scatter_scalar(self.dim, &list, Scalar::Float(0.0)),
            (_, Some(of_source)) => resized(of_source, backward.shape(operand)),
            _ if self.how == How::Set => {
                resized(&self.of_the_last(&grad, &list)?, backward.shape(operand))
            }
            _ => resized(&grad.gather(self.dim, &list)?, backward.shape(operand)),
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

impl Scatter {
    fn kernel(
        &self,
        x: &Tensor,
        list: &Tensor,
        source: Option<&Tensor>,
    ) -> Result<Tensor, LocalError> {
        // Without a source there is none to be asked for.
        let source = source.unwrap_or(list);
        match &self.how {
            How::Set => x.scatter(self.dim, list, source),
            How::Fill(value) => x.scatter_scalar(self.dim, list, value.0),
            How::Add => x.scatter_add(self.dim, list, source),
            How::Reduce { reduce, include_self } => {
                x.scatter_reduce(self.dim, list, source, *reduce, *include_self)
            }
        }
    }

    /// The gradient of the values that stayed.
    fn of_the_last(&self, grad: &DTensor, list: &DTensor) -> Result<DTensor> {
        let picked = grad.gather(self.dim, list)?;
        if list.n_dims() == 0 || grad.n_dims() == 0 {
            return Ok(picked);
        }
        let numbers = last::numbers(list, list.shape(), normal(self.dim, grad.n_dims()))?;
        let all: Vec<usize> = (0..grad.n_dims()).collect();
        let written = last::places(grad, &all)?.scatter(self.dim, list, &numbers)?;
        let shape: Vec<isize> = list.shape().iter().map(|size| size.cast_signed()).collect();
        last::of_the_last(&picked, &numbers, &written.gather(self.dim, list)?, &shape)
    }

    /// Of a mean, every element has the same share.
    fn of_mean(&self, grad: &DTensor, list: &DTensor, include_self: bool) -> Result<DTensor> {
        let all: Vec<usize> = (0..grad.n_dims()).collect();
        let own = last::places(grad, &all)?.full_like(Scalar::Bool(include_self))?;
        let ones = list.settled()?.ones_like()?.to_dtype(DType::I64)?;
        let counts = own.scatter_add(self.dim, list, &ones)?.maximum(Scalar::Int(1))?;
        grad.div(&counts.to_dtype(grad.dtype())?)
    }

    /// Evenly to those that are the extreme.
    fn of_extreme(
        &self,
        backward: &Backward<'_>,
        grad: &DTensor,
        include_self: bool,
    ) -> Result<(DTensor, DTensor)> {
        let [x, list, source] = self.operands(backward)?;
        let result = backward.result(0)?.detach().settled()?;
        let mut is_own = x.detach().eq(&result)?.to_dtype(DType::I64)?;
        if !include_self {
            is_own = is_own.scatter_scalar(self.dim, &list, Scalar::Int(0))?;
        }
        let is_source = source.detach().eq(&result.gather(self.dim, &list)?)?;
        let is_source = is_source.to_dtype(DType::I64)?;
        // None at all where there is a NaN.
        let counts = is_own.scatter_add(self.dim, &list, &is_source)?.maximum(Scalar::Int(1))?;
        let share = grad.div(&counts.to_dtype(grad.dtype())?)?;
        let of_source = share.gather(self.dim, &list)?.mul(&is_source.to_dtype(grad.dtype())?)?;
        Ok((share.mul(&is_own.to_dtype(grad.dtype())?)?, of_source))
    }

    /// The product of the others: the result divided by the element, unless that is zero.
    fn of_product(
        &self,
        backward: &Backward<'_>,
        grad: &DTensor,
        include_self: bool,
    ) -> Result<(DTensor, DTensor)> {
        let [x, list, source] = self.operands(backward)?;
        let times = |x: &DTensor, source: &DTensor| {
            x.scatter_reduce(self.dim, &list, source, ScatterReduce::Prod, include_self)
        };
        let one = Scalar::Float(1.0);
        let with_one = x.masked_fill(&x.eq(Scalar::Float(0.0))?, one)?;
        let of_tensor = grad.mul(&times(&with_one, &source)?)?.div(&with_one)?;
        // A zero has a gradient if it is the only one for its place.
        let is_zero = source.eq(Scalar::Float(0.0))?;
        let all: Vec<usize> = (0..x.n_dims()).collect();
        let zeros = last::places(&x, &all)?;
        let n_zeros = zeros.scatter_add(self.dim, &list, &is_zero.to_dtype(DType::I64)?)?;
        let n_zeros = n_zeros.gather(self.dim, &list)?;
        let is_single = n_zeros.eq(Scalar::Int(1))?.logical_and(&is_zero)?;
        let without = times(&x, &source.masked_fill(&is_single, one)?)?;
        let beside_zero = grad.mul(&without)?.gather(self.dim, &list)?;
        let beside = grad.mul(&backward.result(0)?)?.gather(self.dim, &list)?;
        let beside = beside.div(&source.masked_fill(&is_zero, one)?)?;
        Ok((of_tensor, is_single.where_self(&beside_zero, &beside)?))
    }

    /// The tensor, the list, and what it reaches of the source.
    fn operands(&self, backward: &Backward<'_>) -> Result<[DTensor; 3]> {
        let (x, list) = (backward.operand(0)?, backward.operand(1)?);
        let source = resized(&backward.operand(2)?, list.shape())?;
        Ok([x, list, source])
    }

    /// The entries whose positions in the other dims are in the part of the tensor, if there are any.
    fn within(
        &self,
        held: &[Range<usize>],
        dim: usize,
        context: &LocalContext,
        list: &Tensor,
        source: Option<&Tensor>,
    ) -> Result<Option<(Tensor, Option<Tensor>)>, LocalError> {
        let list_at = ranges(context, 1, list);
        let source_at = source.map(|source| ranges(context, 2, source));
        let mut list = with_a_dim(list)?;
        let mut source = source.map(with_a_dim).transpose()?;
        for (d, held) in held.iter().enumerate().filter(|(d, _)| *d != dim) {
            let start = held.start.max(list_at[d].start);
            let end = held.end.min(list_at[d].end);
            if start >= end {
                return Ok(None);
            }
            let part = |of: &Tensor, at: &Range<usize>| {
                of.narrow(d as isize, start - at.start, end - start)
            };
            list = part(&list, &list_at[d])?;
            if let (Some(values), Some(at)) = (&source, &source_at) {
                source = Some(part(values, &at[d])?);
            }
        }
        Ok(Some((list, source)))
    }

    /// Into a part of the dim with one more place, which takes what belongs to other ranks and is dropped:
    /// so the entries keep their order, and the kernel need not know.
    fn with_a_place_for_the_rest(
        &self,
        x: &Tensor,
        held: &Range<usize>,
        list: &Tensor,
        numbers: &[usize],
        source: Option<&Tensor>,
    ) -> Result<Tensor, LocalError> {
        let dim = normal(self.dim, x.n_dims()) as isize;
        let local = numbers.iter().map(|number| match held.contains(number) {
            true => (number - held.start) as i64,
            false => held.len() as i64,
        });
        let local = Tensor::from_vec(local.collect(), list.shape())?;
        let mut rest = x.shape().to_vec();
        rest[dim.unsigned_abs()] = 1;
        let longer = Tensor::cat(&[x, &Tensor::zeros(&rest, x.dtype())?], dim)?;
        let written = self.kernel(&longer, &local, source)?;
        Ok(written.narrow(dim, 0, held.len())?.contiguous())
    }
}

impl DTensor {
    /// A copy with `copy[indices[i][j][k]][j][k] = source[i][j][k]`, for `dim` 0. Of several values for one
    /// element the last stays.
    ///
    /// The result is cut as the tensor is, also along `dim`: every rank writes what falls into its part.
    pub fn scatter(&self, dim: isize, indices: &DTensor, source: &DTensor) -> Result<DTensor> {
        call_one(&Scatter { dim, how: How::Set }, &[self, indices, source])
    }

    /// As [`scatter`](DTensor::scatter), with one value for all elements.
    pub fn scatter_scalar(
        &self,
        dim: isize,
        indices: &DTensor,
        value: impl Into<Scalar>,
    ) -> Result<DTensor> {
        call_one(&Scatter { dim, how: How::Fill(Value(value.into())) }, &[self, indices])
    }

    /// As [`scatter`](DTensor::scatter), but the values are added to what is there. Where indices and source
    /// are cut along `dim`, the result is a pending sum.
    pub fn scatter_add(&self, dim: isize, indices: &DTensor, source: &DTensor) -> Result<DTensor> {
        call_one(&Scatter { dim, how: How::Add }, &[self, indices, source])
    }

    /// As [`scatter_add`](DTensor::scatter_add), with another way to make one value of several. Without
    /// `include_self`, what is there counts only where no value arrives.
    pub fn scatter_reduce(
        &self,
        dim: isize,
        indices: &DTensor,
        source: &DTensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<DTensor> {
        let how = How::Reduce { reduce, include_self };
        call_one(&Scatter { dim, how }, &[self, indices, source])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "scatter", samples: || samples(|| How::Set) },
    OpRecord {
        name: "scatter_scalar",
        samples: || {
            let sample = |dim, value, shape: &[usize], list: &[usize], size| {
                let how = How::Fill(Value(Scalar::Float(value)));
                Sample::new(Scatter { dim, how }, &[shape, list]).with(1, Index(size))
            };
            vec![sample(0, 1.5, &[5, 3], &[2, 3], 5), sample(-1, 0.0, &[3, 5], &[2, 4], 5)]
        },
    },
    OpRecord { name: "scatter_add", samples: || samples(|| How::Add) },
    OpRecord {
        name: "scatter_reduce",
        samples: || {
            use ScatterReduce::{Amax, Amin, Mean, Prod, Sum};
            let all = [(Amax, true), (Sum, false), (Prod, true), (Mean, false), (Mean, true)];
            let all = all.into_iter().chain([(Amin, true), (Amax, false)]);
            all.map(|(reduce, include_self)| {
                let how = How::Reduce { reduce, include_self };
                Sample::new(Scatter { dim: 0, how }, &[&[3, 2], &[5, 2], &[5, 2]]).with(1, Index(3))
            })
            .collect()
        },
    },
];

fn samples(how: fn() -> How) -> Vec<Sample> {
    let sample = |dim, shapes: &[&[usize]; 3], size| {
        Sample::new(Scatter { dim, how: how() }, shapes).with(1, Index(size))
    };
    vec![
        sample(0, &[&[5, 3], &[4, 3], &[4, 3]], 5),
        // Smaller lists than the tensor, and than the source.
        sample(-1, &[&[5, 3], &[3, 2], &[4, 3]], 3),
        sample(0, &[&[5], &[5], &[5]], 5).with(1, Permutation),
        sample(0, &[&[3], &[], &[]], 3),
    ]
}
