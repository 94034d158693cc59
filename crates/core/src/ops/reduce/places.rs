//! Extremes along a dim with their indices, and the indices alone.
//!
//! Along a dim that is cut, the extreme of all parts is found first. Then every rank whose own extreme is
//! the one of all says where it has it, the others name a place beyond all others, and the first place is
//! the smallest: two small reductions, of which the second is left pending.

use dtensor_layout::{DType, Intervals, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::over::Over;
use crate::{
    DTensor, Result,
    autograd::dual,
    dispatch::{call_one, call_two},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Index, Signed},
        one, two,
    },
    ops::letters::rule,
    tensor::make_layout,
};

/// Beyond all places.
const NOWHERE: i64 = i64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Largest,
    Smallest,
}

/// `max` or `min` along a dim: values and indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Extreme {
    which: Which,
    dim: isize,
    keep_dims: bool,
}

/// `argmax` or `argmin`, along a dim or over all elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    which: Which,
    dim: Option<isize>,
    keep_dims: bool,
}

/// The second step along dims that are cut: of a tensor and its extreme, the first place of the extreme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FirstPlace(Place);

impl Op for Extreme {
    fn name(&self) -> &'static str {
        match self.which {
            Which::Largest => "max",
            Which::Smallest => "min",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let letters = self.place().over().letters(self.name(), &operands[0], "!")?;
        let result = &letters.result;
        rule(self.name(), &format!("{} -> {result}, {result}", letters.operand), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(match self.which {
            Which::Largest => x[0].max(self.dim, self.keep_dims),
            Which::Smallest => x[0].min(self.dim, self.keep_dims),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.place().over().is_cut(self.name(), operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (value, index) = self.place().find(operands[0])?;
        Ok(smallvec![value, index])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, index) = (backward.grad()?, backward.result(1)?);
        let (name, shape) = (self.name(), backward.shape(0));
        if shape.is_empty() {
            return backward.first(|| Ok(grad));
        }
        let over = self.place().over();
        let (grad, index) = (over.kept(name, &grad, shape)?, over.kept(name, &index, shape)?);
        // Along a dim that is cut every rank writes what falls into its part.
        backward.first(|| zeros(backward)?.scatter(self.dim, &index, &grad))
    }
}

impl Extreme {
    fn place(&self) -> Place {
        Place { which: self.which, dim: Some(self.dim), keep_dims: self.keep_dims }
    }
}

impl Op for Place {
    fn name(&self) -> &'static str {
        match self.which {
            Which::Largest => "argmax",
            Which::Smallest => "argmin",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.over().rule_of_whole_dims(self.name(), &operands[0])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(match self.which {
            Which::Largest => x[0].argmax(self.dim, self.keep_dims),
            Which::Smallest => x[0].argmin(self.dim, self.keep_dims),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.over().is_cut(self.name(), operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        Ok(smallvec![self.find(operands[0])?.1])
    }
}

impl Place {
    fn over(&self) -> Over {
        Over::new(self.dim.as_slice(), self.keep_dims)
    }

    /// The extreme, and its place as a pending minimum.
    fn find(&self, x: &DTensor) -> Result<(DTensor, DTensor)> {
        let x = x.settled()?;
        let Over { dims, keep_dims } = self.over();
        let extreme = match self.which {
            Which::Largest => x.amax(&dims, keep_dims)?,
            Which::Smallest => x.amin(&dims, keep_dims)?,
        };
        let extreme = extreme.settled()?;
        let place = call_one(&FirstPlace(self.clone()), &[&x, &extreme])?;
        Ok((extreme, place))
    }
}

impl Op for FirstPlace {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let letters = self.0.over().letters(self.name(), &operands[0], "")?;
        let result = &letters.result;
        rule(self.name(), &format!("{}, {result} -> {result} @min", letters.operand), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let ([x, extreme], Place { which, dim, keep_dims }) = ([x[0], x[1]], &self.0);
        let over = self.0.over();
        let nowhere = extreme.to_dtype(DType::I64)?.full_like(NOWHERE)?;
        if x.is_meta() || x.numel() == 0 {
            return one(Ok(nowhere));
        }
        let layout = context.operand(0);
        let held = |dim: usize| match layout {
            Some(layout) => layout.intervals(dim, context.coord()),
            None => Intervals::whole(x.shape()[dim]),
        };
        let (own, place) = match dim {
            Some(dim) => {
                let (own, place) = match which {
                    Which::Largest => x.max(*dim, *keep_dims)?,
                    Which::Smallest => x.min(*dim, *keep_dims)?,
                };
                let place = match over.dims_of(self.name(), x.shape())?.first() {
                    Some(dim) => global_indices(&place, &held(*dim))?,
                    None => place,
                };
                (own, place)
            }
            None => {
                let (own, place) = match which {
                    Which::Largest => (x.amax(&[], *keep_dims)?, x.argmax(None, false)?),
                    Which::Smallest => (x.amin(&[], *keep_dims)?, x.argmin(None, false)?),
                };
                // The order of the elements of a part is their order in the whole.
                let (mut rest, mut global, mut size) = (place.item::<i64>()? as usize, 0, 1);
                for dim in (0..x.n_dims()).rev() {
                    let (n, whole) = (x.shape()[dim], context.global_size(0, dim, x.shape()[dim]));
                    global += nth(&held(dim), rest % n) * size;
                    rest /= n;
                    size *= whole;
                }
                (own.clone(), Tensor::scalar(global as i64).reshape(own.shape())?)
            }
        };
        let mut is_it = own.eq(extreme)?;
        if own.dtype().is_float() {
            is_it = is_it.logical_or(&own.isnan()?.logical_and(&extreme.isnan()?)?)?;
        }
        one(is_it.where_self(&place, &nowhere))
    }
}

/// Zeros that lie as the gradient of the operand will.
fn zeros(backward: &Backward<'_>) -> Result<DTensor> {
    let layout = dual(backward.layout(0))?;
    make_layout("backward", &layout, backward.mesh(0), |part| {
        Ok(Tensor::zeros(&part.shape, layout.dtype())?)
    })
}

/// Indices of a part as indices of the whole.
fn global_indices(local: &Tensor, held: &Intervals) -> Result<Tensor, LocalError> {
    let mut ranges = held.iter();
    match (ranges.next(), ranges.next()) {
        (Some(range), None) => local.add_scalar(range.start as i64),
        _ => {
            let all: Vec<i64> = held.iter().flatten().map(|index| index as i64).collect();
            let n = all.len();
            Tensor::from_vec(all, &[n])?.take(local)
        }
    }
}

/// The index of the whole that a part has at a position.
fn nth(held: &Intervals, position: usize) -> usize {
    held.iter().flatten().nth(position).unwrap_or(position)
}

impl DTensor {
    /// The largest values along a dim and, as `i64`, the first index of each. A NaN counts as the largest.
    pub fn max(&self, dim: isize, keep_dims: bool) -> Result<(DTensor, DTensor)> {
        call_two(&Extreme { which: Which::Largest, dim, keep_dims }, &[self])
    }

    /// The smallest values along a dim and, as `i64`, the first index of each. A NaN counts as the smallest.
    pub fn min(&self, dim: isize, keep_dims: bool) -> Result<(DTensor, DTensor)> {
        call_two(&Extreme { which: Which::Smallest, dim, keep_dims }, &[self])
    }

    /// The first index of the largest value along a dim, or among all elements in order, as `i64`.
    pub fn argmax(&self, dim: Option<isize>, keep_dims: bool) -> Result<DTensor> {
        call_one(&Place { which: Which::Largest, dim, keep_dims }, &[self])
    }

    /// The first index of the smallest value along a dim, or among all elements in order, as `i64`.
    pub fn argmin(&self, dim: Option<isize>, keep_dims: bool) -> Result<DTensor> {
        call_one(&Place { which: Which::Smallest, dim, keep_dims }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "max", samples: || extremes(Which::Largest) },
    OpRecord { name: "min", samples: || extremes(Which::Smallest) },
    OpRecord { name: "argmax", samples: || places(Which::Largest) },
    OpRecord { name: "argmin", samples: || places(Which::Smallest) },
];

fn extremes(which: Which) -> Vec<Sample> {
    let op = |dim, keep_dims| Extreme { which, dim, keep_dims };
    vec![
        Sample::new(op(1, false), &[&[4, 3]]),
        // Few values, so that many are equal.
        Sample::new(op(0, true), &[&[7, 2]]).with(0, Index(3)),
        Sample::new(op(-2, false), &[&[2, 5, 3]]),
    ]
}

fn places(which: Which) -> Vec<Sample> {
    let op = |dim, keep_dims| Place { which, dim, keep_dims };
    vec![
        Sample::new(op(Some(1), false), &[&[4, 3]]).with(0, Signed),
        Sample::new(op(Some(0), true), &[&[7, 2]]).with(0, Index(3)),
        Sample::new(op(None, false), &[&[5, 3]]).with(0, Index(4)),
        Sample::new(op(None, true), &[&[2, 3, 2]]),
    ]
}
