//! What the formula of a gradient sees.

use dtensor_layout::Layout;
use smallvec::SmallVec;

use super::{
    is_grad_enabled,
    keep::Kept,
    leads::Leads,
    node::{Edge, Node},
};
use crate::{DTensor, DeviceMesh, Error, Result, op::Meta};

/// One gradient per operand; `None` where none is needed, or where it is zero.
pub type Grads = SmallVec<[Option<DTensor>; 2]>;

/// A sum with one more term, which may be the first.
pub(crate) fn plus(sum: Option<DTensor>, term: DTensor) -> Result<DTensor> {
    match sum {
        Some(sum) => sum.add(&term),
        None => Ok(term),
    }
}

/// The gradients of the results of an operation, and what it kept.
pub struct Backward<'a> {
    pub(super) edge: &'a Edge,
    pub(super) kept: &'a Kept,
    pub(super) grads: &'a [Option<DTensor>],
    /// Gradients of leaves are to stay pending sums.
    pub(super) unreduced: bool,
    /// Where the walk has to go, if not everywhere.
    pub(super) leads: Option<&'a Leads>,
}

impl Backward<'_> {
    /// The gradient of the first result. There is always one if there is one result.
    pub fn grad(&self) -> Result<DTensor> {
        self.grad_of(0)
    }

    /// The gradient of a result; zeros if the loss does not depend on it.
    pub fn grad_of(&self, result: usize) -> Result<DTensor> {
        match self.grads.get(result) {
            Some(Some(grad)) => Ok(grad.clone()),
            Some(None) => {
                let placed = &self.node().results[result];
                let dual = super::dual(&placed.layout)?;
                crate::tensor::make_layout("backward", &dual, &placed.mesh, |part| {
                    Ok(crate::Tensor::zeros(&part.shape, dual.dtype())?)
                })
            }
            None => Err(self.missing(format!("result {result}"))),
        }
    }

    /// Whether the loss depends on a result.
    pub fn has_grad(&self, result: usize) -> bool {
        self.grads.get(result).is_some_and(Option::is_some)
    }

    /// An operand, which the operation must [keep](crate::op::Op::keeps).
    pub fn operand(&self, operand: usize) -> Result<DTensor> {
        match self.kept.operands.get(operand) {
            Some(Some(saved)) => saved.get(),
            _ => Err(self.missing(format!("operand {operand}"))),
        }
    }

    /// A result, which the operation must [keep](crate::op::Op::keeps).
    pub fn result(&self, result: usize) -> Result<DTensor> {
        match self.kept.results.get(result) {
            // For gradients of gradients it is known where it came from.
            Some(Some(kept)) if is_grad_enabled() => {
                let edge = Edge { node: self.edge.node.clone(), result };
                Ok(kept.clone().with_edge(edge))
            }
            Some(Some(kept)) => Ok(kept.clone()),
            _ => Err(self.missing(format!("result {result}"))),
        }
    }

    /// Shape and dtype of an operand, kept or not.
    pub fn meta(&self, operand: usize) -> Meta {
        Meta::of_layout(self.layout(operand))
    }

    /// The global shape of an operand.
    pub fn shape(&self, operand: usize) -> &[usize] {
        self.layout(operand).global_shape()
    }

    /// How an operand lay.
    pub fn layout(&self, operand: usize) -> &Layout {
        &self.node().operands[operand].layout
    }

    /// The mesh an operand was on.
    pub fn mesh(&self, operand: usize) -> &DeviceMesh {
        &self.node().operands[operand].mesh
    }

    /// How a result lay.
    pub fn result_layout(&self, result: usize) -> &Layout {
        &self.node().results[result].layout
    }

    /// Number of operands.
    pub fn n_operands(&self) -> usize {
        self.node().operands.len()
    }

    /// Whether an operand needs a gradient.
    pub fn needs(&self, operand: usize) -> bool {
        let input = self.node().inputs.get(operand).and_then(Option::as_ref);
        input.is_some_and(|input| self.leads.is_none_or(|leads| leads.from(input)))
    }

    /// Whether the gradient of an operand is left as it lies, to be brought to its leaf later.
    pub(crate) fn waits(&self, operand: usize) -> bool {
        let input = self.node().inputs.get(operand).and_then(Option::as_ref);
        self.unreduced && input.is_some_and(Edge::is_leaf)
    }

    /// A gradient for every operand that needs one. It may have the shape to which the operand was broadcast, and another
    /// dtype: it is summed and cast afterwards.
    pub fn each(&self, gradient: impl Fn(usize) -> Result<DTensor>) -> Result<Grads> {
        (0..self.n_operands())
            .map(|operand| self.needs(operand).then(|| gradient(operand)).transpose())
            .collect()
    }

    /// As [`each`](Backward::each), for operands of which some have the gradient zero.
    pub fn each_or_none(
        &self,
        gradient: impl Fn(usize) -> Result<Option<DTensor>>,
    ) -> Result<Grads> {
        (0..self.n_operands())
            .map(|operand| match self.needs(operand) {
                true => gradient(operand),
                false => Ok(None),
            })
            .collect()
    }

    /// The same for an operation of which only the first operand has a gradient.
    pub fn first(&self, gradient: impl FnOnce() -> Result<DTensor>) -> Result<Grads> {
        let mut grads: Grads = SmallVec::from_elem(None, self.n_operands());
        if self.needs(0) {
            grads[0] = Some(gradient()?);
        }
        Ok(grads)
    }

    fn node(&self) -> &Node {
        &self.edge.node
    }

    fn missing(&self, what: String) -> Error {
        Error::Unsupported {
            op: self.node().name(),
            what: format!("its gradient asks for {what}, which was not kept").into(),
            way_out: "name it in Op::keeps",
        }
    }
}
