//! A box of a tensor, overwritten.

use std::ops::Range;

use dtensor_layout::{
    Layout, Placement, ReduceOp,
    rule::{
        Law::{Affine, Increasing, IncreasingIn, Moves},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{letter, letters, rule};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Exchange, Run, held_by, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::indexing::zeros::zero_beside,
};

/// Operands: the tensor and the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SliceAssign(Vec<Range<usize>>);

impl SliceAssign {
    /// The range of a dim; those that are missing at the end take all.
    fn range(&self, dim: usize, size: usize) -> Range<usize> {
        self.0.get(dim).cloned().unwrap_or(0..size)
    }

    /// Whether a dim of the values is that of the tensor, so that both may be cut alike.
    fn is_shared(&self, shapes: [&[usize]; 2], dim_of_values: usize) -> bool {
        let [x, values] = shapes;
        let dim = dim_of_values + (x.len() - values.len());
        self.range(dim, x[dim]) == (0..x[dim]) && values[dim_of_values] == x[dim]
    }

    /// Whether the values are where the tensor needs them, as far as one axis goes.
    fn fits(&self, x: &Layout, values: &Layout, axis: usize) -> bool {
        let shift = x.n_dims() - values.n_dims();
        match (x.placements()[axis], values.placements()[axis]) {
            (Placement::Partial(op), Placement::Replicate) => may_repeat(op),
            (_, Placement::Replicate) => true,
            (x_here, Placement::Shard(dim)) => {
                x_here == Placement::Shard(dim + shift)
                    && x.order().cuts(dim + shift) == values.order().cuts(dim)
                    && self.is_shared([x.global_shape(), values.global_shape()], dim)
            }
            (x_here, pending) => x_here == pending && x.dtype() == values.dtype(),
        }
    }
}

/// Whether the same value on every rank is a contribution to that value.
fn may_repeat(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min)
}

impl Op for SliceAssign {
    fn name(&self) -> &'static str {
        "slice_assign"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, values] = [&operands[0], &operands[1]];
        let shift = x.n_dims().saturating_sub(values.n_dims());
        let dims = letters(0..x.n_dims(), |_| false).join(" ");
        let value_dim = |dim: usize| match values.shape[dim] {
            _ if self.is_shared([&x.shape, &values.shape], dim) => letter(dim + shift),
            1 => "1".to_string(),
            _ => format!("{}!", letter(x.n_dims() + dim)),
        };
        let value_dims: Vec<String> = (0..values.n_dims()).map(value_dim).collect();
        // Values of another dtype are cast, which contributions do not survive.
        let laws = match x.dtype == values.dtype {
            true => &[Moves, Affine, Increasing][..],
            false => &[IncreasingIn(0)],
        };
        rule(self.name(), &format!("{dims}, {} -> {dims}", value_dims.join(" ")), laws)
    }

    /// A rank writes what it holds of the box.
    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (Some(whole), Some(values_whole)) = (context.operand(0), context.operand(1)) else {
            return one(x[0].slice_assign(&self.0, x[1]));
        };
        let shapes = [whole.global_shape(), values_whole.global_shape()];
        let shift = whole.n_dims() - values_whole.n_dims();
        let (mut place, mut values) = (Vec::with_capacity(whole.n_dims()), x[1].clone());
        for (dim, size) in whole.global_shape().iter().enumerate() {
            let (range, held) = (self.range(dim, *size), context.operand_range(0, dim, *size));
            let (start, end) = (range.start.max(held.start), range.end.min(held.end));
            let both = start..end.max(start);
            place.push(match both.is_empty() {
                true => 0..0,
                false => both.start - held.start..both.end - held.start,
            });
            let Some(own) = dim.checked_sub(shift) else { continue };
            if shapes[1][own] != 1 && !self.is_shared(shapes, own) {
                let from = if both.is_empty() { 0 } else { both.start - range.start };
                values = values.narrow(own as isize, from, both.len())?;
            }
        }
        one(x[0].slice_assign(&place, &values))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let [x, values] = [operands[0], operands[1]];
        !x.order().is_left_to_right()
            || (0..x.mesh().n_axes()).any(|axis| !self.fits(x, values, axis))
    }

    /// The tensor stays where it is, and the values are brought there.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (x, values) = self.settled(operands[0], operands[1])?;
        let shift = x.n_dims() - values.n_dims();
        let stays = |axis: &usize| self.fits(x.layout(), values.layout(), *axis);
        let cut = |axis: &usize| values.placements()[*axis].shard_dim().is_some();
        let axes: Vec<usize> =
            (0..x.mesh().n_axes()).filter(|axis| cut(axis) && !stays(axis)).collect();
        let held = |coord: &[usize]| {
            let new = std::iter::repeat_n(0..1, shift);
            new.chain(held_by(values.layout(), coord)).collect::<Vec<_>>()
        };
        let wanted = |coord: &[usize]| {
            let dims = held_by(x.layout(), coord).into_iter().enumerate();
            let runs = dims.map(|(dim, held)| {
                let range = self.range(dim, x.shape()[dim]);
                let repeated = dim < shift || values.shape()[dim - shift] == 1;
                let step = if repeated { 0 } else { 1 };
                let run = Run { to: range, from: 0, step };
                run.within(&held).into_iter().collect::<Vec<_>>()
            });
            runs.collect()
        };
        let exchange =
            Exchange { op: self.name(), mesh: x.mesh(), axes: &axes, held: &held, wanted: &wanted };
        let assigned = placed(x.mesh(), x.layout(), |_| {
            let mut local = values.local().to_dtype(x.dtype())?;
            for _ in 0..shift {
                local = local.unsqueeze(0)?;
            }
            exchange.run(&local, x.local().clone())
        })?;
        Ok(smallvec![assigned])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.each(|operand| match operand {
            0 => grad.slice_assign(&self.0, &zero_beside(&grad)?),
            _ => {
                let mut values = grad.clone();
                for (dim, range) in self.0.iter().enumerate() {
                    if *range != (0..grad.shape()[dim]) {
                        values = values.narrow(dim as isize, range.start, range.len())?;
                    }
                }
                Ok(values)
            }
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }
}

