//! Frequencies, and their order.

use std::ops::Range;

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::{
    LocalError, Tensor,
    fft::{self, Elements},
};
use smallvec::{SmallVec, smallvec};

use crate::{
    DTensor, DeviceMesh, Error, Result,
    dispatch::call_one,
    exchange::{Exchange, Run},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::{
        letters::{cuts, letter, rule},
        reduce::normal_dims,
    },
    tensor::make_layout,
};

/// `fftshift` or `ifftshift`: every dim is rolled by half of its size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shift {
    inverse: bool,
    elements: Elements,
    dims: Option<SmallVec<[isize; 4]>>,
}

impl Op for Shift {
    fn name(&self) -> &'static str {
        if self.inverse { "ifftshift" } else { "fftshift" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let dims = self.dims_of(&operands[0].shape)?;
        let name = |dim| letter(dim) + if dims.contains(&dim) { "!" } else { "" };
        let letters = (0..operands[0].n_dims()).map(name).collect::<Vec<_>>().join(" ");
        rule(self.name(), &format!("{letters} -> {letters} | Moves"), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // A part need not have both real and imaginary parts, so that its dims have to be named from the
        // first.
        let named = match context.operand(0) {
            Some(layout) => {
                let dims = self.dims_of(layout.global_shape())?;
                Some(dims.iter().map(|dim| *dim as isize).collect::<Vec<isize>>())
            }
            None => None,
        };
        let (elements, dims) = match &named {
            Some(dims) => (Elements::Real, Some(&dims[..])),
            None => (self.elements, self.dims.as_deref()),
        };
        one(match self.inverse {
            true => fft::ifftshift(x[0], elements, dims),
            false => fft::fftshift(x[0], elements, dims),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dims = self.dims_of(operands[0].global_shape());
        dims.is_ok_and(|dims| cuts(operands[0], |dim| dims.contains(&dim)))
    }

    /// One exchange, in which every rank receives what comes to lie in its part.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        // In plain order every part is one range.
        let x = operands[0].redistribute(operands[0].placements())?;
        let (layout, mesh) = (x.layout().clone(), x.mesh());
        let Some(coord) = mesh.coord() else { return Ok(smallvec![x]) };
        let dims = self.dims_of(x.shape())?;
        let cut = |placement: &Placement| placement.shard_dim().is_some_and(|d| dims.contains(&d));
        let axes = layout.placements().iter().enumerate().filter(|(_, placement)| cut(placement));
        let axes: Vec<usize> = axes.map(|(axis, _)| axis).collect();
        let held = |coord: &[usize]| -> Vec<Range<usize>> {
            let range = |dim| {
                let held = layout.intervals(dim, coord);
                let start = held.start().unwrap_or(0);
                start..start + held.len()
            };
            (0..layout.n_dims()).map(range).collect()
        };
        let wanted = |coord: &[usize]| -> Vec<Vec<Run>> {
            let runs = |(dim, own): (usize, Range<usize>)| {
                let n = layout.global_shape()[dim];
                let by = if dims.contains(&dim) { self.distance(n) } else { 0 };
                let rolled =
                    [Run { to: 0..by, from: n - by, step: 1 }, Run { to: by..n, from: 0, step: 1 }];
                rolled.iter().filter_map(|run| run.within(&own)).collect()
            };
            held(coord).into_iter().enumerate().map(runs).collect()
        };
        let exchange =
            Exchange { op: self.name(), mesh, axes: &axes, held: &held, wanted: &wanted };
        let shape = layout.local_shape(coord);
        let into = match mesh.is_fake() {
            true => Tensor::meta(&shape, x.dtype())?,
            false => Tensor::empty(&shape, x.dtype())?,
        };
        let local = exchange.run(x.local(), into)?;
        Ok(smallvec![DTensor::from_parts(local, layout.clone(), mesh.clone())])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let back = Shift { inverse: !self.inverse, ..self.clone() };
        backward.first(|| call_one(&back, &[&grad]))
    }
}

impl Shift {
    fn dims_of(&self, shape: &[usize]) -> Result<Vec<usize>, LocalError> {
        let shape = match (self.elements, shape.split_last()) {
            (Elements::Complex, Some((_, shape))) => shape,
            _ => shape,
        };
        match &self.dims {
            Some(dims) => normal_dims(self.name(), dims, shape),
            None => Ok((0..shape.len()).collect()),
        }
    }

    /// By how much a dim of this size is rolled.
    fn distance(&self, size: usize) -> usize {
        let half = if self.inverse { size.div_ceil(2) } else { size / 2 };
        half % size.max(1)
    }
}

impl DTensor {
    /// Moves the frequency zero from the start of these dims (by default, of all) to the middle. Along cut
    /// dims, in one exchange.
    pub fn fftshift(&self, elements: Elements, dims: Option<&[isize]>) -> Result<DTensor> {
        let dims = dims.map(SmallVec::from);
        call_one(&Shift { inverse: false, elements, dims }, &[self])
    }

    /// The inverse of [`fftshift`](DTensor::fftshift); for odd sizes it is another one.
    pub fn ifftshift(&self, elements: Elements, dims: Option<&[isize]>) -> Result<DTensor> {
        let dims = dims.map(SmallVec::from);
        call_one(&Shift { inverse: true, elements, dims }, &[self])
    }

    /// The frequencies of the values of [`fft`](DTensor::fft) over `n` samples that are `spacing` apart: the
    /// positive ones, then the negative ones.
    pub fn fftfreq(
        n: usize,
        spacing: f64,
        dtype: DType,
        mesh: &DeviceMesh,
        placements: &[Placement],
    ) -> Result<DTensor> {
        made("fftfreq", fft::fftfreq(n, spacing, dtype)?, mesh, placements)
    }

    /// The frequencies of the values of [`rfft`](DTensor::rfft) over `n` samples that are `spacing` apart.
    pub fn rfftfreq(
        n: usize,
        spacing: f64,
        dtype: DType,
        mesh: &DeviceMesh,
        placements: &[Placement],
    ) -> Result<DTensor> {
        made("rfftfreq", fft::rfftfreq(n, spacing, dtype)?, mesh, placements)
    }
}

/// The rank's part of values that are cheaper to make than to send.
pub(super) fn made(
    op: &'static str,
    all: Tensor,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let layout = Layout::new(all.shape(), all.dtype(), mesh.mesh(), placements);
    make_layout(op, &layout.map_err(Error::layout(op))?, mesh, |part| {
        let held = part.ranges[0].iter().map(|range| all.narrow(0, range.start, range.len()));
        let held = held.collect::<Result<Vec<_>, _>>()?;
        match held.len() {
            0 => Ok(Tensor::empty(&[0], all.dtype())?),
            _ => Ok(Tensor::cat(&held.iter().collect::<Vec<_>>(), 0)?),
        }
    })
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "fftshift", samples: || samples(false) },
    OpRecord { name: "ifftshift", samples: || samples(true) },
];

fn samples(inverse: bool) -> Vec<Sample> {
    let op = |elements, dims: Option<&[isize]>| {
        let dims = dims.map(SmallVec::from);
        Shift { inverse, elements, dims }
    };
    vec![
        Sample::new(op(Elements::Real, Some(&[-1])), &[&[4, 3]]),
        Sample::new(op(Elements::Real, None), &[&[5, 3]]),
        Sample::new(op(Elements::Complex, Some(&[-1])), &[&[3, 7, 2]]),
    ]
}
