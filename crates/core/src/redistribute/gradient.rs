//! The way back.

use dtensor_layout::DType;
use smallvec::smallvec;

use crate::{
    DTensor, Result,
    autograd::{Step, aligned, attach, is_recorded},
    op::{Backward, Grads, Keep},
};

/// A value that was brought elsewhere. Its gradient is the same value wherever it lies: it goes on as it is, and is
/// brought to where it is needed there, unless it is to be sent in another dtype or from another mesh.
struct Moved {
    op: &'static str,
    backward_dtype: Option<DType>,
}

impl Step for Moved {
    fn name(&self) -> &'static str {
        self.op
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let mut grad = backward.grad()?;
        let home = backward.layout(0);
        if grad.mesh().mesh() != home.mesh() {
            let placements = crate::autograd::dual(home)?;
            grad = grad.redistribute_to(backward.mesh(0), placements.placements())?;
        }
        let is_sent = !backward.is_unreduced();
        // A gradient that has the dtype already is sent in it, too, and not in that of what was brought here.
        let differs = |dtype: &DType| *dtype != grad.dtype() || *dtype != home.dtype();
        let dtype = self.backward_dtype.filter(|dtype| is_sent && differs(dtype));
        if let Some(dtype) = dtype {
            grad = aligned(grad.cast_as_it_lies(self.op, dtype)?, home)?;
        }
        Ok(smallvec![Some(grad)])
    }
}

/// What was brought elsewhere, from which gradients find the way back.
pub(super) fn moved(
    op: &'static str,
    from: &DTensor,
    there: DTensor,
    backward_dtype: Option<DType>,
) -> DTensor {
    if !is_recorded(&[from]) {
        return there;
    }
    let there = there.without_edge();
    let step = Box::new(Moved { op, backward_dtype });
    let mut attached = attach(step, Keep::NOTHING, &[from], smallvec![there.clone()]);
    attached.pop().unwrap_or(there)
}

impl DTensor {
    /// In another dtype, without sending anything: contributions to a pending sum are cast one by one.
    pub(crate) fn cast_as_it_lies(&self, op: &'static str, dtype: DType) -> Result<DTensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        Ok(moved(op, self, self.cast_parts(op, dtype)?, None))
    }
}
