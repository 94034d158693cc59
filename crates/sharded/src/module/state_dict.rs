//! The tensors of a module by name.

use std::collections::{BTreeMap, BTreeSet};

use dtensor_dtype::DType;

use super::{ModuleTensor, ShardableModule, named_tensors, walk::for_each_tensor_mut};
use crate::{Error, ProcessGroup, Result, ShardedTensor, Spec, exchange::agree};

/// Tensors by their paths. Sharded ones are stored by each rank for itself, as
/// [`to_bytes`](crate::ShardedTensor::to_bytes) does, or by whoever reshards on loading.
pub type StateDict = BTreeMap<String, ModuleTensor>;

/// All tensors of a module, sharded ones among them. Nothing is copied, and nothing is sent.
pub fn state_dict(module: &dyn ShardableModule) -> StateDict {
    named_tensors(module).into_iter().map(|(path, tensor)| (path, tensor.clone())).collect()
}

/// Gives the module the tensors of a state dict. Those that are sharded on both sides are resharded to the spec
/// of the module, for which all ranks of the group call it; what is whole in the module must be whole in the
/// state dict, and a sharded tensor may take the place of a whole one of its size, as when it was stored after
/// sharding.
///
/// What is loaded are elements, not how they came about: a tensor of the module begins anew as a leaf, and wants
/// gradients if the one before it did. A whole tensor says nothing about gradients; a sharded one in its place
/// wants them if the stored one did.
///
/// With `strict` both must have the same paths. A state dict that does not fit changes nothing.
pub fn load_state_dict(
    module: &mut dyn ShardableModule,
    state: &StateDict,
    strict: bool,
) -> Result<()> {
    let own: BTreeMap<String, &ModuleTensor> = named_tensors(module).into_iter().collect();
    agreed(&own, check(&own, state, strict))?;
    let mut loaded = BTreeMap::new();
    for (path, own) in own {
        let Some(stored) = state.get(&path) else { continue };
        let new = match (own, stored) {
            (ModuleTensor::Plain(own), ModuleTensor::Plain(stored)) => {
                stored.to_dtype(own.dtype())?.into()
            }
            (ModuleTensor::Plain(own), ModuleTensor::Sharded(stored)) => {
                let wants_grad = stored.requires_grad() && own.dtype().is_float();
                leaf(stored, own.dtype(), None, wants_grad)?.into()
            }
            (ModuleTensor::Sharded(own), ModuleTensor::Sharded(stored)) => {
                let is_cut_alike =
                    own.metadata().shards_metadata == stored.metadata().shards_metadata;
                let spec = (!is_cut_alike).then(|| own.sharding_spec());
                leaf(stored, own.dtype(), spec, own.requires_grad())?.into()
            }
            (ModuleTensor::Sharded(_), ModuleTensor::Plain(_)) => return Err(another_way(&path)),
        };
        loaded.insert(path, new);
    }
    for_each_tensor_mut(module, &mut |path, tensor| {
        if let Some(new) = loaded.remove(path) {
            *tensor = new;
        }
        Ok(())
    })
}

const OP: &str = "load_state_dict";

/// The elements of a stored tensor, without a way back to it: else every step would walk into the state dict,
/// and only specs that are layouts could be loaded.
fn leaf(
    stored: &ShardedTensor,
    dtype: DType,
    spec: Option<&Spec>,
    requires_grad: bool,
) -> Result<ShardedTensor> {
    let mut leaf = stored.detach().to_dtype(dtype)?;
    if let Some(spec) = spec {
        leaf = leaf.resharded(spec)?;
    }
    leaf.set_requires_grad(requires_grad)?;
    Ok(leaf)
}

/// Whether the tensors of a state dict can become those of a module. Nothing is sent.
fn check(own: &BTreeMap<String, &ModuleTensor>, state: &StateDict, strict: bool) -> Result<()> {
    let (ours, theirs): (BTreeSet<&String>, BTreeSet<&String>) =
        (own.keys().collect(), state.keys().collect());
    if let (true, Some(path)) = (strict, ours.symmetric_difference(&theirs).next()) {
        let side = if ours.contains(*path) { "not in the state dict" } else { "not in the module" };
        return Err(refused(format!("`{path}` is {side}")));
    }
    for (path, own) in own {
        let fits = match (own, state.get(path)) {
            (_, None) => true,
            (ModuleTensor::Plain(own), Some(ModuleTensor::Plain(stored))) => {
                own.shape() == stored.shape()
            }
            (ModuleTensor::Plain(own), Some(ModuleTensor::Sharded(stored))) => {
                own.shape() == stored.size()
            }
            (ModuleTensor::Sharded(own), Some(ModuleTensor::Sharded(stored))) => {
                own.process_group().check_same(OP, 1, stored.process_group())?;
                own.size() == stored.size()
            }
            (ModuleTensor::Sharded(_), Some(ModuleTensor::Plain(_))) => false,
        };
        if !fits {
            return Err(another_way(path));
        }
    }
    Ok(())
}

/// What one rank has found is told to all ranks that the module has sharded tensors on: they would wait for it.
fn agreed(own: &BTreeMap<String, &ModuleTensor>, mut found: Result<()>) -> Result<()> {
    let mut groups: Vec<&ProcessGroup> = Vec::new();
    for tensor in own.values().filter_map(|tensor| tensor.sharded()) {
        let group = tensor.process_group();
        if group.rank().is_some() && !groups.iter().any(|other| other.is_same(group)) {
            groups.push(group);
        }
    }
    for group in groups {
        found = agree(OP, group, found);
    }
    found
}

fn another_way(path: &str) -> Error {
    refused(format!("`{path}` is stored in another way than the module has it"))
}

fn refused(what: String) -> Error {
    Error::refused(OP, what, "load with the module and plan it was made with")
}
