//! Elements by their index. Along a dim that is cut every rank gives what it holds, and zeros for the rest:
//! the result is a pending sum, and the tensor stays where it is.

use dtensor_layout::{
    Placement, ReduceOp,
    rule::{Law::MovesIn, Rule},
};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::{
    held::{Hits, LIST, TENSOR, letter, letters, normal, numbers, ranges, with_a_dim},
    zeros::zeros_for,
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::Index, one,
    },
};

/// `index_select`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IndexSelect {
    dim: isize,
}

impl Op for IndexSelect {
    fn name(&self) -> &'static str {
        "index_select"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let tensor = letters(TENSOR, n_dims);
        let mut result = tensor.clone();
        let list = letters(LIST, operands[1].n_dims());
        if let Some(dim) = result.get_mut(normal(self.dim, n_dims)) {
            *dim = list.first().cloned().unwrap_or_else(|| "1".to_string());
        }
        // One element of a tensor without dims is the tensor.
        let mark = if n_dims == 0 && !list.is_empty() { "!" } else { "" };
        let (tensor, list, result) = (tensor.join(" "), list.join(" "), result.join(" "));
        Ok(Rule::of(&format!("{tensor}, {list}{mark} -> {result}"), &[MovesIn(0)]))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, list) = (operands[0], operands[1]);
        let dim = normal(self.dim, x.n_dims());
        let size = context.operand(0).and_then(|layout| layout.global_shape().get(dim).copied());
        let Some(size) = size.filter(|size| *size != x.shape()[dim] && !list.is_meta()) else {
            return one(x.index_select(self.dim, list));
        };
        let held = context.operand_range(0, dim, size);
        let hits = Hits::of(&numbers(self.name(), list, dim, size, false)?, &held)?;
        let mut shape = x.shape().to_vec();
        shape[dim] = list.numel();
        let picked = x.index_select(self.dim, &hits.indices)?;
        one(Tensor::zeros(&shape, x.dtype())?.index_copy(self.dim, &hits.positions, &picked))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let n_dims = backward.shape(0).len();
        backward.first(|| {
            if n_dims == 0 {
                return Ok(grad);
            }
            // A rank that has some of the slices adds them to its own, and the sum is pending.
            let place = |other: usize| match other == normal(self.dim, n_dims) {
                true => Placement::Partial(ReduceOp::Sum),
                false => Placement::Shard(other),
            };
            let zeros = zeros_for(backward, 0, &grad, |dim| Some(place(dim)))?;
            zeros.index_add(self.dim, &backward.operand(1)?, &grad, Scalar::Int(1))
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

/// `gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Gather {
    dim: isize,
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (x, list) = (&operands[0], &operands[1]);
        let dim = normal(self.dim, x.n_dims());
        let tensor = letters(TENSOR, x.n_dims());
        let names = (0..list.n_dims()).map(|d| {
            // Where the indices are for all of a dim, they are cut together with it.
            let same = d != dim && x.shape.get(d) == list.shape.get(d);
            letter(if same { TENSOR } else { LIST }, d)
        });
        let list = names.collect::<Vec<_>>().join(" ");
        Ok(Rule::of(&format!("{}, {list} -> {list}", tensor.join(" ")), &[MovesIn(0)]))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, list) = (operands[0], operands[1]);
        let Some(layout) = context.operand(0) else { return one(x.gather(self.dim, list)) };
        if list.is_meta() {
            return one(Tensor::meta(list.shape(), x.dtype()));
        }
        let dim = normal(self.dim, x.n_dims());
        let size = layout.global_shape().get(dim).copied().unwrap_or(1);
        let (tensor_at, list_at) = (ranges(context, 0, x), ranges(context, 1, list));
        let (mut part, mut wanted) = (with_a_dim(x)?, with_a_dim(list)?);
        let mut place = Vec::with_capacity(part.n_dims());
        for d in 0..part.n_dims() {
            let (have, want) = (&tensor_at[d], &list_at[d]);
            if d == dim {
                place.push(0..want.len());
                continue;
            }
            let start = have.start.max(want.start).min(want.end);
            let end = have.end.min(want.end).max(start);
            if start == end {
                // What is wrong is so on every rank that sees it, also on one that has nothing of it.
                numbers(self.name(), list, dim, size, false)?;
                return one(Tensor::zeros(list.shape(), x.dtype()));
            }
            part = part.narrow(d as isize, start - have.start, end - start)?;
            wanted = wanted.narrow(d as isize, start - want.start, end - start)?;
            place.push(start - want.start..end - want.start);
        }
        if tensor_at[dim].len() == size && wanted.shape() == with_a_dim(list)?.shape() {
            return one(part.gather(dim as isize, &wanted)?.reshape(list.shape()));
        }
        // All of the list, so that what is wrong is found wherever it is seen.
        numbers(self.name(), list, dim, size, false)?;
        let held = &tensor_at[dim];
        if held.is_empty() {
            return one(Tensor::zeros(list.shape(), x.dtype()));
        }
        let shape = wanted.shape().to_vec();
        let indices = numbers(self.name(), &wanted, dim, size, false)?;
        let missing = indices.iter().map(|index| !held.contains(index)).collect();
        let missing = Tensor::from_vec::<bool>(missing, &shape)?;
        let local = indices.iter().map(|index| match held.contains(index) {
            true => (index - held.start) as i64,
            false => 0,
        });
        let local = Tensor::from_vec(local.collect(), &shape)?;
        let picked = part.gather(dim as isize, &local)?.masked_fill(&missing, false)?;
        let whole = Tensor::zeros(with_a_dim(list)?.shape(), x.dtype())?;
        one(whole.slice_assign(&place, &picked)?.reshape(list.shape()))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| spread_back(backward, self.dim, &backward.operand(1)?, &grad))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

