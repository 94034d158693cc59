//! The way back.

use dtensor_layout::{DType, Layout};
use smallvec::smallvec;

use super::RedistributeOptions;
use crate::{
    DTensor, Error, Result,
    autograd::{Step, attach, dual, is_recorded},
    debug,
    op::{Backward, Grads, Keep},
};

/// A value that was brought elsewhere. Its gradient is the same value wherever it lies: it goes on as it is, and is
/// brought to where it is needed there, unless it is to be sent at once, in another dtype or from another mesh.
struct Moved {
    op: &'static str,
    backward_dtype: Option<DType>,
    at_once: bool,
}

impl Step for Moved {
    fn name(&self) -> &'static str {
        self.op
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let mut grad = backward.grad()?;
        let home = backward.layout(0);
        if grad.mesh().mesh() != home.mesh() {
            let placements = dual(home)?;
            grad = grad.redistribute_to(backward.mesh(0), placements.placements())?;
        }
        // A gradient that has the dtype already is sent in it, too, and not in that of what was brought here.
        let differs = |dtype: &DType| *dtype != grad.dtype() || *dtype != home.dtype();
        let sent_in = match self.at_once {
            true => Some(self.backward_dtype.unwrap_or(home.dtype())),
            false => self.backward_dtype.filter(differs),
        };
        if let Some(dtype) = sent_in.filter(|_| !backward.waits(0)) {
            grad = grad.brought_in(self.op, &dual(home)?, dtype)?;
        }
        Ok(smallvec![Some(grad)])
    }

    fn sent_in(&self) -> Option<DType> {
        self.backward_dtype
    }
}

/// What was brought elsewhere, from which gradients find the way back.
pub(super) fn moved(
    op: &'static str,
    from: &DTensor,
    there: DTensor,
    options: &RedistributeOptions,
) -> DTensor {
    if !is_recorded(&[from]) {
        return there;
    }
    let there = there.without_edge();
    let RedistributeOptions { backward_dtype, gradient_at_once: at_once, .. } = *options;
    let step = Box::new(Moved { op, backward_dtype, at_once });
    let mut attached = attach(step, Keep::NOTHING, &[from], smallvec![there.clone()]);
    attached.pop().unwrap_or(there)
}

impl DTensor {
    /// In another dtype, without sending anything: contributions to a pending sum are cast one by one.
    pub(crate) fn cast_as_it_lies(&self, op: &'static str, dtype: DType) -> Result<DTensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let cast = self.cast_parts(op, dtype)?;
        debug::brought(op, self, &cast)?;
        Ok(moved(op, self, cast, &RedistributeOptions::default()))
    }

    /// A gradient in the placements of `home`, and all that is sent for it in a dtype, in which it stays: also what is
    /// reduced over an axis on which `home` is a copy, or it would be rounded and sent in full. Where nothing has to be
    /// sent, nothing is rounded.
    pub(crate) fn brought_in(
        &self,
        op: &'static str,
        home: &Layout,
        dtype: DType,
    ) -> Result<DTensor> {
        let there = home.with_dtype(self.dtype()).map_err(Error::layout(op))?;
        if *self.layout() == there {
            return Ok(self.clone());
        }
        let there = home.with_dtype(dtype).map_err(Error::layout(op))?;
        self.cast_as_it_lies(op, dtype)?.redistribute_as(op, &there)
    }
}
