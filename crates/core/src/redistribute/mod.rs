//! From one layout to another.

mod gradient;
mod parts;
mod pending;
mod route;
mod run;

use std::sync::Arc;

use dtensor_layout::{DType, Layout, Placement};

use gradient::moved;
pub(crate) use parts::{Parts, view};
pub use pending::PendingDTensor;
pub(crate) use route::{Hop, Route};

use crate::{DTensor, DeviceMesh, Error, Result, debug, dispatch, no_grad};

/// How [`DTensor::redistribute_with`] goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedistributeOptions {
    /// What is sent, and what the result has, if not the tensor's own dtype. Contributions to a pending
    /// reduction are cast before they are reduced: fewer bytes, and rounded.
    pub forward_dtype: Option<DType>,
    /// The same for the gradient on its way back, which is then cast to the dtype of the tensor.
    pub backward_dtype: Option<DType>,
    /// Bring the gradient home as soon as all uses of the result have given theirs. Otherwise a pending sum goes on as it
    /// is, to be reduced once with those of other uses of the tensor; of a leaf that is at the end of the walk, until
    /// which every rank holds it whole.
    pub gradient_at_once: bool,
}

impl RedistributeOptions {
    /// With what is sent in another dtype.
    #[must_use]
    pub fn forward_dtype(mut self, dtype: DType) -> RedistributeOptions {
        self.forward_dtype = Some(dtype);
        self
    }

    /// With what is sent of the gradient in another dtype.
    #[must_use]
    pub fn backward_dtype(mut self, dtype: DType) -> RedistributeOptions {
        self.backward_dtype = Some(dtype);
        self
    }

    /// With the gradient brought home as soon as it is known.
    #[must_use]
    pub fn gradient_at_once(mut self) -> RedistributeOptions {
        self.gradient_at_once = true;
        self
    }
}

impl DTensor {
    /// The same tensor with other placements on its mesh, one per axis, where several axes that cut one dim
    /// cut it from left to right. The cheapest way there is taken; see [`Plan`](dtensor_layout::plan::Plan).
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, arange};
    ///
    /// Runner::threads(3).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let rows = arange(0, 10, 1, DType::I64, &mesh, &[Shard(0)])?;
    ///     assert_eq!(rows.to_local().numel(), [4, 4, 2][world.rank()]);
    ///     let whole = rows.redistribute(&[Replicate])?;
    ///     assert_eq!(whole.to_local().numel(), 10);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn redistribute(&self, placements: &[Placement]) -> Result<DTensor> {
        let to =
            self.layout().with_placements(placements).map_err(Error::layout("redistribute"))?;
        self.redistribute_as("redistribute", &to)
    }

    /// As [`redistribute`](DTensor::redistribute), with options.
    pub fn redistribute_with(
        &self,
        placements: &[Placement],
        options: &RedistributeOptions,
    ) -> Result<DTensor> {
        const OP: &str = "redistribute";
        let dtype = options.forward_dtype.unwrap_or(self.dtype());
        let cast = self.cast_parts(OP, dtype)?;
        let to = cast.layout().with_placements(placements).map_err(Error::layout(OP))?;
        if dtype != self.dtype() {
            debug::brought(OP, self, &cast)?;
        }
        let there = no_grad(|| cast.redistribute_as(OP, &to))?;
        Ok(moved(OP, self, there, options))
    }

    /// The same tensor in another layout of the same mesh, shape and dtype.
    pub fn redistribute_layout(&self, to: &Layout) -> Result<DTensor> {
        if to.mesh() != self.mesh().mesh() {
            return Err(Error::MixedMeshes {
                op: "redistribute",
                first: self.mesh().to_string().into(),
                operand: 1,
                other: to.mesh().to_string().into(),
            });
        }
        self.redistribute_as("redistribute", to)
    }

    /// The same tensor on another mesh of the same world. All ranks of both meshes call it; the ranks of
    /// neither may.
    pub fn redistribute_to(&self, mesh: &DeviceMesh, placements: &[Placement]) -> Result<DTensor> {
        const OP: &str = "redistribute_to";
        let to = Layout::new(self.shape(), self.dtype(), mesh.mesh(), placements)
            .map_err(Error::layout(OP))?;
        if mesh.mesh() == self.mesh().mesh() {
            return self.redistribute_as(OP, &to);
        }
        let route = dispatch::route(OP, (self.layout(), self.mesh()), (&to, mesh))?;
        let local = route.run(OP, self.local())?;
        let there = DTensor::from_parts(local, to, mesh.clone());
        Ok(moved(OP, self, there, &RedistributeOptions::default()))
    }

    /// What every rank holds in another dtype: shards, copies, and contributions to a reduction, each rounded for
    /// itself. Without a way back.
    fn cast_parts(&self, op: &'static str, dtype: DType) -> Result<DTensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let layout = self.layout().with_dtype(dtype).map_err(Error::layout(op))?;
        Ok(DTensor::from_parts(self.local().to_dtype(dtype)?, layout, self.mesh().clone()))
    }

    pub(crate) fn redistribute_as(&self, op: &'static str, to: &Layout) -> Result<DTensor> {
        if self.layout() == to {
            return Ok(self.clone());
        }
        let route: Arc<Route> =
            dispatch::route(op, (self.layout(), self.mesh()), (to, self.mesh()))?;
        let local = route.run(op, self.local())?;
        // A part of a copy would keep all of the copy in memory.
        let is_part = local.numel() < self.local().numel() && route.ends_in_a_view();
        let local = if is_part { local.copied() } else { local };
        let there = DTensor::from_parts(local, to.clone(), self.mesh().clone());
        debug::brought(op, self, &there)?;
        Ok(moved(op, self, there, &RedistributeOptions::default()))
    }
}