/// `take`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Take;

impl Op for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let tensor = letters(TENSOR, operands[0].n_dims()).join(" ");
        let list = letters(LIST, operands[1].n_dims()).join(" ");
        Ok(Rule::of(&format!("{tensor}, {list} -> {list}"), &[MovesIn(0)]))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, list) = (operands[0], operands[1]);
        let whole = context.operand(0).map(|layout| layout.global_shape());
        let Some(whole) = whole.filter(|whole| *whole != x.shape() && !list.is_meta()) else {
            return one(x.take(list));
        };
        let held = ranges(context, 0, x);
        let numbers = numbers(self.name(), list, 0, whole.iter().product(), true)?;
        let local = |number: &usize| {
            // From the last dim to the first; what is counted in the part grows alike.
            let (mut rest, mut at, mut stride) = (*number, 0, 1);
            for ((size, held), local) in whole.iter().zip(&held).zip(x.shape()).rev() {
                let index = rest % size;
                rest /= size;
                at += held.contains(&index).then(|| (index - held.start) * stride)?;
                stride *= local;
            }
            Some(at)
        };
        let found = numbers.iter().map(local).enumerate();
        let hits = Hits::from_pairs(found.filter_map(|(at, local)| Some((at, local?))))?;
        let zeros = Tensor::zeros(&[list.numel()], x.dtype())?;
        let picked = zeros.index_copy(0, &hits.positions, &x.take(&hits.indices)?)?;
        one(picked.reshape(list.shape()))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    /// By one list of indices per dim, so that the gradient is cut as the operand is.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, shape) = (backward.grad()?, backward.shape(0));
        backward.first(|| {
            if shape.is_empty() {
                return grad.sum(&[], false);
            }
            let zeros = zeros_for(backward, 0, &grad, |_| Some(Placement::Partial(ReduceOp::Sum)))?;
            if zeros.numel() == 0 {
                return Ok(zeros);
            }
            let (mut rest, mut lists) = (backward.operand(1)?, Vec::with_capacity(shape.len()));
            for size in shape.iter().rev() {
                // Of negative ones, too, this is the index; what is left goes on counting from the end.
                let size = Scalar::Int(*size as i64);
                lists.push(rest.rem(size)?);
                rest = rest.floor_div(size)?;
            }
            let lists: Vec<Option<&DTensor>> = lists.iter().rev().map(Some).collect();
            zeros.index_put(&lists, &grad, true)
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }
}

