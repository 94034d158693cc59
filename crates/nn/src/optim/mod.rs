//! Optimizers. A step is computed on every rank for what it holds, in place and in one pass; nothing is sent.

mod adam;
mod by_name;
mod clip;
mod lion;
mod muon;
mod scaler;
mod schedule;
mod sgd;

use dtensor::{DTensor, Gradients, LocalError, Tensor};

pub use adam::{Adam, AdamW};
pub use by_name::{blank_optimizer_state_dict, load_optimizer_state_dict, optimizer_state_dict};
pub use clip::{clip_grad_norm, clip_grad_norm_by};
pub use lion::Lion;
pub use muon::Muon;
pub use scaler::GradScaler;
pub use schedule::{Constant, Cosine, Linear, Schedule, WarmUp};
pub use sgd::Sgd;

use crate::{Error, Parameter, Result, StateDict, state_dict};

/// What changes parameters by their gradients.
pub trait Optimizer {
    /// One step. Parameters without a gradient stay as they are. All ranks call it.
    ///
    /// Refused, and nothing is changed: a parameter that the optimizer was given twice, and gradients of which none is of
    /// one of its parameters, such as those from before the last step.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate of every group.
    fn learning_rates(&self) -> Vec<f64>;

    /// Sets the learning rate of every group to this part of the one it began with.
    fn scale_learning_rate(&mut self, factor: f64);

    /// Its parameters, each with the number by which [`state_dict`](Optimizer::state_dict) knows it.
    fn numbered_parameters(&self) -> Vec<(String, Parameter)>;

    /// What it remembers, in the layouts of the parameters: by the number of the parameter and the name of the value, as
    /// `3.exp_avg`, and the number of its steps as `3.step`. [`optimizer_state_dict`] gives it by the parameters' names.
    fn state_dict(&self) -> Result<StateDict>;

    /// What [`state_dict`](Optimizer::state_dict) gives when every parameter has had a step, with other values: tensors to
    /// load a checkpoint into, each in the layout that it is needed in.
    fn blank_state_dict(&self) -> Result<StateDict>;

    /// Goes on from what [`state_dict`](Optimizer::state_dict) gave, in whatever layouts. Nothing is changed if there is an
    /// error.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;
}

/// Parameters that are treated alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// The learning rate to begin with.
    pub lr: f64,
    /// The part of itself, times the learning rate, that a parameter loses per step.
    pub weight_decay: f64,
}

impl Group {
    /// Parameters with a learning rate, without decay.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Group {
        Group { parameters, lr, weight_decay: 0.0 }
    }

    /// With decay.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Group {
        self.weight_decay = weight_decay;
        self
    }
}

/// The groups of an optimizer, and for every parameter some tensors of its shape and layout that it remembers.
#[derive(Debug)]
struct Slots {
    groups: Vec<Group>,
    factor: f64,
    names: &'static [&'static str],
    /// Per parameter over all groups; empty until its first gradient comes.
    kept: Vec<Vec<DTensor>>,
    /// Steps that every parameter has made: one that had no gradient has made fewer than others.
    steps: Vec<u64>,
    /// A parameter that is there twice: the gradients of a step are those of the value that it has before it, and so it
    /// would be changed by one group alone.
    twice: Option<Parameter>,
}

