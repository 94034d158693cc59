//! A run whose losses are known: the same model, the same tokens, any mesh.

use std::{collections::BTreeMap, path::Path};

use dtensor::{DType, DeviceMesh, Runner, Tensor, World, detect_anomaly, random};
use dtensor_checkpoint::read_tensors;
use dtensor_nn::{
    AdamW, Error as NnError, Optimizer, Parameter, clip_grad_norm, cross_entropy, load_tensors,
    named_parameters, parameters,
};
use serde_json::{Value, json};

use super::{
    Failure, Outcome,
    args::ModelKind,
    config::Config,
    finite,
    model::{Model, Sizes},
};
use crate::{
    error::{Error, Result},
    output::Out,
};

/// What is known of the run.
struct Known {
    config: Config,
    vocabulary: usize,
    losses: Vec<f64>,
    grad_norms: Vec<f64>,
    init: File,
    tokens: Tensor,
    /// Of the first step.
    gradients: Option<File>,
    last: Option<File>,
    /// Parameters on which the loss does not depend, such as the bias of keys: what is known of their gradients is
    /// rounding, which an optimizer that divides by their size makes large.
    without_gradient: Vec<String>,
}

/// A file with a tensor for every parameter, by names of its own.
struct File {
    path: String,
    tensors: BTreeMap<String, Tensor>,
}

/// What came out of it, on rank 0.
struct Replayed {
    steps: Vec<(f64, f64)>,
    /// Largest difference of a gradient of the first step to the known one, as a part of the largest entry of its tensor.
    gradients: Option<Difference>,
    /// The same of the weights at the end.
    weights: Option<Difference>,
}

/// A largest difference, and the tensor that has it.
#[derive(Clone)]
struct Difference {
    part: f64,
    name: String,
}

pub fn run(config: &Config, directory: &Path) -> Result<()> {
    let known = Known::read(config, directory)?;
    let runner = Runner::new().ranks(config.mesh.size());
    let replayed = runner.run(|world| replay(world, &known));
    let replayed = replayed.map_err(|error| super::readable(&error, config))?;
    let Some(Some(replayed)) = replayed.into_iter().next() else { return Ok(()) };
    let mut out = Out::new();
    let difference = |(a, b): (f64, f64)| no_nan(((a - b) / b).abs());
    let (mut of_losses, mut of_norms) = (0.0_f64, 0.0_f64);
    for (step, (loss, norm)) in replayed.steps.iter().enumerate() {
        of_losses = of_losses.max(difference((*loss, known.losses[step])));
        if let Some(known) = known.grad_norms.get(step) {
            of_norms = of_norms.max(difference((*norm, *known)));
        }
        match config.json {
            true => out.json(&json!({ "step": step, "loss": loss, "grad_norm": norm }))?,
            false => out.line(&format!("step {step:>3}  loss {loss:.6}  gradient {norm:.6}"))?,
        }
    }
    match config.json {
        true => out.json(&json!({
            "mesh": config.mesh.to_string(),
            "strategy": config.strategy.to_string(),
            "loss_rel_diff": of_losses,
            "grad_norm_rel_diff": of_norms,
            "grads0_rel_diff": replayed.gradients.as_ref().map(|worst| worst.part),
            "grads0_worst": replayed.gradients.as_ref().map(|worst| &worst.name),
            "final_rel_diff": replayed.weights.as_ref().map(|worst| worst.part),
            "final_worst": replayed.weights.as_ref().map(|worst| &worst.name),
            "left_out": known.without_gradient,
        })),
        false => {
            let shown = |worst: &Option<Difference>| match worst {
                Some(worst) => format!("{:.2e} ({})", worst.part, worst.name),
                None => "unknown".to_owned(),
            };
            if !known.without_gradient.is_empty() {
                let names = known.without_gradient.join(", ");
                out.line(&format!(
                    "left out, because their gradients are zero but for rounding: {names}"
                ))?;
            }
            out.line(&format!(
                "largest relative differences: losses {of_losses:.2e}, lengths of gradients {of_norms:.2e}, gradients of \
                 the first step {}, weights at the end {}",
                shown(&replayed.gradients),
                shown(&replayed.weights)
            ))
        }
    }
}

impl Known {
    fn read(config: &Config, directory: &Path) -> Result<Known> {
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
        let gradients = optional("grads0.safetensors")?;
        Ok(Known {
            without_gradient: match &gradients {
                Some(gradients) => vanishing(&gradients.tensors)
                    .map_err(|error| Error::usage(error.to_string()))?,
                None => Vec::new(),
            },
            vocabulary: size("vocab")?,
            losses,
            grad_norms: numbers("grad_norms"),
            init: read("init.safetensors")?,
            tokens,
            gradients,
            last: optional("final.safetensors")?,
            config,
        })
    }
}

/// The tensors that are a millionth of the largest at most.
fn vanishing(gradients: &BTreeMap<String, Tensor>) -> Result<Vec<String>, dtensor::LocalError> {
    let mut sizes = Vec::with_capacity(gradients.len());
    for (name, gradient) in gradients {
        sizes.push((name, largest_entry(gradient)?));
    }
    let largest = sizes.iter().map(|(_, size)| *size).fold(0.0, f64::max);
    let vanishes = |(_, size): &&(&String, f64)| *size < 1e-6 * largest;
    Ok(sizes.iter().filter(vanishes).map(|(name, _)| (*name).clone()).collect())
}

