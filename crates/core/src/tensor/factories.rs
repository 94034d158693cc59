//! New tensors: every rank makes its own part, and nothing is sent.
//!
//! The value of an element does not depend on the layout. Where a reduction is pending, it is the *reduced*
//! value that is asked for: of a sum or a product the first rank of the axis holds the value, the others 0
//! or 1.

use std::ops::Range;

use dtensor_dtype::Element;
use dtensor_layout::{DType, Layout, Placement, ReduceOp};
use dtensor_local::{Scalar, Sequence, Tensor};

use crate::{DTensor, DeviceMesh, Error, Result};

/// Zeros (false, for `bool`).
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, zeros};
///
/// Runner::threads(4).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = zeros(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;
///     assert_eq!(x.shape(), [6, 4]);
///     assert_eq!(x.to_local().shape(), [[2, 4], [2, 4], [2, 4], [0, 4]][world.rank()]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn zeros(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make("zeros", shape, dtype, mesh, placements, |part| Ok(Tensor::zeros(&part.shape, dtype)?))
}

/// Ones (true, for `bool`).
pub fn ones(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make("ones", shape, dtype, mesh, placements, |part| Ok(Tensor::ones(&part.shape, dtype)?))
}

/// Any values, not the same on every rank. For tensors that are written before they are read.
pub fn empty(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make("empty", shape, dtype, mesh, placements, |part| Ok(Tensor::empty(&part.shape, dtype)?))
}

/// The same value everywhere.
pub fn full<T: Element>(
    shape: &[usize],
    value: T,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make("full", shape, T::DTYPE, mesh, placements, |part| Ok(Tensor::full(&part.shape, value)?))
}

/// The numbers `start`, `start + step`, ... before `end`.
pub fn arange(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    step: impl Into<Scalar>,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let numbers = Sequence::arange(start, end, step, dtype)?;
    sequence("arange", numbers, dtype, mesh, placements)
}

/// `steps` numbers from `start` to `end`, both included.
pub fn linspace(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    steps: usize,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let numbers = Sequence::linspace(start, end, steps, dtype)?;
    sequence("linspace", numbers, dtype, mesh, placements)
}

/// `base` to the power of the numbers of [`linspace`].
pub fn logspace(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    steps: usize,
    base: f64,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let numbers = Sequence::logspace(start, end, steps, base, dtype)?;
    sequence("logspace", numbers, dtype, mesh, placements)
}

/// A matrix with ones on its diagonal and zeros elsewhere.
pub fn eye(
    rows: usize,
    columns: usize,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make("eye", &[rows, columns], dtype, mesh, placements, |part| {
        let numbers = |dim: usize, size: usize| {
            let end = i64::try_from(size).unwrap_or(i64::MAX);
            Sequence::arange(0, end, 1, DType::I64)?.part(&part.ranges[dim])
        };
        let (rows, columns) = (numbers(0, rows)?.unsqueeze(1)?, numbers(1, columns)?.unsqueeze(0)?);
        Ok(rows.eq(&columns)?.to_dtype(dtype)?)
    })
}

impl DTensor {
    /// Zeros of the same shape, dtype and layout.
    pub fn zeros_like(&self) -> Result<DTensor> {
        self.like("zeros_like", |part| Ok(Tensor::zeros(&part.shape, self.dtype())?))
    }

    /// Ones of the same shape, dtype and layout.
    pub fn ones_like(&self) -> Result<DTensor> {
        self.like("ones_like", |part| Ok(Tensor::ones(&part.shape, self.dtype())?))
    }

    /// Any values in the same shape, dtype and layout.
    pub fn empty_like(&self) -> Result<DTensor> {
        self.like("empty_like", |part| Ok(Tensor::empty(&part.shape, self.dtype())?))
    }

