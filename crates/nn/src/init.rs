//! First values of parameters. They do not depend on the layout.

use dtensor::{DTensor, DType, DeviceMesh, Placement, Result, rand, randn};

/// Uniform between two numbers.
pub fn uniform(
    shape: &[usize],
    (low, high): (f64, f64),
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    rand(shape, dtype, mesh, placements)?.mul(high - low)?.add(low)
}

/// Normal around 0.
pub fn normal(
    shape: &[usize],
    deviation: f64,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    randn(shape, dtype, mesh, placements)?.mul(deviation)
}

/// Uniform within `1 / sqrt(inputs)`, where a weight `[out, in, ...]` has so many inputs: what PyTorch gives linear and
/// convolutional layers.
pub fn kaiming_uniform(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let inputs: usize = shape.iter().skip(1).product();
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    uniform(shape, (-bound, bound), dtype, mesh, placements)
}

/// Uniform with the deviation `sqrt(2 / (inputs + outputs))`, by Glorot and Bengio.
pub fn xavier_uniform(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let inputs: usize = shape.iter().skip(1).product();
    let outputs = shape.first().copied().unwrap_or(1);
    let bound = (6.0 / (inputs + outputs).max(1) as f64).sqrt();
    uniform(shape, (-bound, bound), dtype, mesh, placements)
}

/// Copies on every axis.
pub(crate) fn copies(mesh: &DeviceMesh) -> Vec<Placement> {
    vec![Placement::Replicate; mesh.n_axes()]
}
