//! What is remembered of one parameter.

use dtensor_local::Tensor;

use super::LocalOptimizer;
use crate::{Error, Result, ShardedTensor, module::ModuleTensor};

#[derive(Clone, Debug)]
pub(super) struct ParameterState {
    pub(super) step: u64,
    pub(super) tensors: Vec<ModuleTensor>,
}

/// A gradient is whole, or cut, as its parameter is.
pub(super) fn check_gradient(path: &str, parameter: &ModuleTensor, gradient: &ModuleTensor) -> Result<()> {
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
pub(super) fn check_state(path: &str, parameter: &ModuleTensor, state: &ModuleTensor) -> Result<()> {
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

pub(super) fn zeros_like(parameter: &ModuleTensor, n: usize) -> Result<Vec<ModuleTensor>> {
    let zeros = |_| match parameter {
        ModuleTensor::Plain(tensor) => Ok(tensor.zeros_like()?.into()),
        ModuleTensor::Sharded(tensor) => Ok(tensor.detach().zeros_like()?.into()),
    };
    (0..n).map(zeros).collect()
}

/// State that was cut as the parameter was before.
pub(super) fn resharded(state: ParameterState, parameter: &ModuleTensor) -> Result<ParameterState> {
    let there = |tensor: ModuleTensor| match (tensor, parameter) {
        (ModuleTensor::Sharded(tensor), ModuleTensor::Sharded(parameter)) => {
            Ok(tensor.resharded(parameter.sharding_spec())?.into())
        }
        _ => Err(lost()),
    };
    let tensors = state.tensors.into_iter().map(there).collect::<Result<_>>()?;
    Ok(ParameterState { step: state.step, tensors })
}

pub(super) fn run(
    optimizer: &impl LocalOptimizer,
    parameter: &mut ModuleTensor,
    gradient: &ModuleTensor,
    state: &mut ParameterState,
) -> Result<()> {
    let step = state.step;
    match (parameter, gradient) {
        (ModuleTensor::Plain(parameter), ModuleTensor::Plain(gradient)) => {
            let mut own = Vec::with_capacity(state.tensors.len());
            for tensor in state.tensors.drain(..) {
                match tensor {
                    ModuleTensor::Plain(tensor) => own.push(tensor),
                    ModuleTensor::Sharded(_) => return Err(lost()),
                }
            }
            let done = optimizer.step(parameter, gradient, &mut own, step);
            state.tensors = own.into_iter().map(ModuleTensor::Plain).collect();
            Ok(done?)
        }
        (ModuleTensor::Sharded(parameter), ModuleTensor::Sharded(gradient)) => {
            let gradients: Vec<Tensor> =
                gradient.local_shards().map(|shard| shard.tensor().clone()).collect();
            let mut own: Vec<&mut ShardedTensor> = Vec::with_capacity(state.tensors.len());
            for tensor in &mut state.tensors {
                match tensor {
                    ModuleTensor::Sharded(tensor) => own.push(tensor),
                    ModuleTensor::Plain(_) => return Err(lost()),
                }
            }
            parameter.modify_shards(|number, _, tensor| {
                let mut taken = Vec::with_capacity(own.len());
                for state in &mut own {
                    taken.push(state.take_shard(number)?);
                }
                let done = optimizer.step(tensor, &gradients[number], &mut taken, step);
                for (state, tensor) in own.iter_mut().zip(taken) {
                    state.put_shard(number, tensor)?;
                }
                Ok(done?)
            })
        }
        _ => Err(lost()),
    }
}

fn lost() -> Error {
    Error::refused("step", "a state that is not cut as its parameter", "load it anew")
}
