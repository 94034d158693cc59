//! Losses.

use dtensor::{
    DTensor, Error, Result,
    ops::nn::{CrossEntropy, NllLoss},
};

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
    Ok(classes_second(logits)?.cross_entropy(targets, settings)?.0)
}

/// The mean of the negative log-probabilities `[..., classes]` at the classes `[...]`.
pub fn nll_loss(log_probabilities: &DTensor, targets: &DTensor) -> Result<DTensor> {
    classes_second(log_probabilities)?.nll_loss(targets, &NllLoss::default())
}

/// The mean of the squares of the differences.
pub fn mse_loss(values: &DTensor, targets: &DTensor) -> Result<DTensor> {
    values.sub(targets)?.square()?.mean(&[], false)
}

/// The mean of the sizes of the differences.
pub fn l1_loss(values: &DTensor, targets: &DTensor) -> Result<DTensor> {
    values.sub(targets)?.abs()?.mean(&[], false)
}

/// As [`l1_loss`], with `difference^2 / (2 beta)` in the place of sizes below `beta`, less half of `beta` above.
pub fn smooth_l1_loss(values: &DTensor, targets: &DTensor, beta: f64) -> Result<DTensor> {
    if beta.is_nan() || beta < 0.0 {
        let (what, way_out) = (format!("a beta of {beta}").into(), "give 0 or more");
        return Err(Error::Unsupported { op: "smooth_l1_loss", what, way_out });
    }
    if beta == 0.0 {
        return l1_loss(values, targets);
    }
    let sizes = values.sub(targets)?.abs()?;
    let small = sizes.clamp(None, Some(beta.into()))?;
    let large = sizes.sub(&small)?;
    small.square()?.mul(0.5 / beta)?.add(&large)?.mean(&[], false)
}

/// The mean binary cross entropy of logits for probabilities.
pub fn bce_with_logits(logits: &DTensor, probabilities: &DTensor) -> Result<DTensor> {
    logits.softplus()?.sub(&logits.mul(probabilities)?)?.mean(&[], false)
}

/// `[N, ..., classes]` as the operations take them, with classes second.
fn classes_second(x: &DTensor) -> Result<DTensor> {
    if x.n_dims() > 2 { x.movedim(&[-1], &[1]) } else { Ok(x.clone()) }
}
