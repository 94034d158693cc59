//! The gradient of every operation that has one: against finite differences on one rank, and in every layout against
//! the gradient on one rank.

use dtensor::{DTensor, DType, DeviceMesh, Placement, call, no_grad, op::Sample};

use super::{dense, draw, place, sweep::Case};
use crate::dense::Dense;

/// Half of the distance of finite differences. Their error is of the order of its square, rounding of that of its
/// inverse.
const STEP: f64 = 1e-5;

/// How far a gradient may be from a finite difference.
const TOLERANCE: f64 = 1e-6;

/// The gradients of a sample on one rank, one per operand; `None` for those that have none.
pub fn on_one_rank(sample: &Sample, mesh: &DeviceMesh) -> Result<Vec<Option<Dense>>, String> {
    let operands: Vec<DTensor> = placed(sample, &draw(sample, 1), mesh)?;
    gradients(sample, &operands)
}

/// Compares the gradients of a sample with finite differences.
pub fn check_by_differences(sample: &Sample, mesh: &DeviceMesh) -> Result<(), String> {
    let values = draw(sample, 1);
    let found = on_one_rank(sample, mesh)?;
    // What is rounded to less than f64 does not change by so little.
    let results = sample.op.infer(&sample.metas()).map_err(text)?;
    if results.iter().any(|meta| meta.dtype.is_float() && meta.dtype != DType::F64) {
        return Ok(());
    }
    for (operand, gradient) in found.iter().enumerate() {
        let is_float = sample.metas()[operand].dtype.is_float();
        let Some(gradient) = gradient else {
            if is_float {
                return Err(format!("operand {operand} has no gradient"));
            }
            continue;
        };
        if gradient.shape() != values[operand].shape() {
            return Err(format!(
                "the gradient of operand {operand} has shape {:?}",
                gradient.shape()
            ));
        }
        for element in 0..values[operand].data().len() {
            let at = |offset: f64| {
                let mut moved = values.clone();
                let mut data = moved[operand].data().to_vec();
                data[element] += offset;
                moved[operand] = Dense::new(values[operand].shape(), data);
                no_grad(|| {
                    loss(sample, &placed(sample, &moved, mesh)?)?.item::<f64>().map_err(text)
                })
            };
            let difference = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
            let got = gradient.data()[element];
            if (got - difference).abs() > TOLERANCE * difference.abs().max(1.0) || got.is_nan() {
                return Err(format!(
                    "the gradient of element {element} of operand {operand} is {got}, by differences {difference}"
                ));
            }
        }
    }
    Ok(())
}

/// Compares the gradients of a case with those on one rank.
pub fn check_in_layout(
    case: &Case,
    mesh: &DeviceMesh,
    want: &[Option<Dense>],
) -> Result<(), String> {
    let operands = case.operands(mesh);
    let found = gradients(case.sample(), &operands)?;
    for (operand, (got, want)) in found.iter().zip(want).enumerate() {
        match (got, want) {
            (Some(got), Some(want)) if got.shape() == want.shape() && got.is_close(want) => {}
            (None, None) => {}
            _ => {
                return Err(format!(
                    "the gradient of operand {operand} is {got:?}, should be {want:?}"
                ));
            }
        }
    }
    Ok(())
}

fn placed(sample: &Sample, values: &[Dense], mesh: &DeviceMesh) -> Result<Vec<DTensor>, String> {
    let whole = vec![Placement::Replicate; mesh.n_axes()];
    let metas = sample.metas();
    let place =
        |(values, meta): (&Dense, &dtensor::op::Meta)| place(values, meta.dtype, mesh, &whole, 3);
    Ok(values.iter().zip(&metas).map(place).collect())
}

/// The gradients of the loss with respect to all float operands, whole.
fn gradients(sample: &Sample, operands: &[DTensor]) -> Result<Vec<Option<Dense>>, String> {
    let leaf = |operand: &DTensor| match operand.dtype().is_float() {
        true => operand.requires_grad(),
        false => Ok(operand.clone()),
    };
    let leaves = operands.iter().map(leaf).collect::<dtensor::Result<Vec<_>>>().map_err(text)?;
    let loss = loss(sample, &leaves)?;
    // Nothing to walk through if the results are no floats.
    if !loss.needs_grad() {
        return Ok(vec![None; operands.len()]);
    }
    let found = loss.backward().map_err(text)?;
    let one = |leaf: &DTensor| {
        if !leaf.dtype().is_float() {
            return Ok(None);
        }
        let Some(gradient) = found.get(leaf) else {
            // The loss does not depend on it: its gradient is zero.
            let zeros = vec![0.0; leaf.numel()];
            return Ok(Some(Dense::new(leaf.shape(), zeros)));
        };
        if !gradient.layout().is_partial()
            && !leaf.layout().is_partial()
            && gradient.layout() != leaf.layout()
        {
            return Err(format!(
                "a gradient in {} of a leaf in {}",
                gradient.layout(),
                leaf.layout()
            ));
        }
        let whole = gradient.full_tensor().map_err(text)?;
        dense(&whole).map(Some).map_err(|error| error.to_string())
    };
    leaves.iter().map(one).collect()
}

/// A number that depends on every element of every float result, on each in its own way.
fn loss(sample: &Sample, operands: &[DTensor]) -> Result<DTensor, String> {
    let results = call(&*sample.op, &operands.iter().collect::<Vec<_>>()).map_err(text)?;
    let mut sum: Option<DTensor> = None;
    for (number, result) in
        results.iter().enumerate().filter(|(_, result)| result.dtype().is_float())
    {
        let n = result.numel();
        let weights = (0..n).map(|at| 0.3 + ((at * 7 + number * 3) % 11) as f64 / 7.0).collect();
        let whole = vec![Placement::Replicate; result.mesh().n_axes()];
        let weights =
            place(&Dense::new(result.shape(), weights), DType::F64, result.mesh(), &whole, 1);
        let part =
            result.mul(&weights).and_then(|product| product.sum(&[], false)).map_err(text)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part).map_err(text)?,
            None => part,
        });
    }
    sum.ok_or_else(|| "no result is a float".to_owned())
}

fn text(error: dtensor::Error) -> String {
    error.to_string()
}
