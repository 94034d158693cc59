//! What an optimizer remembers, by the names of its parameters.
//!
//! An optimizer numbers its parameters, and the numbers change when a layer is added or a group is made. Names do not: a checkpoint
//! should have those.

use std::collections::BTreeMap;

use super::Optimizer;
use crate::{Error, Module, Result, StateDict, named_parameters};

/// What an optimizer of the parameters of `module` remembers: by the name of the parameter and that of the value, as
/// `layers.0.weight.exp_avg`.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Runner};
/// use dtensor_nn::{AdamW, Forward, Linear, load_optimizer_state_dict, optimizer_state_dict, parameters};
/// # use dtensor_nn::Optimizer;
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let layer = Linear::new(3, 2, true, DType::F32, &mesh)?;
///     let mut optimizer = AdamW::new(parameters(&layer), 1e-3);
///     let x = dtensor::ones(&[4, 3], DType::F32, &mesh, &[dtensor::Placement::Replicate])?;
///     optimizer.step(&layer.call(&x)?.sum(&[], false)?.backward()?)?;
///
///     let state = optimizer_state_dict(&layer, &optimizer)?;
///     assert!(state.contains_key("weight.exp_avg") && state.contains_key("bias.step"));
///     load_optimizer_state_dict(&layer, &mut optimizer, &state)?;
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn optimizer_state_dict(module: &dyn Module, optimizer: &dyn Optimizer) -> Result<StateDict> {
    Names::new(module, optimizer)?.to_names(optimizer.state_dict()?)
}

/// As [`Optimizer::blank_state_dict`], by names: tensors to load a checkpoint into.
pub fn blank_optimizer_state_dict(
    module: &dyn Module,
    optimizer: &dyn Optimizer,
) -> Result<StateDict> {
    Names::new(module, optimizer)?.to_names(optimizer.blank_state_dict()?)
}

/// Goes on from what [`optimizer_state_dict`] gave, maybe of other groups or another order of parameters. Nothing is changed if
/// there is an error.
pub fn load_optimizer_state_dict(
    module: &dyn Module,
    optimizer: &mut dyn Optimizer,
    state: &StateDict,
) -> Result<()> {
    let names = Names::new(module, optimizer)?;
    let numbered = names.to_numbers(state)?;
    optimizer.load_state_dict(&numbered).map_err(|error| names.in_words(error))
}

/// The numbers of an optimizer's parameters, and their names.
struct Names {
    by_number: BTreeMap<String, String>,
    by_name: BTreeMap<String, String>,
}

impl Names {
    fn new(module: &dyn Module, optimizer: &dyn Optimizer) -> Result<Names> {
        let named = named_parameters(module);
        let mut names = Names { by_number: BTreeMap::new(), by_name: BTreeMap::new() };
        for (number, parameter) in optimizer.numbered_parameters() {
            let Some((name, _)) = named.iter().find(|(_, own)| own.is_same(&parameter)) else {
                let want = "give the module whose parameters the optimizer has";
                return Err(Error::bad("the number of a parameter without a name", number, want));
            };
            names.by_name.insert(name.clone(), number.clone());
            names.by_number.insert(number, name.clone());
        }
        Ok(names)
    }

    fn to_names(&self, numbered: StateDict) -> Result<StateDict> {
        let named = |(key, value): (String, _)| Ok((renamed(&key, &self.by_number)?, value));
        numbered.into_iter().map(named).collect()
    }

    fn to_numbers(&self, named: &StateDict) -> Result<StateDict> {
        let numbered =
            |(key, value): (&String, &_)| Ok((renamed(key, &self.by_name)?, Clone::clone(value)));
        named.iter().map(numbered).collect()
    }

    /// What the optimizer says of a number, said of the name.
    fn in_words(&self, mut error: Error) -> Error {
        if let Error::Missing { name, .. }
        | Error::Unexpected { name }
        | Error::Misshapen { name, .. } = &mut error
            && let Ok(known) = renamed(name, &self.by_number)
        {
            *name = known;
        }
        error
    }
}

/// A key with another word for the parameter; the name of the value, after the last dot, stays.
fn renamed(key: &str, words: &BTreeMap<String, String>) -> Result<String> {
    let (parameter, value) = key.rsplit_once('.').unwrap_or((key, ""));
    match words.get(parameter) {
        Some(word) => Ok(format!("{word}.{value}")),
        None => Err(Error::Unexpected { name: key.to_owned() }),
    }
}
