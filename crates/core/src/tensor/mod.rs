//! The distributed tensor.

mod construct;
mod display;
mod factories;
mod part;
mod read;

use std::sync::Arc;

use dtensor_layout::{DType, Layout, Placement};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DeviceMesh, Error, Result,
    autograd::{Edge, Keeper},
};

pub use construct::{LocalOptions, distribute_tensor, distribute_tensor_from};
pub(crate) use factories::{Part, make_layout};
pub use factories::{arange, empty, eye, full, linspace, logspace, ones, zeros};
pub(crate) use read::settled_layout;

/// A tensor of which every rank of a mesh holds a part, as its [`Layout`] says.
///
/// A program treats it as one tensor: shapes are global, and an operation gives the result that it would
/// give on one device. What an operation communicates follows from the layouts of its operands.
///
/// An immutable value; cloning is cheap.
#[derive(Clone)]
pub struct DTensor(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    /// What this rank holds. On a fake mesh it has a shape and no values; on a rank outside of the mesh it
    /// is empty.
    local: Tensor,
    layout: Layout,
    mesh: DeviceMesh,
    /// Where its gradient goes, if it has one.
    edge: Option<Edge>,
    /// Where it is had from again, if it is not to be kept for a gradient.
    keeper: Option<Arc<dyn Keeper>>,
}

impl DTensor {
    /// Puts together what belongs together: `local` is what `layout` says that this rank holds.
    #[inline]
    pub(crate) fn from_parts(local: Tensor, layout: Layout, mesh: DeviceMesh) -> DTensor {
        debug_assert!(
            mesh.coord().is_none_or(|coord| layout.local_shape(coord) == local.shape()),
            "a local part of shape {:?} for {layout:?}",
            local.shape()
        );
        debug_assert_eq!(local.dtype(), layout.dtype());
        debug_assert!(layout.mesh() == mesh.mesh());
        DTensor(Arc::new(Inner { local, layout, mesh, edge: None, keeper: None }))
    }

    /// Size of every dim of the whole tensor.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        self.0.layout.global_shape()
    }

    /// Number of dims.
    #[inline]
    pub fn n_dims(&self) -> usize {
        self.0.layout.n_dims()
    }

    /// Number of elements of the whole tensor.
    pub fn numel(&self) -> usize {
        self.0.layout.numel()
    }

    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.layout.dtype()
    }

    /// How it lies on the mesh: shape, dtype, placements and shard order.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// One placement per mesh axis.
    pub fn placements(&self) -> &[Placement] {
        self.0.layout.placements()
    }

    /// The mesh it lies on.
    #[inline]
    pub fn mesh(&self) -> &DeviceMesh {
        &self.0.mesh
    }

    /// Bytes that this rank holds.
    pub fn local_bytes(&self) -> usize {
        self.0.local.numel() * self.dtype().size()
    }

    /// What this rank holds, without a question about what it means: kernels know.
    #[inline]
    pub(crate) fn local(&self) -> &Tensor {
        &self.0.local
    }

    /// Changes what this rank holds, in place if nobody else has it, without asking what it means: for optimizers, whose
    /// steps are the same on every rank that has a copy. What was computed from the tensor before is not changed, and
    /// where it came from is forgotten. `change` must keep shape and dtype.
    pub fn modify_local(
        &mut self,
        change: impl FnOnce(&mut Tensor) -> Result<(), LocalError>,
    ) -> Result<()> {
        let inner = Arc::make_mut(&mut self.0);
        (inner.edge, inner.keeper) = (None, None);
        change(&mut inner.local)?;
        let shape =
            inner.mesh.coord().map_or_else(|| vec![0], |coord| inner.layout.local_shape(coord));
        if inner.local.shape() != shape || inner.local.dtype() != inner.layout.dtype() {
            return Err(Error::Unsupported {
                op: "modify_local",
                what: "what the rank holds has another shape or dtype afterwards".into(),
                way_out: "use from_local for another tensor",
            });
        }
        Ok(())
    }

    /// Where it was computed, if that is remembered.
    #[inline]
    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.0.edge.as_ref()
    }

    pub(crate) fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        self.0.keeper.as_ref()
    }

    /// As the result of what `edge` names.
    pub(crate) fn with_edge(self, edge: Edge) -> DTensor {
        self.changed(|inner| (inner.edge, inner.keeper) = (Some(edge), None))
    }

    pub(crate) fn without_edge(self) -> DTensor {
        match (&self.0.edge, &self.0.keeper) {
            (None, None) => self,
            _ => self.changed(|inner| (inner.edge, inner.keeper) = (None, None)),
        }
    }

    pub(crate) fn with_keeper(self, keeper: Arc<dyn Keeper>) -> DTensor {
        self.changed(|inner| inner.keeper = Some(keeper))
    }

    /// What is left of a tensor that nobody else has: the way to where it was computed.
    pub(crate) fn into_edge(self) -> Option<Edge> {
        Arc::into_inner(self.0)?.edge
    }

    fn changed(mut self, change: impl FnOnce(&mut Inner)) -> DTensor {
        change(Arc::make_mut(&mut self.0));
        self
    }
}