/// The gradient of what was picked along a dim by a list of indices of its own shape: every element is added to the one
/// that it was.
pub(in crate::ops) fn spread_back(
    backward: &Backward<'_>,
    dim: isize,
    list: &DTensor,
    grad: &DTensor,
) -> Result<DTensor> {
    let shape = backward.shape(0);
    let place = |other: usize| match other == normal(dim, shape.len()) {
        true => Some(Placement::Partial(ReduceOp::Sum)),
        // Elsewhere a cut stays where all of the dim was picked.
        false => Some(Placement::Shard(other)).filter(|_| shape[other] == grad.shape()[other]),
    };
    zeros_for(backward, 0, grad, place)?.scatter_add(dim, list, grad)
}

/// `one_hot`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OneHot {
    n_classes: usize,
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("... -> ... n!", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].one_hot(self.n_classes))
    }

    fn may_refuse(&self, _: usize, _: &[Meta]) -> bool {
        true
    }
}

impl DTensor {
    /// The slices of a dim at these indices (`i64` or `i32`, one dim), in their order.
    ///
    /// A tensor that is cut along the dim stays where it is: every rank gives the slices that it holds, and
    /// the result is a pending sum with zeros (which makes a minus zero a zero).
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Partial, Replicate, Shard}, ReduceOp, Runner, arange};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = arange(0, 10, 1, DType::F32, &mesh, &[Shard(0)])?;
    ///     let odd = arange(1, 10, 2, DType::I64, &mesh, &[Replicate])?;
    ///     let picked = x.index_select(0, &odd)?;                    // nothing was sent
    ///     assert_eq!(picked.placements(), [Partial(ReduceOp::Sum)]);
    ///     assert_eq!(picked.to_vec::<f32>()?, [1.0, 3.0, 5.0, 7.0, 9.0]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn index_select(&self, dim: isize, indices: &DTensor) -> Result<DTensor> {
        call_one(&IndexSelect { dim }, &[self, indices])
    }

    /// `out[i][j][k] = self[indices[i][j][k]][j][k]`, for `dim` 0. Along a cut dim as
    /// [`index_select`](DTensor::index_select).
    pub fn gather(&self, dim: isize, indices: &DTensor) -> Result<DTensor> {
        call_one(&Gather { dim }, &[self, indices])
    }

    /// The elements at these indices of the tensor seen as one line, in the shape of the indices. Negative
    /// ones count from the end. However the tensor is cut, it stays where it is.
    pub fn take(&self, indices: &DTensor) -> Result<DTensor> {
        call_one(&Take, &[self, indices])
    }

    /// A new last dim of `n_classes` zeros with a one at each index; `i64`.
    pub fn one_hot(&self, n_classes: usize) -> Result<DTensor> {
        call_one(&OneHot { n_classes }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "index_select",
        samples: || {
            let sample = |dim, shape: &[usize], n, values| {
                Sample::new(IndexSelect { dim }, &[shape, n]).with(1, values)
            };
            vec![
                sample(0, &[5, 3], &[4], Index(5)),
                sample(-1, &[2, 7], &[3], Index(7)),
                sample(1, &[3, 5, 2], &[], Index(5)),
                sample(0, &[], &[1], Index(1)),
                sample(0, &[6], &[5], Index(6)),
            ]
        },
    },
    OpRecord {
        name: "gather",
        samples: || {
            let sample = |dim, shape: &[usize], list: &[usize], size| {
                Sample::new(Gather { dim }, &[shape, list]).with(1, Index(size))
            };
            vec![
                sample(0, &[5, 3], &[4, 3], 5),
                sample(1, &[5, 3], &[3, 4], 3),
                sample(-1, &[3, 4, 5], &[2, 4, 2], 5),
                sample(0, &[5], &[], 5),
                sample(0, &[6, 2], &[3, 2], 6),
            ]
        },
    },
    OpRecord {
        name: "take",
        samples: || {
            let sample = |shape: &[usize], list: &[usize], size| {
                Sample::new(Take, &[shape, list]).with(1, Index(size))
            };
            vec![sample(&[5, 3], &[2, 3], 15), sample(&[7], &[5], 7), sample(&[2, 3, 4], &[], 24)]
        },
    },
    OpRecord {
        name: "one_hot",
        samples: || {
            let sample = |n_classes, shape: &[usize]| {
                Sample::new(OneHot { n_classes }, &[shape]).with(0, Index(n_classes))
            };
            vec![sample(4, &[5, 2]), sample(3, &[7]), sample(2, &[])]
        },
    },
];
