//! Views of the same elements: dims in another order, new dims, and fewer.

use dtensor_layout::rule::{Law::Moves, Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use super::{letter, letters, rule};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Permute(SmallVec<[isize; 6]>);

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let meta = &operands[0];
        let order = self.0.iter().map(|dim| meta.dim("permute", *dim));
        let from = letters(0..meta.n_dims(), |_| false).join(" ");
        let to = letters(order.collect::<Result<Vec<_>>>()?, |_| false).join(" ");
        rule("permute", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].permute(&self.0))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        let mut back: SmallVec<[isize; 6]> = SmallVec::from_elem(0, self.0.len());
        for (place, dim) in self.0.iter().enumerate() {
            back[meta.dim("permute", *dim)?] = place.cast_signed();
        }
        backward.first(|| call_one(&Permute(back), &[&grad]))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Squeeze(isize);

impl Op for Squeeze {
    fn name(&self) -> &'static str {
        "squeeze"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let gone = operands[0].dim("squeeze", self.0)?;
        let mut dims = letters(0..operands[0].n_dims(), |_| false);
        if operands[0].shape[gone] != 1 {
            return rule("squeeze", "... -> ...", &[Moves]);
        }
        dims[gone] = "1".to_string();
        let from = dims.join(" ");
        dims.remove(gone);
        rule("squeeze", &format!("{from} -> {}", dims.join(" ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // A part of size 1 is not a dim of size 1.
        let dim = Meta::of(x[0]).dim("squeeze", self.0).unwrap_or(0);
        let local = x[0].shape().get(dim).copied().unwrap_or(1);
        match context.global_size(0, dim, local) {
            1 => one(x[0].squeeze(self.0)),
            _ => one(Ok(x[0].clone())),
        }
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, meta) = (backward.grad()?, backward.meta(0));
        backward.first(|| match grad.n_dims() < meta.n_dims() {
            true => grad.unsqueeze(meta.dim("squeeze", self.0)?.cast_signed()),
            false => Ok(grad),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unsqueeze(isize);

impl Op for Unsqueeze {
    fn name(&self) -> &'static str {
        "unsqueeze"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let mut wider = operands[0].clone();
        wider.shape.push(1);
        let new = wider.dim("unsqueeze", self.0)?;
        let mut dims = letters(0..operands[0].n_dims(), |_| false);
        let from = dims.join(" ");
        dims.insert(new, "1".to_string());
        rule("unsqueeze", &format!("{from} -> {}", dims.join(" ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].unsqueeze(self.0))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| grad.squeeze(self.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Expand(SmallVec<[usize; 6]>);

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    /// What is repeated is not cut: it would be a cut of the result that the operand does not have.
    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let new = self.0.len().saturating_sub(operands[0].n_dims());
        let old = |dim: usize| dim.checked_sub(new).map(|dim| operands[0].shape[dim]);
        let repeated = |dim: usize| old(dim) != Some(self.0[dim]);
        let from = (new..self.0.len()).map(|dim| match repeated(dim) {
            true => "1".to_string(),
            false => letter(dim),
        });
        let from = from.collect::<Vec<_>>().join(" ");
        let to = letters(0..self.0.len(), repeated).join(" ");
        rule("expand", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].expand(&context.result_shape(0, &self.0)))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        // It is summed to the shape of the operand as every other.
        backward.first(|| backward.grad())
    }
}

impl DTensor {
    /// The dims in another order: dim `i` of the result is dim `dims[i]`. Cuts go with their dims.
    pub fn permute(&self, dims: &[isize]) -> Result<DTensor> {
        call_one(&Permute(dims.into()), &[self])
    }

    /// Two dims exchanged.
    pub fn transpose(&self, a: isize, b: isize) -> Result<DTensor> {
        let meta = Meta::of_layout(self.layout());
        let (a, b) = (meta.dim("transpose", a)?, meta.dim("transpose", b)?);
        let mut dims: SmallVec<[isize; 6]> = (0..self.n_dims() as isize).collect();
        dims.swap(a, b);
        call_one(&Permute(dims), &[self])
    }

    /// A matrix transposed; a vector or a single value as it is.
    pub fn t(&self) -> Result<DTensor> {
        match self.n_dims() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            n_dims => Err(LocalError::BadNumber {
                op: "t",
                name: "the number of dims",
                got: n_dims.to_string(),
                want: "at most 2, or use transpose or permute",
            }
            .into()),
        }
    }

    /// Dims `source[i]` brought to the places `destination[i]`; the others keep their order.
    pub fn movedim(&self, source: &[isize], destination: &[isize]) -> Result<DTensor> {
        // The kernel says what is wrong.
        Tensor::meta(self.shape(), self.dtype())?.movedim(source, destination)?;
        let meta = Meta::of_layout(self.layout());
        let normal = |dims: &[isize]| {
            dims.iter().map(|dim| meta.dim("movedim", *dim)).collect::<Result<Vec<usize>>>()
        };
        let (from, to) = (normal(source)?, normal(destination)?);
        let mut others = (0..self.n_dims()).filter(|dim| !from.contains(dim));
        let order = (0..self.n_dims()).filter_map(|place| {
            let moved = to.iter().position(|to| *to == place);
            moved.map_or_else(|| others.next(), |moved| from.get(moved).copied())
        });
        call_one(&Permute(order.map(|dim| dim as isize).collect()), &[self])
    }

    /// Without a dim, if its size is 1. If that dim is cut, what one rank holds is brought to the others.
    pub fn squeeze(&self, dim: isize) -> Result<DTensor> {
        call_one(&Squeeze(dim), &[self])
    }

    /// With a new dim of size 1 before dim `dim` of the result.
    pub fn unsqueeze(&self, dim: isize) -> Result<DTensor> {
        call_one(&Unsqueeze(dim), &[self])
    }

    /// Repeated to a larger shape without a copy, as NumPy broadcasts: dims of size 1, and new dims in front.
    pub fn expand(&self, shape: &[usize]) -> Result<DTensor> {
        call_one(&Expand(shape.into()), &[self])
    }

    /// As [`expand`](DTensor::expand).
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<DTensor> {
        self.expand(shape)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "permute",
        samples: || {
            vec![
                Sample::new(Permute([2, 0, 1].as_slice().into()), &[&[3, 2, 5]]),
                Sample::new(Permute([-1, -2].as_slice().into()), &[&[4, 3]]),
                Sample::new(Permute(SmallVec::new()), &[&[]]),
            ]
        },
    },
    OpRecord {
        name: "squeeze",
        samples: || {
            vec![
                Sample::new(Squeeze(0), &[&[1, 5]]),
                Sample::new(Squeeze(-2), &[&[3, 1, 2]]),
                Sample::new(Squeeze(0), &[&[3, 1]]),
                Sample::new(Squeeze(0), &[&[1]]),
            ]
        },
    },
    OpRecord {
        name: "unsqueeze",
        samples: || {
            vec![
                Sample::new(Unsqueeze(1), &[&[5, 3]]),
                Sample::new(Unsqueeze(-1), &[&[3, 1]]),
                Sample::new(Unsqueeze(0), &[&[]]),
            ]
        },
    },
    OpRecord {
        name: "expand",
        samples: || {
            vec![
                Sample::new(Expand([2, 5, 3].as_slice().into()), &[&[5, 1]]),
                Sample::new(Expand([4, 1, 3].as_slice().into()), &[&[1, 1, 3]]),
                Sample::new(Expand([2].as_slice().into()), &[&[]]),
            ]
        },
    },
];
