//! What a kernel may know beside its local operands.

use std::ops::Range;

use dtensor_layout::Layout;

/// Where the parts that a kernel sees lie in the whole.
#[derive(Clone, Debug, Default)]
pub struct LocalContext {
    /// Empty where everything is whole.
    operands: Vec<Layout>,
    results: Vec<Layout>,
    coord: Vec<usize>,
}

impl LocalContext {
    /// The context of operands that are whole.
    pub fn whole() -> LocalContext {
        LocalContext::default()
    }

    /// The context of the rank at `coord`.
    pub fn new(operands: Vec<Layout>, results: Vec<Layout>, coord: Vec<usize>) -> LocalContext {
        LocalContext { operands, results, coord }
    }

    /// The layout of an operand, unless everything is whole.
    pub fn operand(&self, operand: usize) -> Option<&Layout> {
        self.operands.get(operand)
    }

    /// The layout of a result, unless everything is whole.
    pub fn result(&self, result: usize) -> Option<&Layout> {
        self.results.get(result)
    }

    /// The coordinate of the rank; empty if everything is whole.
    pub fn coord(&self) -> &[usize] {
        &self.coord
    }

    /// The indices of one dim of an operand that the rank holds, of `size` in all. One range, because the
    /// operation has said that it [needs offsets](super::Op::needs_offsets).
    pub fn operand_range(&self, operand: usize, dim: usize, size: usize) -> Range<usize> {
        self.operand(operand).map_or(0..size, |layout| range(layout, dim, &self.coord))
    }

    /// The same of a result.
    pub fn result_range(&self, result: usize, dim: usize, size: usize) -> Range<usize> {
        self.result(result).map_or(0..size, |layout| range(layout, dim, &self.coord))
    }

    /// What the rank is to hold of a result of this global shape, for kernels that are told the shape of
    /// their result.
    pub fn result_shape(&self, result: usize, global: &[usize]) -> Vec<usize> {
        self.result(result)
            .map_or_else(|| global.to_vec(), |layout| layout.local_shape(&self.coord))
    }

    /// The number of elements of a dim of an operand in the whole tensor; `local` if that is what it is.
    pub fn global_size(&self, operand: usize, dim: usize, local: usize) -> usize {
        self.operand(operand).map_or(local, |layout| layout.global_shape()[dim])
    }
}

fn range(layout: &Layout, dim: usize, coord: &[usize]) -> Range<usize> {
    let held = layout.intervals(dim, coord);
    match held.start() {
        Some(start) => start..start + held.len(),
        None => {
            let size = layout.global_shape()[dim];
            size..size
        }
    }
}
