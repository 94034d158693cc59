//! Results whose dims are runs of the dims of the operand.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::Tensor;

use super::{cuts, letters, rule};
use crate::{
    DTensor, Error, Result,
    exchange::{Run, along, in_ranges},
    op::Meta,
};

/// Of every dim of the result, which indices of the same dim of the operand it has.
pub(super) struct Runs {
    of_dims: Vec<Vec<Run>>,
    /// Of the operand.
    sizes: Vec<usize>,
    /// Whether a dim of the result has indices that are in no run.
    grown: Vec<bool>,
}

impl Runs {
    /// All of every dim.
    pub(super) fn still(operand: &Meta) -> Runs {
        let of_dims = operand.shape.iter().map(|size| vec![Run::whole(*size)]).collect();
        let sizes = operand.shape.clone();
        Runs { of_dims, grown: vec![false; sizes.len()], sizes }
    }

    /// The same, but a dim of the result has indices that are in no run.
    pub(super) fn with_more(mut self, dim: usize) -> Runs {
        self.grown[dim] = true;
        self
    }

    /// The same, but for one dim. Runs without an index are left out.
    pub(super) fn with(mut self, dim: usize, runs: impl IntoIterator<Item = Run>) -> Runs {
        self.of_dims[dim] = runs.into_iter().filter(|run| !run.to.is_empty()).collect();
        self
    }

    /// Dims that move are never cut, the others may be.
    pub(super) fn rule(&self, op: &'static str, laws: &[Law]) -> Result<Rule> {
        let dims = letters(0..self.sizes.len(), |dim| self.moves(dim)).join(" ");
        rule(op, &format!("{dims} -> {dims}"), laws)
    }

    /// Whether a dim that moves is cut.
    pub(super) fn cross(&self, layout: &Layout) -> bool {
        (0..self.sizes.len()).any(|dim| self.moves(dim) && cuts(layout, dim))
    }

    /// The result of this shape, cut as the operand is. `into` makes a part of it before.
    pub(super) fn run(
        &self,
        op: &'static str,
        operand: &DTensor,
        shape: &[usize],
        into: impl FnOnce(&[usize]) -> Result<Tensor>,
    ) -> Result<DTensor> {
        let operand = in_ranges(op, operand)?;
        let result = operand.layout().with_shape(shape).map_err(Error::layout(op))?;
        along(op, &operand, &result, &self.of_dims, into)
    }

    /// Whether no dim moves.
    pub(super) fn are_still(&self) -> bool {
        (0..self.sizes.len()).all(|dim| !self.moves(dim))
    }

    /// Whether the indices of a dim are not simply what they are.
    fn moves(&self, dim: usize) -> bool {
        let size = self.sizes[dim];
        self.grown[dim] || self.of_dims[dim] != [Run::whole(size)]
    }
}
