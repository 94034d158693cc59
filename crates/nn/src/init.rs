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
    let bound = 1.0 / (inputs(shape).max(1) as f64).sqrt();
    uniform(shape, (-bound, bound), dtype, mesh, placements)
}

/// Uniform with the deviation `sqrt(2 / (inputs + outputs))`, by Glorot and Bengio.
pub fn xavier_uniform(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let bound = (6.0 / both(shape)).sqrt();
    uniform(shape, (-bound, bound), dtype, mesh, placements)
}

/// Normal with the deviation `sqrt(2 / inputs)`, by He and others: for layers before a `relu`.
pub fn kaiming_normal(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    normal(shape, (2.0 / inputs(shape).max(1) as f64).sqrt(), dtype, mesh, placements)
}

/// Normal with the deviation `sqrt(2 / (inputs + outputs))`, by Glorot and Bengio.
pub fn xavier_normal(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    normal(shape, (2.0 / both(shape)).sqrt(), dtype, mesh, placements)
}

/// Normal around 0, within two deviations: what lies outside is drawn again.
pub fn truncated_normal(
    shape: &[usize],
    deviation: f64,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    const MOST: f64 = 2.0;
    // One of 20 lies outside; after so many draws nothing does, but for one of 10^10. To ask would be to communicate.
    const DRAWS: usize = 8;
    let draw = || randn(shape, dtype, mesh, placements);
    let mut values = draw()?;
    for _ in 1..DRAWS {
        values = values.abs()?.gt(MOST)?.where_self(&draw()?, &values)?;
    }
    values.clamp(Some((-MOST).into()), Some(MOST.into()))?.mul(deviation)
}

/// Inputs of a weight `[out, in, ...]`.
fn inputs(shape: &[usize]) -> usize {
    shape.iter().skip(1).product()
}

/// Inputs and outputs of a weight.
fn both(shape: &[usize]) -> f64 {
    (inputs(shape) + shape.first().copied().unwrap_or(1)).max(1) as f64
}

/// Copies on every axis.
pub(crate) fn copies(mesh: &DeviceMesh) -> Vec<Placement> {
    vec![Placement::Replicate; mesh.n_axes()]
}