impl SliceAssign {
    /// The tensor and the values with nothing pending that would not stay right.
    fn settled(&self, x: &DTensor, values: &DTensor) -> Result<(DTensor, DTensor)> {
        let cast = x.dtype() != values.dtype();
        let (mut of_x, mut of_values) = (x.placements().to_vec(), values.placements().to_vec());
        for (x, values) in of_x.iter_mut().zip(&mut of_values) {
            let stays = match (*x, *values) {
                (Placement::Partial(a), Placement::Partial(b)) => a == b && !cast,
                (Placement::Partial(op), _) => may_repeat(op),
                (_, Placement::Partial(_)) => false,
                _ => true,
            };
            for placement in [x, values] {
                if !stays && placement.reduce_op().is_some() {
                    *placement = Placement::Replicate;
                }
            }
        }
        Ok((settle(x, &of_x)?, settle(values, &of_values)?))
    }
}

fn settle(tensor: &DTensor, placements: &[Placement]) -> Result<DTensor> {
    const OP: &str = "slice_assign";
    if tensor.placements() == placements {
        return in_ranges(OP, tensor);
    }
    let layout = tensor.layout().with_placements(placements).map_err(Error::layout(OP))?;
    tensor.redistribute_as(OP, &layout)
}

impl DTensor {
    /// A copy with these values in a box: one range per dim, those that are missing at the end taking all of
    /// their dim. The values are broadcast to the box and cast to the dtype, as by `x[a:b] = values`.
    ///
    /// The ranges are global, and the result lies as this tensor does: every rank writes what it holds of the
    /// box, and the values are brought to where they are needed.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, full, zeros};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = zeros(&[5], DType::I64, &mesh, &[Shard(0)])?;
    ///     let x = x.slice_assign(&[2..4], &full(&[], 7_i64, &mesh, &[Replicate])?)?;
    ///     assert_eq!(x.to_vec::<i64>()?, [0, 0, 7, 7, 0]);
    ///     assert_eq!(x.placements(), [Shard(0)]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn slice_assign(&self, ranges: &[Range<usize>], values: &DTensor) -> Result<DTensor> {
        call_one(&SliceAssign(ranges.to_vec()), &[self, values])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "slice_assign",
    samples: || {
        let assign = |ranges: &[Range<usize>]| SliceAssign(ranges.to_vec());
        vec![
            Sample::new(assign(&[1..4, 0..3]), &[&[5, 3], &[3, 3]]),
            Sample::new(assign(&[1..5, 0..2]), &[&[6, 2], &[2]]),
            Sample::new(assign(&[0..3, 1..2]), &[&[3, 4], &[3, 1]]),
            Sample::new(assign(&[2..2, 0..1]), &[&[5, 1], &[]]),
            Sample::new(assign(&[]), &[&[3, 2], &[3, 1]]),
        ]
    },
}];
