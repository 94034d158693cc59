//! What to do along a dim that an operation needs whole and that is cut.

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::Tensor;

use crate::{
    DTensor, DeviceMesh, Error, Result,
    ops::indexing::held::{TENSOR, letters, normal},
};

/// How an operation along a cut dim gets its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// This dim has enough indices for all ranks: it is cut instead, by an exchange.
    Elsewhere(usize),
    /// The ranks sort their parts and merge them.
    InParts,
    /// The samples by which parts are merged would be all there is, so it is gathered.
    Gathered,
}

/// The axes that cut a dim, and how many ranks they have together.
pub(super) fn axes_of(layout: &Layout, dim: usize) -> (Vec<usize>, usize) {
    let placements = layout.placements().iter().enumerate();
    let cut = placements.filter(|(_, placement)| **placement == Placement::Shard(dim));
    let axes: Vec<usize> = cut.map(|(axis, _)| axis).collect();
    let n_ranks = axes.iter().map(|axis| layout.mesh().axis_size(*axis)).product();
    (axes, n_ranks)
}

/// Whether a dim is cut.
pub(super) fn is_cut(layout: &Layout, dim: isize) -> bool {
    layout.n_dims() > 0 && axes_of(layout, normal(dim, layout.n_dims())).1 > 1
}

pub(super) fn way(layout: &Layout, dim: usize) -> Way {
    let (_, n_ranks) = axes_of(layout, dim);
    let shape = layout.global_shape();
    let spare = |other: &usize| shape[*other] / (axes_of(layout, *other).1 * n_ranks);
    let others = (0..shape.len()).filter(|other| *other != dim && spare(other) > 0);
    // The one that is cut most evenly; among equals the first.
    match others.max_by_key(|other| (spare(other), usize::MAX - other)) {
        Some(other) => Way::Elsewhere(other),
        None if shape[dim] > n_ranks * n_ranks => Way::InParts,
        None => Way::Gathered,
    }
}

/// The same tensor with its lines along `dim` whole: the cuts of that dim are moved to another, or given up.
pub(super) fn with_whole_lines(op: &'static str, x: &DTensor, dim: usize) -> Result<DTensor> {
    let instead = match way(x.layout(), dim) {
        Way::Elsewhere(other) => Placement::Shard(other),
        Way::InParts | Way::Gathered => Placement::Replicate,
    };
    let placements = x.placements().iter();
    let placements: Vec<Placement> = placements
        .map(|placement| if *placement == Placement::Shard(dim) { instead } else { *placement })
        .collect();
    let to = x.layout().with_placements(&placements).map_err(Error::layout(op))?;
    x.redistribute_as(op, &to)
}

/// A layout like this one, with another size of a dim, which no axis cuts.
pub(super) fn uncut(
    op: &'static str,
    layout: &Layout,
    dim: usize,
    size: usize,
    dtype: DType,
) -> Result<Layout> {
    let mut shape = layout.global_shape().to_vec();
    shape[dim] = size;
    let whole = |placement: &Placement| match *placement == Placement::Shard(dim) {
        true => Placement::Replicate,
        false => *placement,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(whole).collect();
    Layout::new(&shape, dtype, layout.mesh(), &placements).map_err(Error::layout(op))
}

/// A part as what a rank of the mesh has; on a rank outside of it, nothing.
pub(super) fn placed(
    mesh: &DeviceMesh,
    layout: Layout,
    local: impl FnOnce(&[usize]) -> Result<Tensor>,
) -> Result<DTensor> {
    let local = match mesh.coord() {
        Some(coord) if mesh.is_fake() => Tensor::meta(&layout.local_shape(coord), layout.dtype())?,
        Some(coord) => local(coord)?,
        None => Tensor::empty(&[0], layout.dtype())?,
    };
    Ok(DTensor::from_parts(local, layout, mesh.clone()))
}

/// A tensor without one of its dims, whose size is 1 and which no axis cuts.
pub(super) fn without_dim(op: &'static str, x: &DTensor, dim: usize) -> Result<DTensor> {
    let mut shape = x.shape().to_vec();
    shape.remove(dim);
    let shifted = |placement: &Placement| match *placement {
        Placement::Shard(other) if other > dim => Placement::Shard(other - 1),
        other => other,
    };
    let placements: Vec<Placement> = x.placements().iter().map(shifted).collect();
    let layout = Layout::new(&shape, x.dtype(), x.mesh().mesh(), &placements);
    let layout = layout.map_err(Error::layout(op))?;
    let local = match x.mesh().coord() {
        Some(coord) => x.local().reshape(&layout.local_shape(coord))?,
        None => x.local().clone(),
    };
    Ok(DTensor::from_parts(local, layout, x.mesh().clone()))
}

/// The same tensor on every rank.
pub(super) fn copied(op: &'static str, mesh: &DeviceMesh, tensor: Tensor) -> Result<DTensor> {
    let layout = Layout::replicated(tensor.shape(), tensor.dtype(), mesh.mesh());
    placed(mesh, layout.map_err(Error::layout(op))?, |_| Ok(tensor))
}

/// The rule of an operation that needs its lines along a dim whole, and has so many results like its operand;
/// `keep` says whether the dim is there in them.
pub(super) fn lines_rule(n_dims: usize, dim: isize, n_results: usize, keep: Keep) -> Rule {
    let mut names = letters(TENSOR, n_dims);
    let dim = normal(dim, n_dims);
    if let Some(name) = names.get_mut(dim) {
        *name += "!";
    }
    let operand = names.join(" ");
    match (keep, names.get_mut(dim)) {
        (_, None) | (Keep::Same, _) => {}
        (Keep::Other, Some(name)) => *name = "n!".to_string(),
        (Keep::One, Some(name)) => *name = "1".to_string(),
        (Keep::Gone, Some(_)) => {
            names.remove(dim);
        }
    }
    let result = names.join(" ");
    let results = vec![result; n_results].join(", ");
    Rule::of(&format!("{operand} -> {results}"), &[])
}

/// What becomes of the dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Same,
    /// It has another size.
    Other,
    /// Its size is 1.
    One,
    Gone,
}

impl Keep {
    pub(super) fn reduced(keep_dims: bool) -> Keep {
        if keep_dims { Keep::One } else { Keep::Gone }
    }
}

/// Lines along a dim as the rows of a matrix.
pub(super) fn to_lines(local: &Tensor, dim: usize) -> Result<Tensor> {
    let n = local.shape()[dim];
    let others = local.shape().iter().enumerate().filter(|(d, _)| *d != dim);
    let n_lines = others.map(|(_, size)| size).product();
    Ok(local.transpose(dim as isize, -1)?.contiguous().reshape(&[n_lines, n])?)
}

/// The opposite: rows as lines along a dim of a tensor of this shape, whatever its size there.
pub(super) fn from_lines(lines: &Tensor, shape: &[usize], dim: usize) -> Result<Tensor> {
    let mut swapped = shape.to_vec();
    let last = swapped.len() - 1;
    swapped[dim] = lines.shape()[1];
    swapped.swap(dim, last);
    Ok(lines.reshape(&swapped)?.transpose(dim as isize, -1)?.contiguous())
}
