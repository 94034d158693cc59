//! Exchanges between layouts: the parts of a result that runs along its dims describe.

use std::ops::Range;

use dtensor_layout::{Cut, DType, Layout, Placement};
use dtensor_local::Tensor;

use super::{Exchange, Run};
use crate::{DTensor, DeviceMesh, Error, Result};

/// A result whose dim `d` has the elements of `runs[d]` of dim `d` of the source, which has
/// [ranges](in_ranges). `into` makes the part of this rank before: what no run has keeps its value.
pub(crate) fn along(
    op: &'static str,
    source: &DTensor,
    result: &Layout,
    runs: &[Vec<Run>],
    into: impl FnOnce(&[usize]) -> Result<Tensor>,
) -> Result<DTensor> {
    let layout = source.layout();
    placed(source.mesh(), result, |coord| {
        let exchange = Exchange {
            op,
            mesh: source.mesh(),
            axes: &crossing(layout, result, runs),
            held: &|coord| held_by(layout, coord),
            wanted: &|coord| part_of(result, coord, runs),
        };
        exchange.run(source.local(), into(&result.local_shape(coord))?)
    })
}

/// The same tensor, of which every rank holds one range of every dim: without strided shards.
pub(crate) fn in_ranges(op: &'static str, tensor: &DTensor) -> Result<DTensor> {
    let layout = tensor.layout();
    match layout.order().dims().flatten().all(|cut| cut.split_factor == 1) {
        true => Ok(tensor.clone()),
        false => {
            let plain = layout.with_placements(layout.placements()).map_err(Error::layout(op))?;
            tensor.redistribute_as(op, &plain)
        }
    }
}

/// The indices of every dim that the rank at a coordinate holds.
pub(crate) fn held_by(layout: &Layout, coord: &[usize]) -> Vec<Range<usize>> {
    let range = |dim: usize| {
        let held = layout.intervals(dim, coord);
        held.start().map_or(0..0, |start| start..start + held.len())
    };
    (0..layout.n_dims()).map(range).collect()
}

/// The runs of whole dims of a result, in the part of the rank at a coordinate.
pub(crate) fn part_of(result: &Layout, coord: &[usize], runs: &[Vec<Run>]) -> Vec<Vec<Run>> {
    let ranges = held_by(result, coord);
    let within = |(range, runs): (&Range<usize>, &Vec<Run>)| {
        runs.iter().filter_map(|run| run.within(range)).collect()
    };
    ranges.iter().zip(runs).map(within).collect()
}

/// The axes that cut the source, but for those that cut dims which stay where they are: ranks that differ only
/// there have nothing for each other.
pub(crate) fn crossing(source: &Layout, result: &Layout, runs: &[Vec<Run>]) -> Vec<usize> {
    let stays = |dim: usize| {
        let size = source.global_shape()[dim];
        result.global_shape()[dim] == size
            && runs[dim] == [Run::whole(size)]
            && source.order().cuts(dim) == result.order().cuts(dim)
    };
    let placements = source.placements().iter().enumerate();
    let crosses = placements
        .filter(|(_, placement)| placement.shard_dim().is_some_and(|dim| !stays(dim)))
        .map(|(axis, _)| axis);
    crosses.collect()
}

/// The layout of a result whose dim `to(dim)` is cut as dim `dim` is in this one. Axes that cut a dim for
/// which there is none hold copies.
pub(crate) fn carried(
    op: &'static str,
    layout: &Layout,
    shape: &[usize],
    to: impl Fn(usize) -> Option<usize>,
) -> Result<Layout> {
    let mut cuts: Vec<Vec<Cut>> = vec![Vec::new(); shape.len()];
    for (dim, own) in layout.order().dims().enumerate() {
        if let Some(cuts) = to(dim).and_then(|dim| cuts.get_mut(dim)) {
            let is_second = !cuts.is_empty() && !own.is_empty();
            cuts.extend_from_slice(own);
            if is_second {
                cuts.sort_by_key(|cut| cut.axis);
            }
        }
    }
    let place = |placement: &Placement| match placement.shard_dim() {
        Some(dim) => to(dim).map_or(Placement::Replicate, Placement::Shard),
        None => *placement,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(place).collect();
    Layout::with_cuts(shape, layout.dtype(), layout.mesh(), &placements, &cuts)
        .map_err(Error::layout(op))
}

/// A tensor of which `make` gives the part of this rank; on a rank outside of the mesh, nothing.
pub(crate) fn placed(
    mesh: &DeviceMesh,
    layout: &Layout,
    make: impl FnOnce(&[usize]) -> Result<Tensor>,
) -> Result<DTensor> {
    let local = match mesh.coord() {
        Some(coord) => make(coord)?,
        None => Tensor::empty(&[0], layout.dtype())?,
    };
    Ok(DTensor::from_parts(local, layout.clone(), mesh.clone()))
}

/// A part that is to be written; without values on a fake mesh.
pub(crate) fn blank(mesh: &DeviceMesh, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Ok(match mesh.is_fake() {
        true => Tensor::meta(shape, dtype)?,
        false => Tensor::empty(shape, dtype)?,
    })
}
