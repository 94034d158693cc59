//! Sorting along a dim.

use dtensor_layout::{DType, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor};

use super::{
    along::{Keep, Way, axes_of, from_lines, is_cut, lines_rule, to_lines, way, with_whole_lines},
    merge::{Merge, Sorted},
};
use crate::{
    DTensor, Error, Result,
    dispatch::{call, call_one, call_two},
    op::{
        Backward, Grads, Keep as Kept, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one, two,
    },
    ops::indexing::{
        held::normal,
        pick::spread_back,
        ragged::{Line, interval},
    },
};

/// `sort`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sort {
    pub(super) dim: isize,
    pub(super) descending: bool,
}

impl Op for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(lines_rule(operands[0].n_dims(), self.dim, 2, Keep::Same))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(x[0].sort(self.dim, self.descending))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled()?;
        let dim = normal(self.dim, x.n_dims());
        if way(x.layout(), dim) == Way::InParts {
            let (values, indices) = sort_in_parts(self.name(), &x, dim, self.descending)?;
            return Ok([values, indices].into_iter().collect());
        }
        call(self, &[&with_whole_lines(self.name(), &x, dim)?])
    }

    fn keeps(&self) -> Option<Kept> {
        Some(Kept::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| spread_back(backward, self.dim, &backward.result(1)?, &grad))
    }
}

/// `argsort`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Argsort {
    dim: isize,
    descending: bool,
}

impl Op for Argsort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Ok(lines_rule(operands[0].n_dims(), self.dim, 1, Keep::Same))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].argsort(self.dim, self.descending))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        is_cut(operands[0], self.dim)
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled()?;
        let dim = normal(self.dim, x.n_dims());
        if way(x.layout(), dim) == Way::InParts {
            let (_, indices) = sort_in_parts(self.name(), &x, dim, self.descending)?;
            return Ok([indices].into());
        }
        call(self, &[&with_whole_lines(self.name(), &x, dim)?])
    }
}

/// Values sorted along a cut dim, and where they were, cut as before.
pub(super) fn sort_in_parts(
    op: &'static str,
    x: &DTensor,
    dim: usize,
    descending: bool,
) -> Result<(DTensor, DTensor)> {
    // In plain order: then the parts continue from rank to rank.
    let x = &x.redistribute(x.placements())?;
    let (mesh, layout) = (x.mesh(), x.layout());
    let of_indices = layout.with_dtype(DType::I64).map_err(Error::layout(op))?;
    let place = |sorted: Sorted| {
        let placed =
            |local, layout: &Layout| DTensor::from_parts(local, layout.clone(), mesh.clone());
        (placed(sorted.values, layout), placed(sorted.indices, &of_indices))
    };
    if mesh.coord().is_none() {
        let indices = Tensor::empty(&[0], DType::I64)?;
        return Ok(place(Sorted { values: x.to_local(), indices }));
    }
    let (axes, _) = axes_of(layout, dim);
    let line = Line { op, mesh, axes: &axes };
    let members = line.members()?;
    let sizes: Vec<usize> =
        members.iter().map(|coord| interval(layout, dim, coord).len()).collect();
    let wanted = |coord: &[usize]| interval(layout, dim, coord);
    let merge = Merge { line: &line, sizes: &sizes, descending, wanted: &wanted };
    let Sorted { values, indices } = merge.run(&to_lines(x.local(), dim)?)?;
    let shape = x.local().shape();
    let values = from_lines(&values, shape, dim)?;
    Ok(place(Sorted { values, indices: from_lines(&indices, shape, dim)? }))
}

impl DTensor {
    /// The values sorted along a dim and, as `i64`, where they were. Stable: equal values keep their order.
    /// NaN is larger than all others.
    ///
    /// If the dim is cut, the cut is moved to another dim that has an index for every rank; the result is
    /// cut there. If there is none, the ranks sort their parts and merge them by a few exchanges, and the
    /// result is cut as before. Nowhere is a whole line gathered, unless it is tiny.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, arange};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = arange(0, 6, 1, DType::F32, &mesh, &[Shard(0)])?;
    ///     let (values, places) = x.sort(0, true)?;
    ///     assert_eq!(values.placements(), [Shard(0)]);
    ///     assert_eq!(values.to_vec::<f32>()?, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
    ///     assert_eq!(places.to_vec::<i64>()?, [5, 4, 3, 2, 1, 0]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn sort(&self, dim: isize, descending: bool) -> Result<(DTensor, DTensor)> {
        call_two(&Sort { dim, descending }, &[self])
    }

    /// The indices that sort along a dim, as `i64`: those of [`sort`](DTensor::sort).
    pub fn argsort(&self, dim: isize, descending: bool) -> Result<DTensor> {
        call_one(&Argsort { dim, descending }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "sort",
        samples: || {
            let sample = |dim, descending, shape| Sample::new(Sort { dim, descending }, &[shape]);
            vec![
                sample(1, false, &[3, 5]),
                sample(0, true, &[7, 2]),
                sample(-1, false, &[1, 19]),
                sample(0, true, &[23]),
                sample(0, false, &[]),
            ]
        },
    },
    OpRecord {
        name: "argsort",
        samples: || {
            let sample =
                |dim, descending, shape| Sample::new(Argsort { dim, descending }, &[shape]);
            vec![sample(-1, true, &[4, 3]), sample(0, false, &[21]), sample(1, false, &[2, 19])]
        },
    },
];
