//! Windows over dims that are cut: every rank fetches what its part of the result sees.

use std::ops::Range;

use dtensor_layout::{Layout, Placement};
use dtensor_local::Tensor;

use super::steps::filled;
use crate::{
    DTensor, Error, Result,
    dispatch::choose::choose,
    exchange::{Exchange, Run},
    op::{Meta, Op, Outputs},
};

/// Indices of a dim, some of which may lie before its beginning or behind its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: isize,
    pub(super) len: usize,
}

/// The operands of an operation and the layouts of its results, for its rule with further rows.
pub(super) struct Arranged {
    pub(super) operands: Vec<DTensor>,
    pub(super) results: Vec<Layout>,
}

impl Arranged {
    /// Moves operands to where the cheapest row needs them. `rows` are what holds if windows are fetched.
    pub(super) fn new(op: &dyn Op, operands: &[&DTensor], rows: &[String]) -> Result<Arranged> {
        let name = op.name();
        let layouts: Vec<&Layout> = operands.iter().map(|operand| operand.layout()).collect();
        let metas: Vec<Meta> = layouts.iter().map(|layout| Meta::of_layout(layout)).collect();
        let text = op.rule(&metas)?.to_string();
        let (letters, laws) = text.split_once('|').unwrap_or((&text, ""));
        let rows: String = rows.iter().map(|row| format!("; {row}")).collect();
        let laws = if laws.is_empty() { String::new() } else { format!("|{laws}") };
        let rule = format!("{letters}{rows} {laws}").parse().map_err(Error::rule(name))?;
        let choice = choose(name, &rule, &layouts, &op.infer(&metas)?, true)?;
        let moved = operands.iter().zip(&choice.operands);
        let moved = moved.map(|(operand, layout)| operand.redistribute_as(name, layout));
        Ok(Arranged { operands: moved.collect::<Result<_>>()?, results: choice.results })
    }

    /// The results that this rank computes by `compute`, given its coordinate.
    pub(super) fn results(
        &self,
        compute: impl FnOnce(&[usize]) -> Result<Outputs>,
    ) -> Result<Outputs<DTensor>> {
        let mesh = self.operands[0].mesh();
        let locals: Outputs = match mesh.coord() {
            Some(coord) => compute(coord)?,
            None => {
                let empty = self.results.iter().map(|layout| Tensor::empty(&[0], layout.dtype()));
                empty.collect::<Result<_, _>>()?
            }
        };
        let placed = locals.into_iter().zip(&self.results);
        Ok(placed
            .map(|(local, layout)| DTensor::from_parts(local, layout.clone(), mesh.clone()))
            .collect())
    }
}

/// The indices of a dim that the rank at `coord` holds, of a layout whose cuts are in plain order.
pub(super) fn held(layout: &Layout, dim: usize, coord: &[usize]) -> Range<usize> {
    let intervals = layout.intervals(dim, coord);
    let start = intervals.start().unwrap_or(layout.global_shape()[dim]);
    start..start + intervals.len()
}

/// What this rank holds of a tensor, but of these dims the window that `window` says for the rank at a coordinate, with
/// `fill` where there is nothing. One exchange among the ranks that the dims are cut over.
pub(super) fn fetched(
    op: &'static str,
    x: &DTensor,
    dims: &[usize],
    window: &dyn Fn(&[usize], usize) -> Window,
    fill: f64,
) -> Result<Tensor> {
    let (layout, mesh) = (x.layout(), x.mesh());
    let coord = mesh.own_coord(op)?;
    let axes: Vec<usize> = (0..mesh.n_axes())
        .filter(|axis| {
            let cut = layout.placements()[*axis];
            matches!(cut, Placement::Shard(dim) if dims.contains(&dim))
        })
        .collect();
    let all_held = |coord: &[usize]| -> Vec<Range<usize>> {
        (0..layout.n_dims()).map(|dim| held(layout, dim, coord)).collect()
    };
    let wanted = |coord: &[usize]| -> Vec<Vec<Run>> {
        let runs = (0..layout.n_dims()).map(|dim| {
            let (window, size) = match dims.contains(&dim) {
                true => (window(coord, dim), layout.global_shape()[dim]),
                false => {
                    let Range { start, end } = held(layout, dim, coord);
                    (Window { start: start as isize, len: end - start }, end)
                }
            };
            window.within(size).into_iter().collect()
        });
        runs.collect()
    };
    let mut shape = layout.local_shape(coord);
    for dim in dims {
        shape[*dim] = window(coord, *dim).len;
    }
    let into = filled(x.local(), &shape, x.dtype(), fill)?;
    let exchange = Exchange { op, mesh, axes: &axes, held: &all_held, wanted: &wanted };
    exchange.run(x.local(), into)
}

impl Window {
    /// The part of it that is within a dim of this size.
    fn within(self, size: usize) -> Option<Run> {
        let end = self.start.saturating_add_unsigned(self.len).min(size as isize);
        let start = self.start.max(0);
        (start < end).then(|| {
            let to = (start - self.start) as usize..(end - self.start) as usize;
            Run { to, from: start as usize, step: 1 }
        })
    }
}

/// Of a dim whose first element is at `start`, the window `wanted`, with zeros where there is nothing.
pub(super) fn cropped(x: &Tensor, dim: usize, start: isize, wanted: Window) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    let within = Window { start: wanted.start - start, len: wanted.len }.within(shape[dim]);
    shape[dim] = wanted.len;
    let out = filled(x, &shape, x.dtype(), 0.0)?;
    let Some(run) = within.filter(|_| !x.is_meta()) else { return Ok(out) };
    let values = x.narrow(dim as isize, run.from, run.to.len())?;
    if run.to.len() == wanted.len {
        return Ok(values);
    }
    let mut place: Vec<Range<usize>> = shape.iter().map(|size| 0..*size).collect();
    place[dim] = run.to;
    Ok(out.slice_assign(&place, &values)?)
}
