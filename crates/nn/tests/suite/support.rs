//! What the tests stand on.

use dtensor::{DTensor, DType, DeviceMesh, Placement, Tensor, World, distribute_tensor_from};
use dtensor_nn::{FullyShardOptions, Module, Result, named_parameters};

/// `fully_shard` or `replicate`.
pub type Shards = fn(&mut dyn Module, &str, &FullyShardOptions) -> Result<()>;

/// A mesh with names, over all ranks.
#[track_caller]
pub fn mesh(world: &World, axes: &[(&str, usize)]) -> DeviceMesh {
    DeviceMesh::new(world, axes).unwrap()
}

/// Numbers without a pattern that a mistake could hide in.
pub fn numbers(n: usize, seed: f64) -> Vec<f64> {
    (0..n).map(|at| ((at as f64).mul_add(0.731, seed) * 1.7).sin() * 0.4).collect()
}

/// The same numbers on every mesh, cut like this.
#[track_caller]
pub fn tensor(
    shape: &[usize],
    seed: f64,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> DTensor {
    let values = numbers(shape.iter().product(), seed);
    let whole = Tensor::from_slice(&values, shape).unwrap().to_dtype(dtype).unwrap();
    distribute_tensor_from(&whole, mesh, placements, None).unwrap()
}

/// Copies of a tensor on all ranks.
pub fn copies(mesh: &DeviceMesh) -> Vec<Placement> {
    vec![Placement::Replicate; mesh.n_axes()]
}

/// Gives all parameters values that depend on their names alone, and that are not as regular as first values are.
pub fn fill(module: &dyn Module) -> Result<()> {
    for (name, parameter) in named_parameters(module) {
        let value = parameter.value();
        let seed = name.bytes().fold(0.0, |sum, byte| sum * 0.7 + f64::from(byte));
        let copies = copies(value.mesh());
        let whole = tensor(value.shape(), seed, value.dtype(), value.mesh(), &copies);
        parameter.set(&whole.redistribute_layout(value.layout())?)?;
    }
    Ok(())
}

/// Whether numbers differ by no more than a part of the largest.
#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], part: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3_f64, |most, value| most.max(value.abs()));
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs() / scale;
        assert!(off <= part, "{what} at {at}: {got}, not {want}");
    }
}
