//! Any placements for any module.

use dtensor::{DTensor, DeviceMesh, Placement};

use crate::{Hook, Module, Result, assign_names, named_parameters};

/// Places every parameter of a model on a mesh: `place` says where, by its name and value; by default (`None`) it is a
/// copy on every rank. `before` and `after` are put around the model. As PyTorch's `distribute_module`.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner};
/// use dtensor_nn::{Linear, distribute_module};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let mut layer = Linear::new(4, 6, true, DType::F32, &mesh)?;
///     let rows = |name: &str, _: &dtensor::DTensor| (name == "weight").then(|| vec![Shard(0)]);
///     distribute_module(&mut layer, &mesh, rows, None, None)?;
///     assert_eq!(layer.weight.value().placements(), [Shard(0)]);
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn distribute_module(
    module: &mut dyn Module,
    mesh: &DeviceMesh,
    place: impl Fn(&str, &DTensor) -> Option<Vec<Placement>>,
    before: Option<Hook>,
    after: Option<Hook>,
) -> Result<()> {
    super::refuse_gathered("distribute_module", module, |_| true)?;
    let mut placed = Vec::new();
    for (name, parameter) in named_parameters(module) {
        let value = parameter.value();
        let copies = || vec![Placement::Replicate; mesh.n_axes()];
        let placements = place(&name, &value).unwrap_or_else(copies);
        placed.push((parameter, value.redistribute_to(mesh, &placements)?));
    }
    for (parameter, value) in placed {
        parameter.set(&value)?;
    }
    assign_names(module);
    if let Some(before) = before {
        module.state_mut().put_before(before);
    }
    if let Some(after) = after {
        module.state_mut().put_after(after);
    }
    Ok(())
}
