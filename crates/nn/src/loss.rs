//! Losses.

use dtensor::{DTensor, Result, ops::nn::CrossEntropy};

/// The mean cross entropy of logits `[..., classes]` for the classes `[...]`. Whatever is cut, positions or classes,
/// logits are not gathered.
pub fn cross_entropy(logits: &DTensor, targets: &DTensor) -> Result<DTensor> {
    let settings = CrossEntropy::default();
    // Classes come second.
    let n = logits.n_dims();
    let logits = if n > 2 { logits.movedim(&[-1], &[1])? } else { logits.clone() };
    Ok(logits.cross_entropy(targets, &settings)?.0)
}

/// The mean of the squares of the differences.
pub fn mse_loss(values: &DTensor, targets: &DTensor) -> Result<DTensor> {
    values.sub(targets)?.square()?.mean(&[], false)
}
