//! Parameters by name, and files of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use dtensor::{DTensor, DType, LocalError, Placement, Tensor, distribute_tensor_from};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

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

/// The tensors of a safetensors file, whole. Every rank reads it.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let broken = |why: String| Error::File { path: path.display().to_string(), why };
    let bytes = std::fs::read(path).map_err(|error| broken(error.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| broken(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.tensors() {
        let dtype = ours(view.dtype())
            .ok_or_else(|| broken(format!("`{name}` has dtype {:?}", view.dtype())))?;
        let tensor = Tensor::from_bytes_with(view.shape(), dtype, |bytes| {
            bytes.copy_from_slice(view.data());
            Ok::<_, LocalError>(())
        });
        tensors.insert(name, tensor.map_err(|error| broken(error.to_string()))?);
    }
    Ok(tensors)
}

/// Writes tensors, each of which is gathered, to a safetensors file; rank 0 writes. All ranks call it. The file appears whole or
/// not at all.
pub fn write_safetensors(path: &Path, values: &StateDict) -> Result<()> {
    let mut whole = Vec::with_capacity(values.len());
    let mut writes = false;
    for (name, value) in values {
        writes = value.mesh().world().rank() == 0;
        let tensor = value.full_tensor()?.contiguous();
        if writes {
            whole.push((name.clone(), tensor));
        }
    }
    if !writes {
        return Ok(());
    }
    let broken = |why: String| Error::File { path: path.display().to_string(), why };
    let view = |(name, tensor): &(String, Tensor)| {
        let bytes = tensor.as_bytes().map_err(|error| broken(error.to_string()))?.to_vec();
        Ok((name.clone(), (theirs(tensor.dtype()), tensor.shape().to_vec(), bytes)))
    };
    let owned = whole.iter().map(view).collect::<Result<Vec<_>>>()?;
    let views = owned.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        view.map(|view| (name.clone(), view)).map_err(|error| broken(error.to_string()))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    let partial = path.with_extension("partial");
    safetensors::serialize_to_file(views, None, &partial)
        .map_err(|error| broken(error.to_string()))?;
    std::fs::rename(&partial, path).map_err(|error| broken(error.to_string()))
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

fn ours(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

fn theirs(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
