//! Optimizers. A step is computed on every rank for what it holds, in place and in one pass; nothing is sent.

mod adam;
mod clip;
mod lion;
mod muon;
mod scaler;
mod schedule;
mod sgd;

use dtensor::{DTensor, Gradients, LocalError, Tensor};

pub use adam::{Adam, AdamW};
pub use clip::clip_grad_norm;
pub use lion::Lion;
pub use muon::Muon;
pub use scaler::GradScaler;
pub use schedule::{Constant, Cosine, Linear, Schedule, WarmUp};
pub use sgd::Sgd;

use crate::{Parameter, Result, StateDict};

/// What changes parameters by their gradients.
pub trait Optimizer {
    /// One step. Parameters without a gradient stay as they are. All ranks call it.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate of every group.
    fn learning_rates(&self) -> Vec<f64>;

    /// Sets the learning rate of every group to this part of the one it began with.
    fn scale_learning_rate(&mut self, factor: f64);

    /// What it remembers, in the layouts of the parameters: by the number of the parameter and the name of the value, as
    /// `3.exp_avg`, and the number of steps as `step`.
    fn state_dict(&self) -> Result<StateDict>;

    /// Goes on from what [`state_dict`](Optimizer::state_dict) gave, in whatever layouts.
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
    /// Steps that were made.
    steps: u64,
    names: &'static [&'static str],
    /// Per parameter over all groups; empty until its first gradient comes.
    kept: Vec<Vec<DTensor>>,
}

impl Slots {
    fn new(groups: Vec<Group>, names: &'static [&'static str]) -> Slots {
        let n = groups.iter().map(|group| group.parameters.len()).sum();
        Slots { groups, factor: 1.0, steps: 0, names, kept: vec![Vec::new(); n] }
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
        self.steps += 1;
        let mut number = 0;
        for group in &self.groups {
            let settings = Settings {
                lr: group.lr * self.factor,
                weight_decay: group.weight_decay,
                step: self.steps,
            };
            for parameter in &group.parameters {
                let kept = &mut self.kept[number];
                number += 1;
                let value = parameter.value();
                let Some(gradient) = gradients.get(&value) else { continue };
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
            }
        }
        Ok(())
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for (number, kept) in self.kept.iter().enumerate() {
            for (name, tensor) in self.names.iter().zip(kept) {
                state.insert(format!("{number}.{name}"), tensor.clone());
            }
        }
        let first = self.groups.iter().flat_map(|group| &group.parameters).next();
        if let Some(parameter) = first {
            let value = parameter.value();
            let copies = vec![dtensor::Placement::Replicate; value.mesh().n_axes()];
            let steps = i64::try_from(self.steps).unwrap_or(i64::MAX);
            state.insert("step".to_owned(), dtensor::full(&[], steps, value.mesh(), &copies)?);
        }
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let mut number = 0;
        let mut loaded = Vec::with_capacity(self.kept.len());
        for parameter in self.groups.iter().flat_map(|group| &group.parameters) {
            let value = parameter.value();
            let mut kept = Vec::new();
            for name in self.names {
                let name = format!("{number}.{name}");
                let Some(tensor) = state.get(&name) else { break };
                if tensor.shape() != value.shape() {
                    let (got, want) = (tensor.shape().to_vec(), value.shape().to_vec());
                    return Err(crate::Error::Misshapen { name, got, want });
                }
                let tensor = tensor.to_dtype(value.dtype())?;
                kept.push(tensor.redistribute_layout(value.layout())?);
            }
            if !kept.is_empty() && kept.len() != self.names.len() {
                let name = format!("{number}.{}", self.names[kept.len()]);
                return Err(crate::Error::Missing { name, nearest: "none".to_owned() });
            }
            loaded.push(kept);
            number += 1;
        }
        let Some(steps) = state.get("step") else {
            return Err(crate::Error::Missing { name: "step".into(), nearest: "none".into() });
        };
        self.steps = u64::try_from(steps.item::<i64>()?).unwrap_or(0);
        self.kept = loaded;
        Ok(())
    }
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
        fn learning_rates(&self) -> Vec<f64> {
            self.slots.learning_rates()
        }

        fn scale_learning_rate(&mut self, factor: f64) {
            self.slots.factor = factor;
        }

        fn state_dict(&self) -> Result<StateDict> {
            self.slots.state_dict()
        }

        fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
            self.slots.load_state_dict(state)
        }
    };
}
use with_slots;
