//! Elements by a mask, and where a tensor is not zero. How many there are depends on values, so the ranks tell
//! each other how many they have; that is one small message.
//!
//! The result is cut by the axes that cut the operands, in chunks as those of any other layout. What the ranks
//! find is moved there in one exchange of what crosses a boundary between chunks; a gather would bring all of
//! it to every rank. For the order of the result to be right, an operand that is cut along another dim than
//! the first is cut along that one before, by an exchange.

use dtensor_layout::{DType, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Tensor};

use super::{
    held::{LIST, RESULT, SOURCE, TENSOR, letters},
    ragged::{
        InOrder, Line, broadcast, check_values, cut_axes, infer_by_values, interval, rows_layout,
    },
    zeros::zeros_for,
};
use crate::{
    DTensor, Error, Layout, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Index, Truth},
        one,
    },
    ops::movement::resized,
};

/// `masked_select`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MaskedSelect;

impl Op for MaskedSelect {
    fn name(&self) -> &'static str {
        "masked_select"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(Rule::of(&format!("{} -> n!", whole(operands)), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].masked_select(x[1]))
    }

    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        infer_by_values(self, operands)
    }

    fn decomposes(&self, _: &[&Layout]) -> bool {
        true
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x, mask) = (self.name(), operands[0], operands[1]);
        check_values(op, x)?;
        let (mesh, axes) = (x.mesh(), cut_axes(operands));
        let shape = broadcast(x.shape(), mask.shape());
        let order = InOrder { op, mesh, shape: &shape, axes: &axes };
        let found = order.part(x)?.masked_select(&order.part(mask)?)?;
        in_chunks(&order, found)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| {
            let zeros = zeros_for(backward, 0, &grad, |_| None)?;
            zeros.masked_scatter(&backward.operand(1)?, &grad)
        })
    }
}

/// `nonzero`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Nonzero;

impl Op for Nonzero {
    fn name(&self) -> &'static str {
        "nonzero"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(Rule::of(&format!("{} -> n! m!", whole(operands)), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].nonzero())
    }

    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        infer_by_values(self, operands)
    }

    fn decomposes(&self, _: &[&Layout]) -> bool {
        true
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0]);
        check_values(op, x)?;
        let (mesh, axes) = (x.mesh(), cut_axes(operands));
        let order = InOrder { op, mesh, shape: x.shape(), axes: &axes };
        let mut found = order.part(x)?.nonzero()?;
        if let Some(dim) = order.dim() {
            // From the indices of the part to those of the whole.
            let start = interval(&order.layout(x)?, dim, mesh.own_coord(op)?).start;
            let mut offset = vec![0_i64; x.n_dims()];
            offset[dim] = start as i64;
            found = found.add(&Tensor::from_vec(offset, &[x.n_dims()])?)?;
        }
        in_chunks(&order, found)
    }
}

/// What each rank has found, one row after the other, as a tensor that the same axes cut.
fn in_chunks(order: &InOrder<'_>, found: Tensor) -> Result<Outputs<DTensor>> {
    let InOrder { op, mesh, .. } = *order;
    // Where nothing can be cut, all ranks have found the same.
    let axes = if order.dim().is_some() { order.axes } else { &[] };
    let line = Line { op, mesh, axes };
    let counts = line.agree(&[found.shape()[0] as i64])?;
    let counts: Vec<usize> =
        counts.iter().map(|one| usize::try_from(one[0]).unwrap_or(0)).collect();
    let mut shape = found.shape().to_vec();
    shape[0] = counts.iter().sum();
    let layout = rows_layout(op, mesh, axes, &shape, found.dtype())?;
    Ok([line.move_to_chunks(&found, 0, &counts, &layout)?].into())
}

/// `masked_scatter`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MaskedScatter;

impl Op for MaskedScatter {
    fn name(&self) -> &'static str {
        "masked_scatter"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims().max(operands[1].n_dims());
        let result =
            letters(RESULT, n_dims).iter().map(|name| format!("{name}! ")).collect::<String>();
        let mut text = format!("{} -> {result}", whole(operands));
        // Elements only move; those that are whole do not change by a mean or an extreme.
        for op in ReduceOp::ALL {
            text += &format!("; P({op}) R P({op}) -> P({op})");
            if !matches!(op, ReduceOp::Sum | ReduceOp::Product) {
                text += &format!("; P({op}) R R -> P({op}); R R P({op}) -> P({op})");
            }
        }
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].masked_scatter(x[1], x[2]))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        // What is taken of a source that is cut is all of it, if the others are whole.
        operands[..2].iter().any(|layout| {
            layout.placements().iter().any(|placement| placement.shard_dim().is_some())
        })
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x, mask, source) = (self.name(), operands[0], operands[1], operands[2]);
        let (mesh, axes) = (x.mesh(), cut_axes(&operands[..2]));
        let shape = broadcast(x.shape(), mask.shape());
        let order = InOrder { op, mesh, shape: &shape, axes: &axes };
        let layout = order.layout(x)?;
        let Some(coord) = mesh.coord() else {
            let nothing = Tensor::empty(&[0], x.dtype())?;
            return Ok([DTensor::from_parts(nothing, layout, mesh.clone())].into());
        };
        let (part, mask) = (order.part(x)?, order.part(mask)?);
        let line = Line { op, mesh, axes: &axes };
        let of_source = InOrder { op, mesh, shape: source.shape(), axes: &axes };
        let values = of_source.part(source)?.contiguous();
        let values = values.reshape(&[values.numel()])?;
        if mesh.is_fake() {
            return Ok([DTensor::from_parts(part, layout, mesh.clone())].into());
        }
        // The same message if no dim can be cut, and all ranks have everything.
        let is_cut = order.dim().is_some();
        let own = match mask.numel() {
            0 => 0,
            _ => mask.to_dtype(DType::I64)?.sum(&[], false)?.item::<i64>()?,
        };
        let counts = line.agree(&[own])?;
        let counts: Vec<usize> =
            counts.iter().map(|one| usize::try_from(one[0]).unwrap_or(0)).collect();
        let wanted = |coord: &[usize]| {
            let position = if is_cut { line.position(coord) } else { 0 };
            let start: usize = counts[..position].iter().sum();
            start..start + counts[position]
        };
        let total = if is_cut { counts.iter().sum() } else { counts[0] };
        if source.numel() < total {
            let got = source.numel();
            return Err(LocalError::WrongNumberOfValues { op, got, want: total, shape }.into());
        }
        let values = match of_source.dim() {
            Some(_) => line.move_to(&values, 0, &of_source.counts(&line, source)?, &wanted)?,
            None => {
                let wanted = wanted(coord);
                values.narrow(0, wanted.start, wanted.len())?
            }
        };
        let written = part.masked_scatter(&mask, &values)?;
        Ok([DTensor::from_parts(written, layout, mesh.clone())].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, mask) = (backward.grad()?, backward.operand(1)?);
        backward.each(|operand| match operand {
            0 => grad.masked_fill(&mask, false),
            _ => {
                // The first elements of the source, as many as there were places.
                let shape = backward.shape(operand);
                let taken = grad.masked_select(&mask)?;
                let all = resized(&taken, &[shape.iter().product()])?;
                all.reshape(&shape.iter().map(|size| size.cast_signed()).collect::<Vec<_>>())
            }
        })
    }
}

