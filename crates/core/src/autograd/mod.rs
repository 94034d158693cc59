//! Gradients.
//!
//! An operation on a tensor that [requires a gradient](DTensor::requires_grad) is remembered: a [`Node`] with the
//! operation, what its gradient needs, and the nodes that its operands came from. [`backward`](DTensor::backward) walks
//! from a loss to the leaves, the node made last first.
//!
//! A gradient is written with the operations of [`DTensor`], so it is a tensor like any other: its layout follows from
//! those of its operands, contributions of ranks are a pending sum, sums of pending sums are one, and all is reduced
//! once, when it arrives at a leaf or meets an operation that needs the value. That gradients are values of the whole
//! program, not of a rank, is why none can be too large by the number of ranks.

mod backward;
mod broadcast;
mod checkpoint;
mod gradients;
mod keep;
mod layouts;
mod leads;
mod node;
mod scope;
mod walk;

pub use backward::{Backward, Grads};
pub use checkpoint::checkpoint;
pub use gradients::Gradients;
pub use keep::{Keep, Keeper};
pub use scope::{enable_grad, is_grad_enabled, no_grad};
pub use walk::{BackwardOptions, grad};

pub(crate) use backward::plus;
pub(crate) use layouts::dual;
pub(crate) use node::{Edge, Step, attach, is_recorded, recorded};

use crate::{DTensor, Error, Result};

impl DTensor {
    /// The same values as a leaf: [`backward`](DTensor::backward) gives the gradient of the loss with respect to it,
    /// in its layout.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones, full};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "dp")?;
    ///     let weight = full(&[3, 2], 0.5_f32, &mesh, &[Replicate])?.requires_grad()?;
    ///     let batch = ones(&[4, 3], DType::F32, &mesh, &[Shard(0)])?;
    ///     let loss = batch.matmul(&weight)?.sum(&[], false)?;
    ///     let gradients = loss.backward()?;
    ///     let of_weight = gradients.get(&weight).unwrap();
    ///     assert_eq!(of_weight.layout(), weight.layout());      // one all-reduce brought it there
    ///     assert_eq!(of_weight.to_vec::<f32>()?, [4.0; 6]);     // of all four rows, not of one rank's two
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn requires_grad(&self) -> Result<DTensor> {
        if !self.dtype().is_float() {
            return Err(Error::Unsupported {
                op: "requires_grad",
                what: format!("a tensor of {} has no gradient", self.dtype()).into(),
                way_out: "cast it to a float dtype",
            });
        }
        Ok(self.detach().with_edge(Edge::leaf(self)))
    }

    /// The same values, of which nobody remembers where they came from.
    #[must_use]
    pub fn detach(&self) -> DTensor {
        self.clone().without_edge()
    }

    /// Whether a gradient with respect to it, or to what it was computed from, can be had.
    #[inline]
    pub fn needs_grad(&self) -> bool {
        self.edge().is_some()
    }

    /// Whether it was made by [`requires_grad`](DTensor::requires_grad), and not computed.
    pub fn is_leaf(&self) -> bool {
        self.edge().is_some_and(Edge::is_leaf)
    }
}