impl Slots {
    fn new(groups: Vec<Group>, names: &'static [&'static str]) -> Slots {
        let n = groups.iter().map(|group| group.parameters.len()).sum();
        let twice = find_twice(groups.iter().flat_map(|group| &group.parameters));
        let (kept, steps) = (vec![Vec::new(); n], vec![0; n]);
        Slots { groups, factor: 1.0, names, kept, steps, twice }
    }

    /// Whether there is a step to make.
    fn check(&self, gradients: &Gradients) -> Result<()> {
        self.twice.as_ref().map_or(Ok(()), |twice| Err(given_twice(twice)))?;
        check_some(self.groups.iter().flat_map(|group| &group.parameters), gradients)
    }

    fn numbered_parameters(&self) -> Vec<(String, Parameter)> {
        let parameters = self.groups.iter().flat_map(|group| &group.parameters).enumerate();
        parameters.map(|(number, parameter)| (number.to_string(), parameter.clone())).collect()
    }

    fn learning_rates(&self) -> Vec<f64> {
        self.groups.iter().map(|group| group.lr * self.factor).collect()
    }

    /// Runs a step for every parameter that has a gradient, on what this rank holds of parameter, gradient and slots.
    fn each(
        &mut self,
        gradients: &Gradients,
        mut step: impl FnMut(&Settings, &mut Tensor, &Tensor, &mut [Tensor]) -> Result<(), LocalError>,
    ) -> Result<()> {
        let mut slots = self.kept.iter_mut().zip(&mut self.steps);
        for group in &self.groups {
            for (parameter, (kept, steps)) in group.parameters.iter().zip(&mut slots) {
                let value = parameter.value();
                let Some(gradient) = gradients.get(&value) else { continue };
                let settings = Settings {
                    lr: group.lr * self.factor,
                    weight_decay: group.weight_decay,
                    step: *steps + 1,
                };
                let gradient = gradient.redistribute_layout(value.layout())?;
                if kept.is_empty() {
                    for _ in self.names {
                        kept.push(value.detach().zeros_like()?);
                    }
                }
                // The parameter is changed in place if this was the last that had it.
                drop(value);
                // The slots are taken out, so that nobody else has them while they are changed.
                let mut locals: Vec<Tensor> = Vec::with_capacity(kept.len());
                for slot in kept.iter_mut() {
                    let mut local = None;
                    slot.modify_local(|own| {
                        local =
                            Some(std::mem::replace(own, Tensor::meta(own.shape(), own.dtype())?));
                        Ok(())
                    })?;
                    locals.extend(local);
                }
                let gradient = gradient.to_local();
                let outcome =
                    parameter.modify_local(|own| step(&settings, own, &gradient, &mut locals));
                for (slot, local) in kept.iter_mut().zip(locals) {
                    slot.modify_local(|own| {
                        *own = local;
                        Ok(())
                    })?;
                }
                outcome?;
                *steps += 1;
            }
        }
        Ok(())
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let parameters = self.groups.iter().flat_map(|group| &group.parameters);
        for (number, parameter) in parameters.enumerate().filter(|(n, _)| self.steps[*n] > 0) {
            for (name, tensor) in self.names.iter().zip(&self.kept[number]) {
                state.insert(format!("{number}.{name}"), tensor.clone());
            }
            let value = parameter.value();
            let copies = crate::init::copies(value.mesh());
            let steps = i64::try_from(self.steps[number]).unwrap_or(i64::MAX);
            state.insert(
                format!("{number}.step"),
                dtensor::full(&[], steps, value.mesh(), &copies)?,
            );
        }
        Ok(state)
    }

    fn blank_state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let parameters = self.groups.iter().flat_map(|group| &group.parameters);
        for (number, parameter) in parameters.enumerate() {
            let value = parameter.value().detach();
            for name in self.names {
                state.insert(format!("{number}.{name}"), value.empty_like()?);
            }
            let copies = crate::init::copies(value.mesh());
            state.insert(
                format!("{number}.step"),
                dtensor::full(&[], 0_i64, value.mesh(), &copies)?,
            );
        }
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let n = self.kept.len();
        let (mut all_kept, mut all_steps) = (vec![Vec::new(); n], vec![0; n]);
        let mut n_found = 0;
        let parameters = self.groups.iter().flat_map(|group| &group.parameters);
        for (number, parameter) in parameters.enumerate() {
            let step = format!("{number}.step");
            let Some(steps) = state.get(&step) else { continue };
            if steps.numel() != 1 {
                let (got, want) = (steps.shape().to_vec(), Vec::new());
                return Err(crate::Error::Misshapen { name: step, got, want });
            }
            all_steps[number] = u64::try_from(steps.to_dtype(dtensor::DType::I64)?.item::<i64>()?)
                .map_err(|_| {
                    crate::Error::bad("the number of steps", "negative", "count from 0")
                })?;
            let value = parameter.value();
            for name in self.names {
                let name = format!("{number}.{name}");
                let Some(tensor) = state.get(&name) else {
                    return Err(state_dict::missing(&name, state.keys()));
                };
                all_kept[number].push(state_dict::placed_as(&name, tensor, &value)?);
            }
            n_found += 1 + self.names.len();
        }
        // What is there beside them belongs to other parameters, or to another optimizer.
        if n_found < state.len() {
            let is_known = |name: &String| {
                let (number, name) = name.split_once('.').unwrap_or(("", name));
                let is_name = name == "step" || self.names.contains(&name);
                number.parse().is_ok_and(|number: usize| number < n && all_steps[number] > 0)
                    && is_name
            };
            if let Some(name) = state.keys().find(|name| !is_known(name)) {
                return Err(crate::Error::Unexpected { name: name.clone() });
            }
        }
        (self.kept, self.steps) = (all_kept, all_steps);
        Ok(())
    }
}

/// The first parameter that is there a second time.
fn find_twice<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> Option<Parameter> {
    let mut seen: Vec<&Parameter> = Vec::new();
    for parameter in parameters {
        if seen.iter().any(|other| other.is_same(parameter)) {
            return Some(parameter.clone());
        }
        seen.push(parameter);
    }
    None
}

fn given_twice(parameter: &Parameter) -> Error {
    Error::bad("a parameter", format!("{parameter:?}, twice"), "give each to one group")
}

/// Refuses gradients that are of other parameters, or of values that parameters had before: a step would do nothing.
fn check_some<'a>(
    mut parameters: impl Iterator<Item = &'a Parameter>,
    gradients: &Gradients,
) -> Result<()> {
    if gradients.is_empty() || parameters.any(|own| gradients.get(&own.value()).is_some()) {
        return Ok(());
    }
    let got = format!("{} of other tensors", gradients.len());
    let want =
        "none is of a parameter as it is now: walk back from a loss computed since the last step";
    Err(Error::bad("the number of gradients", got, want))
}

/// What a step of one parameter is made with.
struct Settings {
    lr: f64,
    weight_decay: f64,
    step: u64,
}

/// Implements what all optimizers have in common by their field `slots`.
macro_rules! with_slots {
    () => {
        fn numbered_parameters(&self) -> Vec<(String, crate::Parameter)> {
            self.slots.numbered_parameters()
        }

        fn learning_rates(&self) -> Vec<f64> {
            self.slots.learning_rates()
        }

        fn scale_learning_rate(&mut self, factor: f64) {
            self.slots.factor = factor;
        }

        fn state_dict(&self) -> Result<StateDict> {
            self.slots.state_dict()
        }

        fn blank_state_dict(&self) -> Result<StateDict> {
            self.slots.blank_state_dict()
        }

        fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
            self.slots.load_state_dict(state)
        }
    };
}
use with_slots;