/// Operands of which no dim is cut.
fn whole(operands: &[Meta]) -> String {
    let names = operands.iter().zip([TENSOR, LIST, SOURCE]).map(|(operand, family)| {
        let names = letters(family, operand.n_dims());
        names.iter().map(|name| format!("{name}!")).collect::<Vec<_>>().join(" ")
    });
    names.collect::<Vec<_>>().join(", ")
}

impl DTensor {
    /// The elements where the mask, of `bool`, is true, in one dim. Both are broadcast.
    ///
    /// The result is cut by the axes that cut the operands. The ranks tell each other how many elements they
    /// have; on a fake mesh, and on a rank that is not on the mesh, it is an error. So are
    /// [`nonzero`](DTensor::nonzero) and all others whose shape depends on values.
    pub fn masked_select(&self, mask: &DTensor) -> Result<DTensor> {
        call_one(&MaskedSelect, &[self, mask])
    }

    /// A copy whose elements where the mask, of `bool`, is true are the first ones of the source, in order.
    /// Tensor and mask are broadcast. Every rank receives the values of the source that it writes.
    pub fn masked_scatter(&self, mask: &DTensor, source: &DTensor) -> Result<DTensor> {
        call_one(&MaskedScatter, &[self, mask, source])
    }

    /// The indices of the elements that are not zero, in order: `i64`, one row per element and one column per
    /// dim. The rows are cut by the axes that cut the tensor.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, arange};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = arange(-2, 4, 1, DType::I64, &mesh, &[Shard(0)])?;
    ///     let places = x.nonzero()?;
    ///     assert_eq!((places.shape(), places.placements()), (&[5, 1][..], &[Shard(0)][..]));
    ///     assert_eq!(places.to_vec::<i64>()?, [0, 1, 3, 4, 5]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn nonzero(&self) -> Result<DTensor> {
        call_one(&Nonzero, &[self])
    }

    /// The columns of [`nonzero`](DTensor::nonzero), one list per dim.
    pub(super) fn nonzero_lists(&self) -> Result<Vec<DTensor>> {
        let rows = self.nonzero()?;
        let layout =
            Layout::new(&rows.shape()[..1], rows.dtype(), rows.mesh().mesh(), rows.placements());
        let layout = layout.map_err(Error::layout("nonzero"))?;
        let column = |dim: usize| {
            let column = rows.local().select(1, dim as isize)?.contiguous();
            Ok(DTensor::from_parts(column, layout.clone(), rows.mesh().clone()))
        };
        (0..self.n_dims()).map(column).collect()
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "masked_select",
        samples: || {
            let sample = |shapes: &[&[usize]; 2]| Sample::new(MaskedSelect, shapes).with(1, Truth);
            vec![
                sample(&[&[5, 3], &[5, 3]]),
                sample(&[&[1, 7], &[7]]),
                sample(&[&[3], &[4, 3]]),
                sample(&[&[4, 1, 2], &[3, 2]]),
                sample(&[&[], &[]]),
            ]
        },
    },
    OpRecord {
        name: "masked_scatter",
        samples: || {
            let sample = |shapes: &[&[usize]; 3]| Sample::new(MaskedScatter, shapes).with(1, Truth);
            vec![
                sample(&[&[5, 3], &[5, 3], &[3, 5]]),
                sample(&[&[1, 7], &[7], &[9]]),
                sample(&[&[3], &[4, 3], &[2, 3, 2]]),
                sample(&[&[1], &[1], &[1]]),
            ]
        },
    },
    OpRecord {
        name: "nonzero",
        samples: || {
            let sample = |shape: &[usize]| Sample::new(Nonzero, &[shape]).with(0, Index(2));
            vec![sample(&[5, 3]), sample(&[1, 7]), sample(&[2, 3, 2]), sample(&[])]
        },
    },
];
