//! Optimizers on the shards of each rank.
//!
//! An optimizer works element by element, so every rank changes its own shards and nothing is sent. Its state
//! is cut as the parameters are: it is a dict of sharded tensors, which is stored and resharded like any other.

mod local;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use dtensor_local::Tensor;

use crate::{
    Error, Result,
    module::{ModuleTensor, ShardableModule, StateDict, for_each_tensor_mut},
};

pub use dtensor_local::nn::{AdamW, Sgd};
pub use local::LocalOptimizer;

use state::{ParameterState, check_gradient, check_state};

/// An optimizer of some parameters of a module, sharded or not, with its state.
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
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
    /// and so does their state. Where settings have been changed so that more is remembered, that begins with this
    /// step.
    ///
    /// An optimizer that fails, or makes a tensor of another size, ends the step with its error. Parameters
    /// before that one have had theirs; of that one, the number of steps and the sizes stay.
    pub fn step(&mut self, module: &mut dyn ShardableModule, gradients: &StateDict) -> Result<()> {
        // First everything that can be wrong, so that nothing is changed by half.
        for (path, own) in crate::module::named_tensors(module) {
            if let Some(gradient) = gradients.get(&path) {
                check_gradient(&path, own, gradient)?;
                let mut state = self.state.get(&path).into_iter().flat_map(|s| s.tensors.values());
                state.try_for_each(|tensor| check_state(&path, own, tensor))?;
            }
        }
        for_each_tensor_mut(module, &mut |path, parameter| {
            let in_group = |(_, paths): &&(O, Vec<String>)| paths.iter().any(|own| own == path);
            let Some((optimizer, _)) = self.groups.iter().find(in_group) else { return Ok(()) };
            let Some(gradient) = gradients.get(path) else { return Ok(()) };
            let state = self.state.entry(path.into()).or_default();
            let done = state.run(optimizer, parameter, gradient);
            if state.is_new() {
                self.state.remove(path);
            }
            done
        })
    }

    /// What the optimizer remembers: `<path>.<name>` for every parameter that has had a step, cut as the
    /// parameter is, and the number of steps as `<path>.step`.
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut dict = StateDict::new();
        for path in self.groups.iter().flat_map(|(_, paths)| paths) {
            let Some(state) = self.state.get(path) else { continue };
            let step = i64::try_from(state.step).unwrap_or(i64::MAX);
            dict.insert(format!("{path}.step"), Tensor::full(&[], step)?.into());
            for (name, tensor) in &state.tensors {
                dict.insert(format!("{path}.{name}"), tensor.clone());
            }
        }
        Ok(dict)
    }

    /// Takes up what an optimizer with the same groups remembered. If the parameters have been cut in another
    /// way since, the next step reshards it.
    ///
    /// All of the dict is taken, or nothing: what is of no parameter of this optimizer, a state without its
    /// number of steps, and steps that are no number are errors.
    pub fn load_state_dict(&mut self, dict: &StateDict) -> Result<()> {
        let mut left: BTreeSet<&str> = dict.keys().map(String::as_str).collect();
        let mut loaded = BTreeMap::new();
        for (optimizer, paths) in &self.groups {
            for path in paths {
                let mut state = ParameterState::default();
                for name in optimizer.all_state_names() {
                    let key = format!("{path}.{name}");
                    if let Some(tensor) = dict.get(&key) {
                        left.remove(&*key);
                        state.tensors.insert(name, detached(tensor));
                    }
                }
                let key = format!("{path}.step");
                match dict.get(&key) {
                    // It has not had a step.
                    None if state.tensors.is_empty() => continue,
                    None => return Err(no_such(&key)),
                    Some(step) => state.step = n_steps(&key, step)?,
                }
                left.remove(&*key);
                let mut needed = optimizer.state_names().iter();
                if let Some(name) = needed.find(|name| !state.tensors.contains_key(*name)) {
                    return Err(no_such(&format!("{path}.{name}")));
                }
                loaded.insert(path.clone(), state);
            }
        }
        match left.first() {
            None => self.state = loaded,
            Some(key) => {
                let what = format!("`{key}` is of no parameter of this optimizer");
                let way_out = "load with the groups and the kind of optimizer it was saved with";
                return Err(Error::refused(LOAD, what, way_out));
            }
        }
        Ok(())
    }
}

const LOAD: &str = "load_state_dict";

fn no_such(key: &str) -> Error {
    Error::NoSuchName { op: LOAD.into(), path: key.into() }
}

/// A state is not differentiated, whoever made it.
fn detached(tensor: &ModuleTensor) -> ModuleTensor {
    match tensor {
        ModuleTensor::Plain(tensor) => tensor.clone().into(),
        ModuleTensor::Sharded(tensor) => tensor.detach().into(),
    }
}

/// How many steps a stored count says.
fn n_steps(key: &str, stored: &ModuleTensor) -> Result<u64> {
    let bad = |what: &str| {
        let what = format!("`{key}` is {what}, not a number of steps");
        Error::refused(LOAD, what, "store it as one integer, whole on every rank")
    };
    let step = stored.plain().ok_or_else(|| bad("a sharded tensor"))?;
    let step = step.item::<i64>().map_err(|error| bad(&format!("no integer ({error})")))?;
    u64::try_from(step).map_err(|_| bad(&step.to_string()))
}
