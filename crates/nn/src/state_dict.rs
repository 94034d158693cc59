//! Parameters by name.

use std::collections::{BTreeMap, BTreeSet};

use dtensor::{DTensor, Placement, Tensor, distribute_tensor_from};

use crate::{Error, Module, Parameter, Result, named_parameters, traverse};

/// Values of parameters by name.
pub type StateDict = BTreeMap<String, DTensor>;

/// The values of all parameters, as they lie.
pub fn state_dict(module: &dyn Module) -> StateDict {
    let value = |(name, parameter): (String, Parameter)| (name, parameter.value().detach());
    named_parameters(module).into_iter().map(value).collect()
}

/// Gives the parameters of a model values, each in the layout and the dtype that the parameter has. If `strict`, every name must be a
/// parameter's; every parameter must be there in any case. Nothing is changed if there is an error.
pub fn load_state_dict(module: &dyn Module, values: &StateDict, strict: bool) -> Result<()> {
    let parameters = named_parameters(module);
    let mut loaded = Vec::with_capacity(parameters.len());
    for (name, parameter) in &parameters {
        let own = parameter.value();
        let Some(value) = values.get(name) else { return Err(missing(name, values.keys())) };
        loaded.push((parameter, placed_as(name, value, &own)?));
    }
    if strict {
        // Of a parameter that several modules share, every name is known.
        let mut known = BTreeSet::new();
        traverse::walk(module, "", &mut |name, _| {
            known.insert(name.to_owned());
            true
        });
        if let Some(name) = values.keys().find(|name| !known.contains(*name)) {
            return Err(Error::Unexpected { name: name.clone() });
        }
    }
    for (parameter, value) in loaded {
        parameter.set(&value)?;
    }
    Ok(())
}

/// A value in the dtype and in the layout of another, on its mesh.
pub(crate) fn placed_as(name: &str, value: &DTensor, own: &DTensor) -> Result<DTensor> {
    if value.shape() != own.shape() {
        let (got, want) = (value.shape().to_vec(), own.shape().to_vec());
        return Err(Error::Misshapen { name: name.to_owned(), got, want });
    }
    let value = value.detach().to_dtype(own.dtype())?;
    let value = match value.mesh() == own.mesh() {
        true => value,
        false => value.redistribute_to(own.mesh(), own.placements())?,
    };
    Ok(value.redistribute_layout(own.layout())?)
}

/// Tensors that every rank has, as a state dict of a model: each in the layout of its parameter.
pub(crate) fn placed_like(
    module: &dyn Module,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<StateDict> {
    let mut values = StateDict::new();
    for (name, parameter) in named_parameters(module) {
        let Some(tensor) = tensors.get(&name) else { return Err(missing(&name, tensors.keys())) };
        let own = parameter.value();
        if tensor.shape() != own.shape() {
            let (got, want) = (tensor.shape().to_vec(), own.shape().to_vec());
            return Err(Error::Misshapen { name, got, want });
        }
        let copies = vec![Placement::Replicate; own.mesh().n_axes()];
        values.insert(name, distribute_tensor_from(tensor, own.mesh(), &copies, None)?);
    }
    Ok(values)
}

/// Gives a model the values of whole tensors that every rank has, such as those of a file.
pub fn load_tensors(module: &dyn Module, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    load_state_dict(module, &placed_like(module, tensors)?, false)
}

pub(crate) fn missing<'a>(name: &str, there: impl Iterator<Item = &'a String>) -> Error {
    let common = |other: &&String| {
        name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count()
    };
    let nearest =
        there.max_by_key(common).map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
    Error::Missing { name: name.to_owned(), nearest }
}
