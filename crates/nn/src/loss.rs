//! Losses.

use dtensor::{DTensor, Result, ops::nn::CrossEntropy};

/// The mean cross entropy of logits `[..., classes]` for the classes `[...]`. Whatever is cut, positions or classes,
/// logits are not gathered.
pub fn cross_entropy(logits: &DTensor, targets: &DTensor) -> Result<DTensor> {
    cross_entropy_with(logits, targets, &CrossEntropy::default())
}

/// As [`cross_entropy`], with weights of classes, a target that counts for nothing (padding), targets that are spread over all
/// classes, or another reduction.
pub fn cross_entropy_with(
    logits: &DTensor,
    targets: &DTensor,
    settings: &CrossEntropy<'_>,
) -> Result<DTensor> {
    // Classes come second.
    let n = logits.n_dims();
    let logits = if n > 2 { logits.movedim(&[-1], &[1])? } else { logits.clone() };
    Ok(logits.cross_entropy(targets, settings)?.0)
}

/// The mean of the squares of the differences.
pub fn mse_loss(values: &DTensor, targets: &DTensor) -> Result<DTensor> {
    values.sub(targets)?.square()?.mean(&[], false)
}
