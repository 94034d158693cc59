//! Gradients of bounded length.

use dtensor::{DTensor, DType, Gradients, Placement, ReduceOp};

use crate::{Error, Parameter, Result};

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
    clip_grad_norm_by(parameters, gradients, max_norm, 2.0)
}

/// As [`clip_grad_norm`], with the norm of another power: 1 is the sum of the sizes, infinity the largest of them.
pub fn clip_grad_norm_by(
    parameters: &[Parameter],
    gradients: &mut Gradients,
    max_norm: f64,
    power: f64,
) -> Result<f64> {
    // With a negative one, or one that is no number, gradients would turn around or be lost.
    if max_norm.is_nan() || max_norm < 0.0 {
        return Err(Error::bad("the largest norm of gradients", max_norm, "give 0 or more"));
    }
    if power.is_nan() || power <= 0.0 {
        return Err(Error::bad("the power of a norm", power, "give a number above 0, or infinity"));
    }
    let norm = grad_norm(parameters, gradients, power)?;
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
pub(crate) fn grad_norm(
    parameters: &[Parameter],
    gradients: &mut Gradients,
    power: f64,
) -> Result<f64> {
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
        let share = own_share(gradient, power)?;
        sum = if power.is_infinite() { larger(sum, share) } else { sum + share };
    }
    let Some(world) = world else { return Ok(0.0) };
    if world.kind() == dtensor::WorldKind::Fake {
        return Ok(f64::NAN);
    }
    let mut sums = [sum];
    let everybody = world.group().tag("clip_grad_norm");
    let reduction = if power.is_infinite() { ReduceOp::Max } else { ReduceOp::Sum };
    everybody.all_reduce(&mut sums, reduction).map_err(|source| dtensor::Error::Comm {
        op: "clip_grad_norm",
        source: std::sync::Arc::new(source),
    })?;
    Ok(match power {
        2.0 => sums[0].sqrt(),
        f64::INFINITY => sums[0],
        _ => sums[0].powf(1.0 / power),
    })
}

/// What this rank adds to the sum of the powers: of what several ranks have a copy of, the first one counts it.
fn own_share(gradient: &DTensor, power: f64) -> Result<f64> {
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
    let in_full = local.to_dtype(DType::F64).map_err(dtensor::Error::from)?;
    if power == 2.0 {
        let squares = in_full.square().and_then(|squares| squares.sum(&[], false));
        return Ok(squares.and_then(|sum| sum.item::<f64>()).map_err(dtensor::Error::from)?);
    }
    let sizes = in_full.to_vec::<f64>().map_err(dtensor::Error::from)?.into_iter().map(f64::abs);
    Ok(match power.is_infinite() {
        true => sizes.fold(0.0, larger),
        false => sizes.map(|size| size.powf(power)).sum(),
    })
}

/// The larger one; what is no number is larger than all.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}
