//! Between a tensor and what this rank holds of it, with gradients.

use dtensor_layout::{Layout, Placement, ReduceOp};
use dtensor_local::Tensor;
use smallvec::smallvec;

use super::DTensor;
use crate::{
    DeviceMesh, Error, LocalOptions, Result,
    autograd::{Step, attach, is_recorded},
    op::{Backward, Grads, Keep},
};

impl DTensor {
    /// What this rank holds, as a tensor on [a mesh of this rank alone](DeviceMesh::alone): operations on it send nothing,
    /// and gradients pass back into the whole. [`to_local`](DTensor::to_local) gives the same without a way back.
    ///
    /// `grad_placements` says what the gradients of the parts are to each other. By default they are shards where the tensor
    /// is cut; *contributions* to a sum where it is a copy; and copies where a sum is pending. With the same in
    /// [`from_local_part`](DTensor::from_local_part) that is right whatever is computed in between: whether all ranks
    /// compute the same from their copies, or each something else. Say otherwise only to save a reduction, if you know
    /// that all ranks compute the same on both ways.
    ///
    /// ```
    /// use dtensor::{DTensor, DeviceMesh, LocalOptions, Placement::Replicate, Runner, full};
    ///
    /// Runner::threads(4).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = full(&[2], 3.0_f64, &mesh, &[Replicate])?.requires_grad()?;
    ///     let part = x.local_part(None)?.square()?;
    ///     let y = DTensor::from_local_part(&part, &mesh, &[Replicate], &LocalOptions::default())?;
    ///     let gradients = y.sum(&[], false)?.backward()?;
    ///     assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>()?, [6.0, 6.0]);   // not four times that
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn local_part(&self, grad_placements: Option<&[Placement]>) -> Result<DTensor> {
        const OP: &str = "local_part";
        self.mesh().own_coord(OP)?;
        let alone = self.mesh().alone()?;
        let local = self.to_local();
        let layout = Layout::replicated(local.shape(), local.dtype(), alone.mesh());
        let part = DTensor::from_parts(local, layout.map_err(Error::layout(OP))?, alone);
        if !is_recorded(&[self]) {
            return Ok(part);
        }
        // Found to be wrong here, not on the way back.
        let of_gradient = gradient_layout(OP, self.layout(), grad_placements)?;
        Ok(attached(Box::new(TakePart { of_gradient }), self, part))
    }

    /// The tensor of which every rank has a part on [its own mesh](DeviceMesh::alone). As
    /// [`from_local_with`](DTensor::from_local_with), and gradients pass back into the parts;
    /// `options.grad_placements` says in which layout they do, with defaults as in
    /// [`local_part`](DTensor::local_part).
    pub fn from_local_part(
        part: &DTensor,
        mesh: &DeviceMesh,
        placements: &[Placement],
        options: &LocalOptions,
    ) -> Result<DTensor> {
        const OP: &str = "from_local_part";
        if part.mesh().size() != 1 || part.mesh().coord().is_none() {
            return Err(Error::Unsupported {
                op: OP,
                what: format!("a part on mesh {}", part.mesh()).into(),
                way_out: "give one on the mesh of this rank alone, as local_part does",
            });
        }
        let whole = DTensor::from_local_with(part.local(), mesh, placements, options)?;
        if !is_recorded(&[part]) {
            return Ok(whole);
        }
        let of_gradient = gradient_layout(OP, whole.layout(), options.grad_placements.as_deref())?;
        Ok(attached(Box::new(PutTogether { of_gradient }), part, whole))
    }
}

/// The gradients of the parts are put together.
struct TakePart {
    of_gradient: Layout,
}

impl Step for TakePart {
    fn name(&self) -> &'static str {
        "local_part"
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?.settled()?;
        let part = grad.to_local();
        let layout =
            self.of_gradient.with_dtype(part.dtype()).map_err(Error::layout(self.name()))?;
        let whole = DTensor::from_parts(part, layout, backward.mesh(0).clone());
        // The gradient of the gradient lies as the value did.
        let step = PutTogether { of_gradient: backward.layout(0).clone() };
        Ok(smallvec![Some(attached(Box::new(step), &grad, whole))])
    }
}

/// Every rank takes its part of the gradient.
struct PutTogether {
    of_gradient: Layout,
}

impl Step for PutTogether {
    fn name(&self) -> &'static str {
        "from_local_part"
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let to = self.of_gradient.with_dtype(grad.dtype()).map_err(Error::layout(self.name()))?;
        let there = grad.redistribute_as(self.name(), &to)?;
        let part: Tensor = there.to_local();
        let alone = backward.mesh(0);
        let layout = Layout::replicated(part.shape(), part.dtype(), alone.mesh());
        let layout = layout.map_err(Error::layout(self.name()))?;
        let part = DTensor::from_parts(part, layout, alone.clone());
        let step = TakePart { of_gradient: backward.result_layout(0).clone() };
        Ok(smallvec![Some(attached(Box::new(step), &there, part))])
    }
}

/// How the gradients of parts lie: as said, or a sum where the value is a copy, and a copy where it is a pending sum.
fn gradient_layout(
    op: &'static str,
    layout: &Layout,
    said: Option<&[Placement]>,
) -> Result<Layout> {
    if let Some(placements) = said {
        let said = layout.with_placements(placements).map_err(Error::layout(op))?;
        let cuts = |layout: &Layout| -> Vec<_> {
            layout.placements().iter().map(|placement| placement.shard_dim()).collect()
        };
        if cuts(&said) != cuts(layout) {
            return Err(Error::Unsupported {
                op,
                what: format!("gradients in {said} of parts in {layout}").into(),
                way_out: "cut them as the parts are",
            });
        }
        return Ok(said);
    }
    let other = |placement: &Placement| match placement {
        Placement::Shard(_) => Ok(*placement),
        Placement::Replicate => Ok(Placement::Partial(ReduceOp::Sum)),
        Placement::Partial(ReduceOp::Sum) => Ok(Placement::Replicate),
        Placement::Partial(by) => Err(Error::Unsupported {
            op,
            what: format!("the gradient of contributions to a pending {by}").into(),
            way_out: "reduce it first with settled",
        }),
    };
    let placements = layout.placements().iter().map(other).collect::<Result<Vec<_>>>()?;
    layout.with_placements_in_order(&placements).map_err(Error::layout(op))
}

/// The result, from which a way leads back if there is one from the operand.
fn attached(step: Box<dyn Step>, from: &DTensor, result: DTensor) -> DTensor {
    if !is_recorded(&[from]) {
        return result;
    }
    let result = result.without_edge();
    attach(step, Keep::NOTHING, &[from], smallvec![result.clone()]).pop().unwrap_or(result)
}
