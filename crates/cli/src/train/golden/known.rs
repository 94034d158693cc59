//! What is known of a run.

use std::{collections::BTreeMap, path::Path};

use dtensor::Tensor;
use dtensor_checkpoint::read_tensors;
use dtensor_nn::named_parameters;
use serde_json::Value;

use super::super::{Failure, Outcome, args::ModelKind, config::Config, model::Model};
use crate::error::{Error, Result};

/// A run that is known.
pub struct Known {
    pub config: Config,
    pub vocabulary: usize,
    pub losses: Vec<f64>,
    pub grad_norms: Vec<f64>,
    pub init: File,
    pub tokens: Tensor,
    /// Of the first step.
    pub gradients: Option<File>,
    /// The weights at the end.
    pub last: Option<File>,
}

/// A file with a tensor for every parameter, by names of its own.
pub struct File {
    path: String,
    tensors: BTreeMap<String, Tensor>,
}

impl Known {
    pub fn read(config: &Config, directory: &Path) -> Result<Known> {
        let path = directory.join("run.json");
        let broken = |why: String| Error::usage(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| broken(error.to_string()))?;
        let run: Value = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        let size = |name: &str| {
            let value = run[name].as_u64().and_then(|value| usize::try_from(value).ok());
            value.ok_or_else(|| broken(format!("`{name}` is missing")))
        };
        let numbers = |name: &str| -> Vec<f64> {
            run[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let read = |name: &str| {
            let path = directory.join(name).display().to_string();
            let tensors = read_tensors(&path).map_err(|error| Error::usage(error.to_string()))?;
            Ok::<_, Error>(File { path, tensors })
        };
        let optional = |name: &str| match directory.join(name).exists() {
            true => read(name).map(Some),
            false => Ok(None),
        };
        let mut tokens = read("tokens.safetensors")?;
        let tokens = tokens.tensors.remove("tokens").ok_or_else(|| {
            Error::usage(format!(
                "{}: there is no `tokens`",
                directory.join("tokens.safetensors").display()
            ))
        })?;
        let steps = size("steps")?;
        if tokens.n_dims() != 3 || tokens.shape()[0] < steps {
            let message =
                format!("tokens of shape {:?} are not [steps, batch, seq + 1]", tokens.shape());
            return Err(Error::usage(message));
        }
        let losses = numbers("losses");
        if losses.len() < steps {
            return Err(broken(format!("{} losses for {steps} steps", losses.len())));
        }
        let mut config = config.clone();
        config.model = ModelKind::Gpt;
        (config.layers, config.dim, config.heads) = (size("layers")?, size("dim")?, size("heads")?);
        (config.seq, config.batch, config.steps) = (size("seq")?, size("batch")?, steps as u64);
        Ok(Known {
            vocabulary: size("vocab")?,
            losses,
            grad_norms: numbers("grad_norms"),
            init: read("init.safetensors")?,
            tokens,
            gradients: optional("grads0.safetensors")?,
            last: optional("final.safetensors")?,
            config,
        })
    }
}

impl File {
    /// Its tensors by the names of a model: one for every parameter, in its shape, and no other.
    pub fn for_model(&self, model: &Model) -> Outcome<BTreeMap<String, Tensor>> {
        let wrong = |what: String| Failure::Known(format!("{}: {what}", self.path));
        let mut tensors = BTreeMap::new();
        let mut others: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        for (name, parameter) in named_parameters(model.module()) {
            let known = name_in_file(&name);
            let Some(tensor) = self.tensors.get(&known) else {
                return Err(wrong(format!("there is no `{known}`")));
            };
            let (got, want) = (tensor.shape(), parameter.value());
            if got != want.shape() {
                let want = want.shape();
                return Err(wrong(format!(
                    "`{known}` has shape {got:?}, the model wants {want:?}"
                )));
            }
            others.retain(|other| *other != known);
            tensors.insert(name, tensor.clone());
        }
        match others.first() {
            Some(other) => Err(wrong(format!("the model has no `{other}`"))),
            None => Ok(tensors),
        }
    }
}

/// The run has its blocks flat; here attention and products are modules.
pub fn name_in_file(name: &str) -> String {
    let parts = name.split('.').enumerate();
    let parts = parts.filter(|(at, part)| *at != 2 || !["attn", "mlp"].contains(part));
    parts.map(|(_, part)| part).collect::<Vec<_>>().join(".")
}
