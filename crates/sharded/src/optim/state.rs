//! What is remembered of one parameter.

use std::collections::BTreeMap;

use dtensor_dtype::DType;
use dtensor_local::Tensor;

use super::LocalOptimizer;
use crate::{Error, Result, ShardedTensor, module::ModuleTensor};

/// Tensors by name, cut as the parameter is, or was.
#[derive(Clone, Debug, Default)]
pub(super) struct ParameterState {
    pub(super) step: u64,
    pub(super) tensors: BTreeMap<&'static str, ModuleTensor>,
}

impl ParameterState {
    /// The same, cut as the parameter is now, and with all that has these names. What is missing begins as
    /// zeros, and steps are counted anew from there: a first step is not like others.
    fn ready(&self, parameter: &ModuleTensor, names: &[&'static str]) -> Result<ParameterState> {
        let mut ready = ParameterState { step: self.step, tensors: BTreeMap::new() };
        for (name, tensor) in &self.tensors {
            ready.tensors.insert(name, cut_as(parameter, tensor)?);
        }
        for name in names {
            if !ready.tensors.contains_key(name) {
                ready.tensors.insert(name, zeros_like(parameter)?);
                ready.step = 0;
            }
        }
        Ok(ready)
    }

    /// One step of a parameter. If it fails, what is remembered has the names and the number of steps of
    /// before, and the sizes of the parameter; elements are as the optimizer has left them.
    pub(super) fn run(
        &mut self,
        optimizer: &impl LocalOptimizer,
        parameter: &mut ModuleTensor,
        gradient: &ModuleTensor,
    ) -> Result<()> {
        let names = optimizer.state_names();
        let ready = self.ready(parameter, names)?;
        let (before, known) = (self.step, self.tensors.keys().copied().collect::<Vec<_>>());
        *self = ready;
        let mut used: Vec<ModuleTensor> =
            names.iter().filter_map(|name| self.tensors.remove(name)).collect();
        let done = stepped(optimizer, parameter, gradient, &mut used, self.step + 1);
        self.tensors.extend(names.iter().copied().zip(used));
        match done {
            Ok(()) => self.step += 1,
            Err(_) => {
                self.step = before;
                self.tensors.retain(|name, _| known.contains(name));
            }
        }
        done
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_new(&self) -> bool {
        self.step == 0 && self.tensors.is_empty()
    }
}

/// A gradient is whole, or cut, as its parameter is.
pub(super) fn check_gradient(
    path: &str,
    parameter: &ModuleTensor,
    gradient: &ModuleTensor,
) -> Result<()> {
    let fits = match (parameter, gradient) {
        (ModuleTensor::Plain(own), ModuleTensor::Plain(other)) => {
            own.shape() == other.shape() && own.dtype() == other.dtype()
        }
        (ModuleTensor::Sharded(own), ModuleTensor::Sharded(other)) => {
            own.process_group().check_same("step", 1, other.process_group())?;
            own.size() == other.size()
                && own.dtype() == other.dtype()
                && own.metadata().shards_metadata == other.metadata().shards_metadata
        }
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(Error::refused(
            "step",
            format!("the gradient of `{path}` has another size, dtype or cut than the parameter"),
            "reshard it to the spec of the parameter",
        )),
    }
}

/// What is remembered is whole, or cut in whatever way on the same ranks, as its parameter is.
pub(super) fn check_state(
    path: &str,
    parameter: &ModuleTensor,
    state: &ModuleTensor,
) -> Result<()> {
    let fits = match (parameter, state) {
        (ModuleTensor::Plain(_), ModuleTensor::Plain(_)) => {
            check_gradient(path, parameter, state).is_ok()
        }
        (ModuleTensor::Sharded(own), ModuleTensor::Sharded(state)) => {
            own.process_group().is_same(state.process_group())
                && own.size() == state.size()
                && own.dtype() == state.dtype()
        }
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(Error::refused(
            "step",
            format!("the state of `{path}` is not that of a tensor like it"),
            "load a state that was made with the same plan",
        )),
    }
}

fn zeros_like(parameter: &ModuleTensor) -> Result<ModuleTensor> {
    match parameter {
        ModuleTensor::Plain(tensor) => Ok(tensor.zeros_like()?.into()),
        ModuleTensor::Sharded(tensor) => Ok(tensor.detach().zeros_like()?.into()),
    }
}

/// What was cut as the parameter was before.
fn cut_as(parameter: &ModuleTensor, state: &ModuleTensor) -> Result<ModuleTensor> {
    match (parameter, state) {
        (ModuleTensor::Sharded(parameter), ModuleTensor::Sharded(state))
            if parameter.metadata().shards_metadata != state.metadata().shards_metadata =>
        {
            Ok(state.resharded(parameter.sharding_spec())?.into())
        }
        _ => Ok(state.clone()),
    }
}

fn stepped(
    optimizer: &impl LocalOptimizer,
    parameter: &mut ModuleTensor,
    gradient: &ModuleTensor,
    state: &mut Vec<ModuleTensor>,
    step: u64,
) -> Result<()> {
    match (parameter, gradient) {
        (ModuleTensor::Plain(parameter), ModuleTensor::Plain(gradient)) => {
            if state.iter().any(|tensor| tensor.plain().is_none()) {
                return Err(lost());
            }
            let plain = |tensor| match tensor {
                ModuleTensor::Plain(tensor) => Some(tensor),
                ModuleTensor::Sharded(_) => None,
            };
            // Taken, not copied: a second owner would keep them from being changed in place.
            let mut own: Vec<Tensor> = state.drain(..).filter_map(plain).collect();
            let (shape, dtype) = (parameter.shape().to_vec(), parameter.dtype());
            let stepped = optimizer.step(parameter, gradient, &mut own, step);
            let mut done = stepped.map_err(Error::from);
            for tensor in std::iter::once(parameter).chain(&mut own) {
                done = done.and(kept(tensor, &shape, dtype));
            }
            state.extend(own.into_iter().map(ModuleTensor::Plain));
            done
        }
        (ModuleTensor::Sharded(parameter), ModuleTensor::Sharded(gradient)) => {
            let gradients: Vec<Tensor> =
                gradient.local_shards().map(|shard| shard.tensor().clone()).collect();
            let mut own: Vec<&mut ShardedTensor> = Vec::with_capacity(state.len());
            for tensor in state {
                match tensor {
                    ModuleTensor::Sharded(tensor) => own.push(tensor),
                    ModuleTensor::Plain(_) => return Err(lost()),
                }
            }
            parameter.modify_shards(|number, _, tensor| {
                let mut taken = Vec::with_capacity(own.len());
                let mut done = own.iter_mut().try_for_each(|state| {
                    taken.push(state.take_shard(number)?);
                    Ok(())
                });
                if done.is_ok() {
                    let stepped = optimizer.step(tensor, &gradients[number], &mut taken, step);
                    done = stepped.map_err(Error::from);
                }
                // All that were taken are put back, whatever has happened.
                for (state, tensor) in own.iter_mut().zip(taken) {
                    done = done.and(state.put_shard(number, tensor));
                }
                done
            })
        }
        _ => Err(lost()),
    }
}

/// An error if an optimizer has made something else of a tensor, as there is for a
/// [shard](crate::Shard). Its elements are gone then, and zeros take their place.
fn kept(tensor: &mut Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    if (tensor.shape(), tensor.dtype()) == (shape, dtype) {
        return Ok(());
    }
    let (got, of) = (tensor.shape(), tensor.dtype());
    let what = format!("an optimizer that makes {got:?} of {of} from {shape:?} of {dtype}");
    let error = Error::refused("step", what, "change elements, and nothing else");
    *tensor = Tensor::zeros(shape, dtype)?;
    Err(error)
}

fn lost() -> Error {
    Error::refused("step", "a state that is not cut as its parameter", "load it anew")
}
