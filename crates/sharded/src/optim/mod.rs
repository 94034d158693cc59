//! Optimizers on the shards of each rank.
//!
//! An optimizer works element by element, so every rank changes its own shards and nothing is sent. Its state
//! is cut as the parameters are: it is a dict of sharded tensors, which is stored and resharded like any other.

mod local;
mod state;

use std::collections::BTreeMap;

use dtensor_local::Tensor;

use crate::{
    Error, Result,
    module::{ShardableModule, StateDict, for_each_tensor_mut},
};

pub use dtensor_local::nn::{AdamW, Sgd};
pub use local::LocalOptimizer;

use state::{ParameterState, check_gradient, check_state, resharded, run, zeros_like};

/// An optimizer of some parameters of a module, sharded or not, with its state.
///
/// ```
/// use std::collections::BTreeMap;
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, module::{ModuleTensor, ShardableModule}, ones,
///     optim::{Sgd, ShardedOptimizer}};
///
/// struct Table(ModuleTensor);
/// impl ShardableModule for Table {
///     fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
///         vec![("table".into(), &self.0)]
///     }
///     fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
///         vec![("table".into(), &mut self.0)]
///     }
/// }
///
/// Runner::threads(2).run(|world| {
///     let rows = ChunkShardingSpec::over_ranks(0, 0..2)?;
///     let mut module = Table(ones(rows, &[3, 2], DType::F32, world)?.into());
///     let gradient = module.0.sharded().unwrap().ones_like()?;
///     let mut optimizer = ShardedOptimizer::new(&module, Sgd { lr: 0.25, ..Sgd::default() });
///     optimizer.step(&mut module, &BTreeMap::from([("table".into(), gradient.into())]))?;
///     let table = module.0.sharded().unwrap();
///     assert_eq!(table.full_tensor()?.to_vec::<f32>()?, [0.75; 6]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardedOptimizer<O> {
    groups: Vec<(O, Vec<String>)>,
    /// By path; made at the first step of a parameter.
    state: BTreeMap<String, ParameterState>,
}

impl<O: LocalOptimizer> ShardedOptimizer<O> {
    /// An optimizer of all tensors of a module.
    pub fn new(module: &dyn ShardableModule, optimizer: O) -> ShardedOptimizer<O> {
        let paths =
            crate::module::named_tensors(module).into_iter().map(|(path, _)| path).collect();
        ShardedOptimizer { groups: vec![(optimizer, paths)], state: BTreeMap::new() }
    }

    /// An optimizer of the tensors at these paths.
    pub fn of_paths(paths: &[&str], optimizer: O) -> ShardedOptimizer<O> {
        let paths = paths.iter().map(ToString::to_string).collect();
        ShardedOptimizer { groups: vec![(optimizer, paths)], state: BTreeMap::new() }
    }

    /// Adds tensors with settings of their own. A tensor is in one group.
    pub fn add_param_group(&mut self, paths: &[&str], optimizer: O) -> Result<()> {
        let is_taken =
            |path: &&&str| self.groups.iter().any(|(_, own)| own.iter().any(|own| own == *path));
        if let Some(path) = paths.iter().find(is_taken) {
            return Err(Error::refused(
                "add_param_group",
                format!("`{path}` is in a group already"),
                "name every parameter once",
            ));
        }
        self.groups.push((optimizer, paths.iter().map(ToString::to_string).collect()));
        Ok(())
    }

    /// The settings of the groups, to be read or changed, as a schedule does.
    pub fn param_groups_mut(&mut self) -> impl Iterator<Item = (&mut O, &[String])> {
        self.groups.iter_mut().map(|(optimizer, paths)| (optimizer, &**paths))
    }

    /// One step of the parameters that have a gradient, which is cut as they are. The others stay as they are,
    /// and so does their state.
    pub fn step(&mut self, module: &mut dyn ShardableModule, gradients: &StateDict) -> Result<()> {
        // First everything that can be wrong, so that nothing is changed by half.
        for (path, own) in crate::module::named_tensors(module) {
            if let Some(gradient) = gradients.get(&path) {
                check_gradient(&path, own, gradient)?;
                let state = self.state.get(&path).map_or(&[][..], |state| &state.tensors);
                state.iter().try_for_each(|tensor| check_state(&path, own, tensor))?;
            }
        }
        for_each_tensor_mut(module, &mut |path, parameter| {
            let in_group = |(_, paths): &&(O, Vec<String>)| paths.iter().any(|own| own == path);
            let Some((optimizer, _)) = self.groups.iter().find(in_group) else { return Ok(()) };
            let Some(gradient) = gradients.get(path) else { return Ok(()) };
            let fits = |state: &ParameterState| {
                state.tensors.iter().all(|tensor| check_gradient(path, parameter, tensor).is_ok())
            };
            let mut state = match self.state.remove(path) {
                Some(state) if fits(&state) => state,
                Some(state) => resharded(state, parameter)?,
                None => ParameterState {
                    step: 0,
                    tensors: zeros_like(parameter, optimizer.state_names().len())?,
                },
            };
            state.step += 1;
            let changed = run(optimizer, parameter, gradient, &mut state);
            self.state.insert(path.into(), state);
            changed
        })
    }

    /// What the optimizer remembers: `<path>.<name>` for every parameter that has had a step, cut as the
    /// parameter is, and the number of steps as `<path>.step`.
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut dict = StateDict::new();
        for (optimizer, paths) in &self.groups {
            for path in paths {
                let Some(state) = self.state.get(path) else { continue };
                let step = i64::try_from(state.step).unwrap_or(i64::MAX);
                dict.insert(format!("{path}.step"), Tensor::full(&[], step)?.into());
                for (name, tensor) in optimizer.state_names().iter().zip(&state.tensors) {
                    dict.insert(format!("{path}.{name}"), tensor.clone());
                }
            }
        }
        Ok(dict)
    }

    /// Takes up what an optimizer with the same groups remembered. If the parameters have been cut in another
    /// way since, the next step reshards it.
    pub fn load_state_dict(&mut self, dict: &StateDict) -> Result<()> {
        const OP: &str = "load_state_dict";
        let mut loaded = BTreeMap::new();
        for (optimizer, paths) in &self.groups {
            for path in paths {
                let Some(step) = dict.get(&format!("{path}.step")) else { continue };
                let step = step.plain().map(Tensor::item::<i64>).transpose()?.unwrap_or(0);
                let names = optimizer.state_names().iter();
                let tensors = names.map(|name| {
                    let path = format!("{path}.{name}");
                    let found = dict.get(&path).cloned();
                    found.ok_or_else(|| Error::NoSuchName { op: OP.into(), path: path.into() })
                });
                let tensors = tensors.collect::<Result<_>>()?;
                let step = u64::try_from(step).unwrap_or(0);
                loaded.insert(path.clone(), ParameterState { step, tensors });
            }
        }
        self.state = loaded;
        Ok(())
    }
}
