//! Slices several times in a row, each as often as a tensor says.

use dtensor_layout::{DType, Placement, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Scalar, Tensor};

use super::{
    held::{LIST, RESULT, TENSOR, letters, normal},
    ragged::{InOrder, Line, check_values, cut_axes, infer_by_values, rows_layout},
    zeros::zeros_for,
};
use crate::{
    DTensor, Error, Layout, Result, arange,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::Index, one,
    },
};

/// `repeat_interleave` with numbers in a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RepeatInterleave {
    dim: Option<isize>,
}

impl Op for RepeatInterleave {
    fn name(&self) -> &'static str {
        "repeat_interleave_tensor"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let marked =
            |family, n_dims| letters(family, n_dims).join("! ") + if n_dims > 0 { "!" } else { "" };
        let tensor = marked(TENSOR, operands[0].n_dims());
        let list = marked(LIST, operands[1].n_dims());
        let result = match self.dim {
            Some(_) => letters(RESULT, operands[0].n_dims()).join("! ") + "!",
            None => "u!".to_string(),
        };
        Ok(Rule::of(&format!("{tensor}, {list} -> {result}"), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].repeat_interleave_tensor(x[1], self.dim))
    }

    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        infer_by_values(self, operands)
    }

    fn decomposes(&self, _: &[&Layout]) -> bool {
        true
    }

    /// Every rank repeats what it has, as often as its part of the numbers says; then what crosses a boundary
    /// between the chunks of the result is moved.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x, repeats) = (self.name(), operands[0], operands[1].settled()?);
        check_values(op, x)?;
        let mesh = x.mesh();
        let x = x.settled()?;
        let (axes, part, repeats, dim) = match self.dim.map(|dim| normal(dim, x.n_dims())) {
            Some(dim) => {
                let is_cut = |axis: &usize| x.placements()[*axis] == Placement::Shard(dim);
                let axes: Vec<usize> = (0..mesh.n_axes()).filter(is_cut).collect();
                // In plain order, so that parts are ranges.
                let plain = x.redistribute(x.placements())?;
                let cut = if repeats.numel() == 1 { &[][..] } else { &axes[..] };
                let to = rows_layout(op, mesh, cut, repeats.shape(), repeats.dtype())?;
                let repeats = repeats.redistribute_as(op, &to)?;
                (axes, plain.local().clone(), repeats.to_local(), dim)
            }
            None => {
                let axes = cut_axes(&[&x]);
                let order = InOrder { op, mesh, shape: x.shape(), axes: &axes };
                let part = order.part(&x)?;
                let axes = if order.dim().is_some() { axes.clone() } else { Vec::new() };
                let line = Line { op, mesh, axes: &axes };
                let repeats = match repeats.numel() {
                    1 => repeats.full_tensor()?,
                    _ => {
                        let to = rows_layout(op, mesh, &axes, repeats.shape(), repeats.dtype())?;
                        let repeats = repeats.redistribute_as(op, &to)?;
                        let members = line.members()?;
                        let counts: Vec<usize> =
                            members.iter().map(|coord| to.local_numel(coord)).collect();
                        let wanted = order.counts(&line, &x)?;
                        let range = |coord: &[usize]| {
                            let position = line.position(coord);
                            let start: usize = wanted[..position].iter().sum();
                            start..start + wanted[position]
                        };
                        line.move_to(repeats.local(), 0, &counts, &range)?
                    }
                };
                (axes, part.reshape(&[part.numel()])?, repeats, 0)
            }
        };
        let line = Line { op, mesh, axes: &axes };
        let numbers = repeats.to_dtype(DType::I64)?.to_vec::<i64>()?;
        let each =
            if repeats.numel() == 1 { part.shape().get(dim).copied().unwrap_or(1) } else { 1 };
        let own = numbers.iter().fold(0_i64, |sum, number| sum.saturating_add(*number));
        let own = own.saturating_mul(i64::try_from(each).unwrap_or(i64::MAX));
        // A number that is wrong is wrong for all.
        let wrong = numbers.iter().copied().find(|number| *number < 0).unwrap_or(0);
        let all = line.agree(&[own, wrong])?;
        if let Some(wrong) = all.iter().map(|one| one[1]).find(|wrong| *wrong < 0) {
            let (got, want) = (wrong.to_string(), "zero or more");
            let name = "a number of repeats";
            return Err(LocalError::BadNumber { op, name, got, want }.into());
        }
        let counts: Vec<usize> =
            all.iter().map(|one| usize::try_from(one[0]).unwrap_or(0)).collect();
        let total = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
        // The kernel makes a list of so many, which must not be too large for one rank alone.
        if Tensor::meta(&[total], DType::I64).is_err() {
            let (shape, dtype) = (vec![total], DType::I64);
            return Err(LocalError::TooLarge { op, shape, dtype }.into());
        }
        let layout = match self.dim {
            Some(_) => {
                let mut shape = x.shape().to_vec();
                shape[dim] = total;
                Layout::new(&shape, x.dtype(), mesh.mesh(), x.placements())
                    .map_err(Error::layout(op))?
            }
            None => rows_layout(op, mesh, &axes, &[total], x.dtype())?,
        };
        let repeated = part.repeat_interleave_tensor(&repeats, Some(dim as isize))?;
        Ok([line.move_to_chunks(&repeated, dim, &counts, &layout)?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    /// The numbers of the slices, repeated as they were, say where each goes.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, repeats) = (backward.grad()?, backward.operand(1)?);
        let shape = backward.shape(0);
        backward.first(|| {
            let (dim, n) = match self.dim.map(|dim| normal(dim, shape.len())) {
                Some(dim) => (dim, shape.get(dim).copied().unwrap_or(1)),
                None => (0, shape.iter().product()),
            };
            let cut = |placement: &Placement| match *placement {
                Placement::Shard(own) if own == dim => Placement::Shard(0),
                _ => Placement::Replicate,
            };
            let placements: Vec<Placement> = grad.placements().iter().map(cut).collect();
            let numbers = arange(0, n as i64, 1, DType::I64, grad.mesh(), &placements)?;
            let list = numbers.repeat_interleave_tensor(&repeats, Some(0))?;
            let pending = |other: usize| match other == dim {
                true => Placement::Partial(ReduceOp::Sum),
                false => Placement::Shard(other),
            };
            let zeros = match self.dim {
                Some(_) => zeros_for(backward, 0, &grad, |other| Some(pending(other)))?,
                None => {
                    let place = |placement: &Placement| match *placement {
                        Placement::Shard(other) => pending(other),
                        other => other,
                    };
                    let placements: Vec<Placement> = grad.placements().iter().map(place).collect();
                    grad.new_zeros(&[n], &placements)?
                }
            };
            let summed = zeros.index_add(dim as isize, &list, &grad, Scalar::Int(1))?;
            summed.reshape(&shape.iter().map(|size| size.cast_signed()).collect::<Vec<_>>())
        })
    }
}

impl DTensor {
    /// Every slice of a dim several times in a row, as often as `repeats` (`i64` or `i32`) says for it, or for
    /// all of them. Without a dim, every element of the tensor seen as one line.
    ///
    /// The result is cut as the tensor is. The ranks tell each other how much they have.
    pub fn repeat_interleave_tensor(
        &self,
        repeats: &DTensor,
        dim: Option<isize>,
    ) -> Result<DTensor> {
        call_one(&RepeatInterleave { dim }, &[self, repeats])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "repeat_interleave_tensor",
    samples: || {
        let sample = |dim, shapes: &[&[usize]; 2]| {
            Sample::new(RepeatInterleave { dim }, shapes).with(1, Index(4))
        };
        vec![
            sample(Some(0), &[&[5, 2], &[5]]),
            sample(Some(-1), &[&[2, 7], &[7]]),
            sample(None, &[&[3, 2], &[6]]),
            sample(Some(1), &[&[3, 2], &[1]]),
            sample(None, &[&[1, 4], &[]]),
        ]
    },
}];
