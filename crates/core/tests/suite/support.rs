//! What the tests stand on.

pub use dtensor_testing::tensors::{dense, layouts_of, mesh, place, tensor};

use dtensor::{DTensor, DType, Error, Placement};
use dtensor_testing::dense::Dense;

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

/// A number that depends on every element of every float among tensors, on each in its own way.
pub fn weighted_sum(tensors: &[DTensor]) -> Result<DTensor, Error> {
    let mut sum: Option<DTensor> = None;
    for (number, tensor) in tensors.iter().enumerate().filter(|(_, own)| own.dtype().is_float()) {
        let weight = |at: usize| 0.3 + ((at * 7 + number * 3) % 11) as f64 / 7.0;
        let weights = Dense::new(tensor.shape(), (0..tensor.numel()).map(weight).collect());
        let copies = vec![Placement::Replicate; tensor.mesh().n_axes()];
        let weights = place(&weights, DType::F64, tensor.mesh(), &copies, 1);
        let part = tensor.mul(&weights)?.sum(&[], false)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    sum.ok_or(Error::NoGradient { op: "weighted_sum" })
}
