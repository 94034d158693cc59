//! How far tensors are from known ones.

use std::collections::BTreeMap;

use dtensor::{DTensor, DType, LocalError, Tensor};
use dtensor_nn::{Error as NnError, Parameter, named_parameters};

use super::{super::model::Model, known::name_in_file};

/// A largest difference, and the tensor that has it.
#[derive(Clone, Debug)]
pub struct Difference {
    /// As a part of the largest entry of the known tensor.
    pub part: f64,
    pub name: String,
}

/// The largest difference of a tensor of each parameter to the known one, but for those that are left out.
pub fn largest_difference(
    model: &Model,
    left_out: &[String],
    want: &BTreeMap<String, Tensor>,
    of: impl Fn(&Parameter) -> Option<DTensor>,
) -> dtensor_nn::Result<Difference> {
    let mut worst = Difference { part: 0.0, name: String::new() };
    for (name, parameter) in named_parameters(model.module()) {
        let (Some(want), Some(got)) = (want.get(&name), of(&parameter)) else {
            let name = format!("gradient of {name}");
            return Err(NnError::Missing { name, nearest: "none".into() });
        };
        let got = got.full_tensor()?;
        let part = || {
            let off = got.to_dtype(DType::F64)?.sub(&want.to_dtype(DType::F64)?)?;
            let part = largest_entry(&off)? / largest_entry(want)?.max(f64::MIN_POSITIVE);
            Ok::<_, LocalError>(no_nan(part))
        };
        let part = part().map_err(dtensor::Error::from)?;
        let name = name_in_file(&name);
        if part > worst.part && !left_out.contains(&name) {
            worst = Difference { part, name };
        }
    }
    Ok(worst)
}

/// The parameters, by their names in files, whose gradients are a millionth of the largest at most.
///
/// The loss does not depend on them, such as on the bias of keys: their gradients are rounding, which an optimizer that divides by
/// their size makes large.
pub fn vanishing(gradients: &BTreeMap<String, Tensor>) -> Result<Vec<String>, LocalError> {
    let mut sizes = Vec::with_capacity(gradients.len());
    for (name, gradient) in gradients {
        sizes.push((name, largest_entry(gradient)?));
    }
    let largest = sizes.iter().map(|(_, size)| *size).fold(0.0, f64::max);
    let vanishes = |(_, size): &&(&String, f64)| *size < 1e-6 * largest;
    Ok(sizes.iter().filter(vanishes).map(|(name, _)| name_in_file(name)).collect())
}

/// What is no number is as wrong as can be, and must not be overlooked by a comparison.
pub fn no_nan(difference: f64) -> f64 {
    if difference.is_nan() { f64::INFINITY } else { difference }
}

fn largest_entry(tensor: &Tensor) -> Result<f64, LocalError> {
    tensor.to_dtype(DType::F64)?.abs()?.amax(&[], false)?.item::<f64>()
}
