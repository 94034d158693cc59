//! Between the tensors of tests and those of the core crate, and every operation against its dense result.

pub mod gradients;
pub mod sweep;

use dtensor::{
    DTensor, DType, DeviceMesh, Layout, LocalError, Placement, ReduceOp, Result, Tensor, World,
    op::Sample,
};

use crate::{dense::Dense, noise::Noise, oracle, placed};

/// The same values as a tensor of a dtype. Refuses values that the dtype does not have.
pub fn tensor(dense: &Dense, dtype: DType) -> Result<Tensor, String> {
    let exact = |value: f64| match dtype {
        DType::Bool => value == 0.0 || value == 1.0,
        _ => dtype.is_float() || value.fract() == 0.0,
    };
    if let Some(value) = dense.data().iter().find(|value| !exact(**value)) {
        return Err(format!("{value} is no {dtype}"));
    }
    let tensor = Tensor::from_slice(dense.data(), dense.shape()).and_then(|t| t.to_dtype(dtype));
    tensor.map_err(|error| error.to_string())
}

/// The values of a tensor.
pub fn dense(tensor: &Tensor) -> Result<Dense, LocalError> {
    Ok(Dense::new(tensor.shape(), tensor.to_dtype(DType::F64)?.to_vec()?))
}

/// The operands of a sample, whole.
pub fn draw(sample: &Sample, seed: u64) -> Vec<Dense> {
    let mut noise = Noise::new(seed);
    let draw = |operand: &dtensor::op::SampleOperand| {
        oracle::draw(operand.values, &operand.shape, &mut noise)
    };
    sample.operands.iter().map(draw).collect()
}

/// A tensor of which every rank takes its part of `whole`; of a pending reduction uneven contributions of
/// mixed signs, as far as the dtype has them.
///
/// # Panics
/// If the placements are no layout of it, or the rank is not on the mesh.
#[track_caller]
pub fn place(
    whole: &Dense,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
    seed: u64,
) -> DTensor {
    let layout = Layout::new(whole.shape(), dtype, mesh.mesh(), placements).unwrap();
    if layout.is_partial() && !dtype.is_float() {
        let whole = tensor(whole, dtype).unwrap();
        return dtensor::distribute_tensor_from(&whole, mesh, placements, None).unwrap();
    }
    let parts = placed::scatter(whole, &layout, &mut Noise::new(seed));
    let number = mesh.mesh().ranks().position(|rank| rank == mesh.world().rank()).unwrap();
    let local = tensor(&parts[number], dtype).unwrap();
    DTensor::from_local_with_shape(&local, mesh, placements, whole.shape()).unwrap()
}

/// A mesh of these sizes over all ranks.
///
/// # Panics
/// If the world has fewer.
#[track_caller]
pub fn mesh(world: &World, sizes: &[usize]) -> DeviceMesh {
    DeviceMesh::from_mesh(world, dtensor::Mesh::from_sizes(sizes).unwrap()).unwrap()
}

/// Every placement that a tensor may have on one axis.
pub fn placements_of(n_dims: usize, dtype: DType) -> Vec<Placement> {
    let cuts = (0..n_dims).map(Placement::Shard);
    let pending = ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).map(Placement::Partial);
    [Placement::Replicate].into_iter().chain(cuts).chain(pending).collect()
}

/// Every combination of placements on these axes that is a layout.
///
/// # Panics
/// If the sizes are no mesh.
#[track_caller]
pub fn layouts_of(shape: &[usize], dtype: DType, sizes: &[usize]) -> Vec<Vec<Placement>> {
    let mesh = dtensor::Mesh::from_sizes(sizes).unwrap();
    let mut all = vec![Vec::new()];
    for _ in sizes {
        all = all
            .iter()
            .flat_map(|done: &Vec<Placement>| {
                placements_of(shape.len(), dtype)
                    .into_iter()
                    .map(|one| [done.as_slice(), &[one]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    all.retain(|placements| Layout::new(shape, dtype, &mesh, placements).is_ok());
    all
}
