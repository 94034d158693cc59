//! Out of the distributed world: the local part, the whole, values.

use dtensor_dtype::Element;
use dtensor_layout::Layout;
use dtensor_local::{LocalError, Tensor};

use crate::{DTensor, Error, Placement, Result};

impl DTensor {
    /// What this rank holds: its shard, its copy, or its contribution to a pending reduction. Empty on a
    /// rank outside of the mesh. Nothing is sent.
    ///
    /// A contribution is not the value. [`to_vec`](DTensor::to_vec), [`item`](DTensor::item) and
    /// [`full_tensor`](DTensor::full_tensor) reduce first.
    pub fn to_local(&self) -> Tensor {
        self.local().clone()
    }

    /// The whole value, on every rank of the mesh.
    pub fn full_tensor(&self) -> Result<Tensor> {
        self.mesh().own_coord("full_tensor")?;
        Ok(self.redistribute_as("full_tensor", &self.replicated_layout("full_tensor")?)?.to_local())
    }

    /// All values, the last dim varying fastest, on every rank of the mesh.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_values("to_vec")?;
        Ok(self.full_tensor()?.to_vec()?)
    }

    /// The value of a tensor that has one, on every rank of the mesh. A pending reduction is done first.
    pub fn item<T: Element>(&self) -> Result<T> {
        self.check_values("item")?;
        if self.numel() != 1 {
            return Err(LocalError::ShapeMismatch {
                op: "item",
                from: self.shape().to_vec(),
                to: Vec::new(),
                why: "it does not have exactly one element; select one first",
            }
            .into());
        }
        Ok(self.full_tensor()?.item()?)
    }

    /// The same value with no reduction pending: pending axes become copies.
    pub fn settled(&self) -> Result<DTensor> {
        self.settled_as("redistribute")
    }

    /// As [`settled`](DTensor::settled), in the name of an operation.
    pub(crate) fn settled_as(&self, op: &'static str) -> Result<DTensor> {
        self.redistribute_as(op, &settled_layout(op, self.layout())?)
    }

    fn replicated_layout(&self, op: &'static str) -> Result<Layout> {
        Layout::replicated(self.shape(), self.dtype(), self.mesh().mesh())
            .map_err(Error::layout(op))
    }

    /// A fake mesh has no values. Found before anything is counted as sent.
    fn check_values(&self, op: &'static str) -> Result<()> {
        match self.local().is_meta() {
            true => Err(LocalError::Meta { op, shape: self.shape().to_vec() }.into()),
            false => Ok(()),
        }
    }
}

/// The same layout with copies where a reduction is pending.
pub(crate) fn settled_layout(op: &'static str, layout: &Layout) -> Result<Layout> {
    if !layout.is_partial() {
        return Ok(layout.clone());
    }
    let settle = |placement: &Placement| match placement.reduce_op() {
        Some(_) => Placement::Replicate,
        None => *placement,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(settle).collect();
    // Another order would have to be exchanged.
    layout.with_placements_in_order(&placements).map_err(Error::layout(op))
}
