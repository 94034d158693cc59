//! More elements around a tensor, or fewer.

use super::{
    bits::{filled, scalar_of},
    places::{Laid, Places, all_sums, dim_offsets},
};
use crate::{
    LocalError, Result, Scalar, Tensor,
    dims::{Dims, numel},
};

/// What [`Tensor::pad`] puts beyond the ends of a dim.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// One value, cast to the dtype.
    Constant(Scalar),
    /// The elements in the opposite order, without the one at the end: `c b | a b c | b a`. Fewer than the
    /// dim has.
    Reflect,
    /// The element at the end: `a a | a b c | c c`.
    Replicate,
    /// The elements from the other end: `b c | a b c | a b`. At most as many as the dim has.
    Circular,
}

impl Tensor {
    /// With elements added before and after dims, or taken away where a number is negative.
    ///
    /// As in PyTorch the numbers come in pairs (before, after), the first pair for the last dim, the next
    /// for the dim before it; dims without a pair stay. Unlike there, every mode can pad every dim.
    ///
    /// ```
    /// use dtensor_local::{PadMode, Tensor};
    /// let x = Tensor::from_vec(vec![1, 2, 3], &[3])?;
    /// assert_eq!(x.pad(&[1, 2], PadMode::Constant(0.into()))?.to_vec::<i32>()?, [0, 1, 2, 3, 0, 0]);
    /// assert_eq!(x.pad(&[2, 0], PadMode::Reflect)?.to_vec::<i32>()?, [3, 2, 1, 2, 3]);
    /// assert_eq!(x.pad(&[-1, 0], PadMode::Replicate)?.to_vec::<i32>()?, [2, 3]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn pad(&self, pads: &[isize], mode: PadMode) -> Result<Tensor> {
        let edges = edges(self, pads, mode)?;
        let shape: Dims = edges.iter().map(|edge| edge.new_size()).collect();
        numel("pad", &shape, self.dtype())?;
        if self.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }
        match mode {
            PadMode::Constant(value) => pad_by_value(self, &edges, &shape, value),
            _ => pad_by_elements(self, &edges, &shape, mode),
        }
    }
}

/// What is done to a dim.
#[derive(Clone, Copy)]
struct Edge {
    size: usize,
    before: isize,
    after: isize,
}

impl Edge {
    /// How many elements are taken away at the beginning.
    fn cut_before(self) -> usize {
        self.before.min(0).unsigned_abs()
    }

    /// How many of the dim's own elements are left.
    fn left(self) -> Option<usize> {
        self.size.checked_sub(self.cut_before())?.checked_sub(self.after.min(0).unsigned_abs())
    }

    /// How many elements are put in front.
    fn added_before(self) -> usize {
        self.before.max(0).unsigned_abs()
    }

    /// Checked to be possible, and saturating, since meta tensors may be of any size.
    fn new_size(self) -> usize {
        let added = self.added_before().saturating_add(self.after.max(0).unsigned_abs());
        self.left().unwrap_or(0).saturating_add(added)
    }

    fn is_changed(self) -> bool {
        self.before != 0 || self.after != 0
    }

    /// Which of the dim's elements stands at an index of the result.
    fn source(self, index: usize, mode: PadMode) -> usize {
        let (position, size) = (index as isize - self.before, self.size as isize);
        let source = match mode {
            PadMode::Reflect if position < 0 => -position,
            PadMode::Reflect if position >= size => 2 * (size - 1) - position,
            PadMode::Circular => {
                // What was cut away does not come back from the other end.
                let (first, left) = (self.cut_before() as isize, self.left().unwrap_or(1) as isize);
                first + (position - first).rem_euclid(left)
            }
            _ => position.clamp(0, size - 1),
        };
        source.unsigned_abs()
    }
}

/// One edge per dim, checked.
fn edges(x: &Tensor, pads: &[isize], mode: PadMode) -> Result<Dims<Edge>> {
    let op = "pad";
    let wrong = |name, got: String, want| LocalError::BadNumber { op, name, got, want };
    if !pads.len().is_multiple_of(2) || pads.len() / 2 > x.n_dims() {
        let want = "a pair per dim, or fewer pairs";
        return Err(wrong("the number of paddings", pads.len().to_string(), want));
    }
    let mut edges: Dims<Edge> =
        x.shape().iter().map(|size| Edge { size: *size, before: 0, after: 0 }).collect();
    for (edge, pair) in edges.iter_mut().rev().zip(pads.chunks_exact(2)) {
        (edge.before, edge.after) = (pair[0], pair[1]);
        let most = edge.before.max(edge.after).max(0).unsigned_abs();
        let text = || format!("{pair:?} for a dim of size {}", edge.size);
        let left = edge.left().ok_or_else(|| {
            wrong("a negative padding", text(), "no more than there are elements to take away")
        })?;
        let complaint = match mode {
            PadMode::Reflect if most >= edge.size => "less than the size of the dim",
            PadMode::Replicate if edge.size == 0 => "a dim with elements to replicate",
            PadMode::Circular if most > left => "at most what is left of the dim",
            _ => continue,
        };
        if most > 0 {
            return Err(wrong("a padding", text(), complaint));
        }
    }
    Ok(edges)
}

fn pad_by_value(x: &Tensor, edges: &[Edge], shape: &[usize], value: Scalar) -> Result<Tensor> {
    let mut padded = filled("pad", shape, &scalar_of(value, x.dtype())?)?;
    let (mut kept, mut ranges) = (x.clone(), Vec::with_capacity(edges.len()));
    for (dim, edge) in edges.iter().enumerate() {
        let left = edge.left().unwrap_or(0);
        kept = kept.narrow(dim as isize, edge.cut_before(), left)?;
        ranges.push(edge.added_before()..edge.added_before() + left);
    }
    padded.slice_assign_in_place(&ranges, &kept)?;
    Ok(padded)
}

fn pad_by_elements(x: &Tensor, edges: &[Edge], shape: &[usize], mode: PadMode) -> Result<Tensor> {
    // The dims after the last one that changes are copied as they are.
    let run = edges.iter().rposition(|edge| edge.is_changed()).map_or(0, |dim| dim + 1);
    let laid = Laid::of(x, run);
    if shape.contains(&0) {
        return Places::none().pick("pad", &laid.memory, shape);
    }
    let lists: Vec<Vec<isize>> = (0..run)
        .map(|dim| match edges[dim] {
            edge if edge.is_changed() => (0..edge.new_size())
                .map(|index| edge.source(index, mode) as isize * laid.strides[dim])
                .collect(),
            edge => dim_offsets(edge.size, laid.strides[dim]),
        })
        .collect();
    let width = shape[run..].iter().product();
    Places { starts: all_sums(laid.start, &lists), width }.pick("pad", &laid.memory, shape)
}
