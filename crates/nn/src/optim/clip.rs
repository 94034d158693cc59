//! Gradients of bounded length.

use dtensor::{DTensor, Gradients, Placement, ReduceOp};

use crate::{Parameter, Result};

/// The length of all gradients together, as one vector; if it is above `max_norm`, they are shortened to that. Gradients
/// may lie on different meshes and in different layouts: every element counts once, and one number is reduced over the
/// world.
///
/// As `torch.nn.utils.clip_grad_norm_`. All ranks of the world call it.
pub fn clip_grad_norm(
    parameters: &[Parameter],
    gradients: &mut Gradients,
    max_norm: f64,
) -> Result<f64> {
    let norm = grad_norm(parameters, gradients)?;
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        for parameter in parameters {
            let leaf = parameter.value();
            if let Some(gradient) = gradients.remove(&leaf) {
                gradients.insert(&leaf, gradient.mul(factor)?);
            }
        }
    }
    Ok(norm)
}

/// The length of all gradients together.
pub(crate) fn grad_norm(parameters: &[Parameter], gradients: &mut Gradients) -> Result<f64> {
    let mut sum = 0.0;
    let mut world = None;
    for parameter in parameters {
        let leaf = parameter.value();
        world.get_or_insert_with(|| leaf.mesh().world().clone());
        let Some(gradient) = gradients.get(&leaf) else { continue };
        if gradient.layout().is_partial() {
            let settled = gradient.settled()?;
            gradients.insert(&leaf, settled);
        }
        let Some(gradient) = gradients.get(&leaf) else { continue };
        sum += own_share(gradient)?;
    }
    let Some(world) = world else { return Ok(0.0) };
    if world.kind() == dtensor::WorldKind::Fake {
        return Ok(f64::NAN);
    }
    let mut sums = [sum];
    let everybody = world.group().tag("clip_grad_norm");
    everybody.all_reduce(&mut sums, ReduceOp::Sum).map_err(|source| dtensor::Error::Comm {
        op: "clip_grad_norm",
        source: std::sync::Arc::new(source),
    })?;
    Ok(sums[0].sqrt())
}

/// What this rank adds to the sum of the squares: of what several ranks have a copy of, the first one counts it.
fn own_share(gradient: &DTensor) -> Result<f64> {
    let Some(coord) = gradient.mesh().coord() else { return Ok(0.0) };
    let is_first = gradient
        .placements()
        .iter()
        .zip(coord)
        .all(|(placement, index)| *placement != Placement::Replicate || *index == 0);
    let local = gradient.to_local();
    if !is_first || local.is_meta() || local.numel() == 0 {
        return Ok(0.0);
    }
    let squares = local.to_dtype(dtensor::DType::F64).and_then(|x| x.square()?.sum(&[], false));
    Ok(squares.and_then(|sum| sum.item::<f64>()).map_err(dtensor::Error::from)?)
}
