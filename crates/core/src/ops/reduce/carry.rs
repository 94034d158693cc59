//! What scans along a dim that is cut have in common: every rank scans its part, and then takes in what the
//! parts before its own came to. Only those totals are sent.

use dtensor_layout::{DType, Layout, Placement};
use dtensor_local::Tensor;

use crate::{DTensor, DeviceMesh, Error, Result, exchange::members, op::Meta, ops::letters::cuts};

/// A tensor whose parts are to be scanned along a dim.
pub(super) struct Scan {
    op: &'static str,
    pub(super) dim: usize,
    x: DTensor,
    /// Of the rank, if it is on the mesh.
    coord: Option<Vec<usize>>,
}

/// From which end of the dim a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// From the first index on.
    Ascending,
    /// From the last index back.
    Descending,
}

impl Direction {
    pub(super) fn opposite(self) -> Direction {
        match self {
            Direction::Ascending => Direction::Descending,
            Direction::Descending => Direction::Ascending,
        }
    }
}

/// Whether a scan along this dim needs to know of other ranks.
pub(super) fn needs_carry(op: &'static str, layout: &Layout, dim: isize) -> bool {
    let dim = Meta::of_layout(layout).dim(op, dim);
    dim.is_ok_and(|dim| cuts(layout, |one| one == dim))
}

impl Scan {
    /// Of a tensor of which a dim is cut. Every part will be one range of the dim.
    pub(super) fn new(op: &'static str, x: &DTensor, dim: isize) -> Result<Scan> {
        let dim = Meta::of_layout(x.layout()).dim(op, dim)?;
        let strided = x.layout().order().cuts(dim).iter().any(|cut| cut.split_factor != 1);
        let x = if strided { x.redistribute(x.placements())? } else { x.clone() };
        let coord = x.mesh().coord().map(<[usize]>::to_vec);
        Ok(Scan { op, dim, x, coord })
    }

    /// What the rank holds; `None` if it is not on the mesh.
    pub(super) fn local(&self) -> Option<&Tensor> {
        self.coord.as_ref().map(|_| self.x.local())
    }

    /// The first index of the dim that the rank holds.
    pub(super) fn start(&self) -> usize {
        let start = |coord: &Vec<usize>| self.x.layout().intervals(self.dim, coord).start();
        self.coord.as_ref().and_then(start).unwrap_or(0)
    }

    /// The results of scanning the parts that are scanned before this one at their ends, one after the other along the
    /// dim, if there are any; `scanned` is that of this part. All ranks of the mesh call it.
    pub(super) fn totals_before(
        &self,
        scanned: &Tensor,
        direction: Direction,
    ) -> Result<Option<Tensor>> {
        let Some(coord) = &self.coord else { return Ok(None) };
        let (dim, layout, mesh) = (self.dim, self.x.layout(), self.x.mesh());
        let held = scanned.shape()[dim];
        let total = match held {
            0 => {
                let mut shape = scanned.shape().to_vec();
                shape[dim] = 1;
                Tensor::zeros(&shape, scanned.dtype())?
            }
            _ => {
                let end = if direction == Direction::Ascending { held - 1 } else { 0 };
                scanned.narrow(dim as isize, end, 1)?
            }
        };
        let total =
            if scanned.is_meta() { Tensor::meta(total.shape(), total.dtype())? } else { total };
        let (cut, whole) = self.layouts_of_totals(scanned.dtype())?;
        let totals = DTensor::from_parts(total, cut.clone(), mesh.clone());
        let totals = totals.redistribute_as(self.op, &whole)?;
        if mesh.is_fake() || held == 0 {
            return Ok(None);
        }
        let axes: Vec<usize> = layout.order().cuts(dim).iter().map(|cut| cut.axis).collect();
        let own = self.start();
        let is_before = |start: usize| match direction {
            Direction::Ascending => start < own,
            Direction::Descending => start > own,
        };
        let mut before: Vec<i64> = members(mesh, &axes, coord)
            .iter()
            .filter(|member| layout.intervals(dim, member).start().is_some_and(is_before))
            .filter_map(|member| cut.intervals(dim, member).start())
            .map(|number| number as i64)
            .collect();
        before.sort_unstable();
        let n = before.len();
        match n {
            0 => Ok(None),
            _ => {
                let before = Tensor::from_vec(before, &[n])?;
                Ok(Some(totals.local().index_select(dim as isize, &before)?))
            }
        }
    }

    /// The layouts of the totals, one per part of the dim: each with its rank, and all with all.
    fn layouts_of_totals(&self, dtype: DType) -> Result<(Layout, Layout)> {
        let (layout, dim) = (self.x.layout(), self.dim);
        let mut cuts: Vec<_> = layout.order().dims().map(<[_]>::to_vec).collect();
        let mut shape = layout.global_shape().to_vec();
        shape[dim] = cuts[dim].iter().map(|cut| layout.mesh().axis_size(cut.axis)).product();
        let make = |placements: &[Placement], cuts: &[Vec<_>]| {
            let made = Layout::with_cuts(&shape, dtype, layout.mesh(), placements, cuts);
            made.map_err(Error::layout(self.op))
        };
        let cut = make(layout.placements(), &cuts)?;
        let mut placements = layout.placements().to_vec();
        for cut in std::mem::take(&mut cuts[dim]) {
            placements[cut.axis] = Placement::Replicate;
        }
        Ok((cut, make(&placements, &cuts)?))
    }

    /// A result that lies as the operand does; `local` is there if the rank is on the mesh.
    pub(super) fn result(&self, local: Option<Tensor>, dtype: DType) -> Result<DTensor> {
        let layout = self.x.layout().with_dtype(dtype).map_err(Error::layout(self.op))?;
        let mesh: DeviceMesh = self.x.mesh().clone();
        let local = local.map_or_else(|| Tensor::empty(&[0], dtype), Ok)?;
        Ok(DTensor::from_parts(local, layout, mesh))
    }
}
