//! Computing again instead of keeping.

use smallvec::smallvec;

use super::{
    backward::{Backward, Grads},
    enable_grad, is_grad_enabled,
    keep::Keep,
    no_grad,
    node::{Step, attach},
};
use crate::{
    DTensor, Error, Result,
    op::Outputs,
    random::{self, RandomState},
};

/// Runs `body` on `x`, and keeps nothing of what it computes inside for the gradient. The walk back runs it once more,
/// with the same random numbers, and goes on through what it computes then. Memory for time: of a block of a model only
/// its input is kept.
///
/// What `body` uses beside `x`, such as parameters, it holds; gradients reach these, too.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, checkpoint, randn};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let weight = randn(&[4, 4], DType::F64, &mesh, &[Replicate])?.requires_grad()?;
///     let x = randn(&[6, 4], DType::F64, &mesh, &[Shard(0)])?;
///     let block = {
///         let weight = weight.clone();
///         move |x: &dtensor::DTensor| x.matmul(&weight)?.tanh()?.dropout(0.5, true)
///     };
///     let state = dtensor::random::state();
///     let kept = block(&x)?.sum(&[], false)?.backward()?;
///     dtensor::random::set_state(state);
///     let computed_again = checkpoint(&x, block)?.sum(&[], false)?.backward()?;
///     let of_weight = |gradients: &dtensor::Gradients| gradients.get(&weight).unwrap().to_vec::<f64>();
///     assert_eq!(of_weight(&kept)?, of_weight(&computed_again)?);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn checkpoint(
    x: &DTensor,
    body: impl Fn(&DTensor) -> Result<DTensor> + Send + Sync + 'static,
) -> Result<DTensor> {
    if !is_grad_enabled() {
        return body(x);
    }
    let state = random::state();
    let result = no_grad(|| body(x))?;
    if !result.dtype().is_float() {
        return Ok(result);
    }
    let step = Box::new(Checkpoint { body, state });
    let mut results = attach(step, Keep::OPERANDS, &[x], smallvec![result]);
    results.pop().ok_or(Error::NoGradient { op: "checkpoint" })
}

struct Checkpoint<F> {
    body: F,
    state: RandomState,
}

impl<F> Step for Checkpoint<F>
where
    F: Fn(&DTensor) -> Result<DTensor> + Send + Sync,
{
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn gradient(&self, _: &Backward<'_>) -> Result<Grads> {
        Err(Error::NoGradient { op: self.name() })
    }

    fn runs_again(&self) -> bool {
        true
    }

    fn again(&self, backward: &Backward<'_>) -> Option<Result<Outputs<DTensor>>> {
        let run = || {
            let x = backward.operand(0)?;
            Ok(smallvec![(self.body)(&x)?])
        };
        Some(random::with_state(self.state, || enable_grad(run)))
    }
}
