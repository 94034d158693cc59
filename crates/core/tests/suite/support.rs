//! What the tests stand on.

pub use dtensor_testing::tensors::{dense, layouts_of, mesh, place, tensor};

use dtensor::{DTensor, Error};

/// The gradient of a loss with respect to one tensor, whole; zeros if the loss does not depend on it.
pub fn slopes_of(
    loss: impl FnOnce(&DTensor) -> Result<DTensor, Error>,
    x: &DTensor,
) -> Result<Vec<f64>, Error> {
    let x = x.requires_grad()?;
    match loss(&x)?.backward()?.get(&x) {
        Some(gradient) => gradient.to_vec(),
        None => Ok(vec![0.0; x.numel()]),
    }
}