fn largest_entry(tensor: &Tensor) -> Result<f64, dtensor::LocalError> {
    tensor.to_dtype(DType::F64)?.abs()?.amax(&[], false)?.item::<f64>()
}

/// What is no number is as wrong as can be, and must not be overlooked by a comparison.
fn no_nan(difference: f64) -> f64 {
    if difference.is_nan() { f64::INFINITY } else { difference }
}

impl File {
    /// Its tensors by the names of a model: one for every parameter, in its shape, and no other.
    fn for_model(&self, model: &Model) -> Outcome<BTreeMap<String, Tensor>> {
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
fn name_in_file(name: &str) -> String {
    let parts = name.split('.').enumerate();
    let parts = parts.filter(|(at, part)| *at != 2 || !["attn", "mlp"].contains(part));
    parts.map(|(_, part)| part).collect::<Vec<_>>().join(".")
}

fn replay(world: &World, known: &Known) -> Outcome<Option<Replayed>> {
    let config = &known.config;
    super::check_ranks(world, &config.mesh)?;
    random::manual_seed(config.seed);
    let mesh = DeviceMesh::from_mesh(world, config.mesh.clone())?;
    let model = Model::new(config, &Sizes { vocabulary: known.vocabulary }, &mesh)?;
    load_tensors(model.module(), &known.init.for_model(&model)?)?;
    let for_model =
        |file: &Option<File>| file.as_ref().map(|file| file.for_model(&model)).transpose();
    let (known_gradients, known_weights) = (for_model(&known.gradients)?, for_model(&known.last)?);
    let learnt = parameters(model.module());
    let group = dtensor_nn::optim::Group::new(learnt.clone(), 1e-2).weight_decay(0.1);
    let mut optimizer = AdamW::of_groups(vec![group]).betas(0.9, 0.95).eps(1e-8);
    let local = |error: dtensor::LocalError| NnError::from(dtensor::Error::from(error));
    let (mut steps, mut of_gradients) = (Vec::new(), None);
    for step in 0..config.steps as usize {
        let tokens = known.tokens.select(0, step.cast_signed()).map_err(local)?;
        let tokens = tokens.to_dtype(DType::I64).map_err(local)?;
        let part = |from: usize| {
            let part = tokens.narrow(1, from, config.seq).map_err(local)?.contiguous();
            config.strategy.place(&part, &mesh).map_err(NnError::from)
        };
        let (tokens, targets) = (part(0)?, part(1)?);
        let number = step as u64;
        let at_step =
            |source: dtensor::Error| Failure::Step { step: number, source: source.into() };
        let learn = || {
            let loss = cross_entropy(&model.logits(&tokens)?, &targets)?;
            let gradients = loss.backward()?;
            Ok((loss, gradients))
        };
        let (loss, mut gradients) = match config.detect_anomaly {
            true => {
                finite::check_parameters(model.module(), number)?;
                detect_anomaly(learn).map_err(at_step)?
            }
            false => learn().map_err(at_step)?,
        };
        if let (0, Some(want)) = (step, &known_gradients) {
            let of = |parameter: &Parameter| gradients.get(&parameter.value()).cloned();
            of_gradients = Some(largest_difference(&model, known, want, of)?);
        }
        let norm = clip_grad_norm(&learnt, &mut gradients, f64::INFINITY)?;
        let loss = f64::from(loss.item::<f32>()?);
        super::check_finite(number, loss, norm)?;
        optimizer.step(&gradients)?;
        steps.push((loss, norm));
    }
    let weights = match &known_weights {
        Some(want) => {
            let of = |parameter: &Parameter| Some(parameter.value().detach());
            Some(largest_difference(&model, known, want, of)?)
        }
        None => None,
    };
    Ok((world.rank() == 0).then_some(Replayed { steps, gradients: of_gradients, weights }))
}

/// Over all parameters, the largest difference as a part of the largest entry of the known tensor.
fn largest_difference(
    model: &Model,
    known: &Known,
    want: &BTreeMap<String, Tensor>,
    of: impl Fn(&Parameter) -> Option<dtensor::DTensor>,
) -> dtensor_nn::Result<Difference> {
    let mut worst = Difference { part: 0.0, name: String::new() };
    for (name, parameter) in named_parameters(model.module()) {
        let (Some(want), Some(got)) = (want.get(&name), of(&parameter)) else {
            let name = format!("gradient of {name}");
            return Err(NnError::Missing { name, nearest: "none".into() });
        };
        let got = got.full_tensor()?;
        let part = || {
            let off = got.to_dtype(DType::F64)?.sub(&want.to_dtype(DType::F64)?)?;
            let part = largest_entry(&off)? / largest_entry(want)?.max(f64::MIN_POSITIVE);
            Ok::<_, dtensor::LocalError>(no_nan(part))
        };
        let part = part().map_err(dtensor::Error::from)?;
        let name = name_in_file(&name);
        if part > worst.part && !known.without_gradient.contains(&name) {
            worst = Difference { part, name };
        }
    }
    Ok(worst)
}