    /// One value, cast to the dtype, in the same shape and layout.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<DTensor> {
        let value = value.into();
        self.like("full_like", |part| {
            Ok(Tensor::empty(&part.shape, self.dtype())?.full_like(value)?)
        })
    }

    /// Zeros of another shape, with the same dtype and mesh.
    pub fn new_zeros(&self, shape: &[usize], placements: &[Placement]) -> Result<DTensor> {
        zeros(shape, self.dtype(), self.mesh(), placements)
    }

    /// Ones of another shape, with the same dtype and mesh.
    pub fn new_ones(&self, shape: &[usize], placements: &[Placement]) -> Result<DTensor> {
        ones(shape, self.dtype(), self.mesh(), placements)
    }

    /// Any values of another shape, with the same dtype and mesh.
    pub fn new_empty(&self, shape: &[usize], placements: &[Placement]) -> Result<DTensor> {
        empty(shape, self.dtype(), self.mesh(), placements)
    }

    /// One value, cast to the dtype, in another shape, with the same mesh.
    pub fn new_full(
        &self,
        shape: &[usize],
        value: impl Into<Scalar>,
        placements: &[Placement],
    ) -> Result<DTensor> {
        let (value, dtype) = (value.into(), self.dtype());
        make("new_full", shape, dtype, self.mesh(), placements, |part| {
            Ok(Tensor::empty(&part.shape, dtype)?.full_like(value)?)
        })
    }

    fn like(
        &self,
        op: &'static str,
        fill: impl FnOnce(&Part) -> Result<Tensor>,
    ) -> Result<DTensor> {
        make_layout(op, self.layout(), self.mesh(), fill)
    }
}

/// The part of a new tensor that this rank makes.
pub(crate) struct Part {
    pub(crate) shape: Vec<usize>,
    /// The global indices that it holds, per dim.
    pub(crate) ranges: Vec<Vec<Range<usize>>>,
}

fn sequence(
    op: &'static str,
    numbers: Sequence,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    make(op, &[numbers.len()], dtype, mesh, placements, |part| Ok(numbers.part(&part.ranges[0])?))
}

pub(crate) fn make(
    op: &'static str,
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
    fill: impl FnOnce(&Part) -> Result<Tensor>,
) -> Result<DTensor> {
    let layout = Layout::new(shape, dtype, mesh.mesh(), placements).map_err(Error::layout(op))?;
    make_layout(op, &layout, mesh, fill)
}

pub(crate) fn make_layout(
    op: &'static str,
    layout: &Layout,
    mesh: &DeviceMesh,
    fill: impl FnOnce(&Part) -> Result<Tensor>,
) -> Result<DTensor> {
    let dtype = layout.dtype();
    // A shape that is too large for memory everywhere is one that no layout makes small.
    Tensor::meta(layout.global_shape(), DType::U8)?;
    let local = match mesh.coord() {
        None => Tensor::empty(&[0], dtype)?,
        Some(coord) if mesh.is_fake() => Tensor::meta(&layout.local_shape(coord), dtype)?,
        Some(coord) => {
            let shape = layout.local_shape(coord);
            match held_instead(layout, coord) {
                Some(ReduceOp::Product) => Tensor::ones(&shape, dtype)?,
                Some(_) => Tensor::zeros(&shape, dtype)?,
                None => {
                    let ranges = (0..layout.n_dims())
                        .map(|dim| layout.intervals(dim, coord).iter().collect());
                    fill(&Part { shape, ranges: ranges.collect() })?
                }
            }
        }
    };
    tracing::trace!(op, ?layout, "made");
    Ok(DTensor::from_parts(local, layout.clone(), mesh.clone()))
}

/// The pending sum or product of which this rank holds 0 or 1, if it is not the one with the value.
fn held_instead(layout: &Layout, coord: &[usize]) -> Option<ReduceOp> {
    let pending = layout.placements().iter().zip(coord).filter(|(_, index)| **index != 0);
    let mut ops = pending.filter_map(|(placement, _)| placement.reduce_op());
    ops.find(|op| matches!(op, ReduceOp::Sum | ReduceOp::Product))
}
