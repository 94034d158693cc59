//! One rank's part in a known run.

use std::collections::BTreeMap;

use dtensor::{DTensor, DType, DeviceMesh, Gradients, Tensor, World, detect_anomaly, random};
use dtensor_nn::{
    AdamW, Error as NnError, Optimizer, Parameter, clip_grad_norm, cross_entropy, load_tensors,
    named_parameters, parameters,
};

use super::{
    super::{
        Failure, Outcome, finite,
        model::{Model, Sizes},
    },
    difference::{Difference, largest_difference, no_nan, vanishing},
    known::Known,
};

/// What came out of it: the same on every rank.
pub struct Replayed {
    /// Largest relative difference of a loss to the known one.
    pub losses: f64,
    /// The same of the lengths of gradients.
    pub grad_norms: f64,
    /// Of the gradients of the first step.
    pub gradients: Option<Difference>,
    /// Of the weights at the end.
    pub weights: Option<Difference>,
    /// Parameters on which the loss does not depend, by their names in files.
    pub left_out: Vec<String>,
}

/// Replays the run; `say` is told the loss and the length of the gradient of every step, on rank 0.
pub fn replay(world: &World, known: &Known, say: impl Fn(usize, f64, f64)) -> Outcome<Replayed> {
    let config = &known.config;
    super::super::check_ranks(world, &config.mesh)?;
    random::manual_seed(config.seed);
    let mesh = DeviceMesh::from_mesh(world, config.mesh.clone())?;
    let model = Model::new(config, &Sizes { vocabulary: known.vocabulary }, &mesh)?;
    load_tensors(model.module(), &known.init.for_model(&model)?)?;
    let for_model = |file: &Option<_>| {
        file.as_ref().map(|file: &super::known::File| file.for_model(&model)).transpose()
    };
    let (known_gradients, known_weights) = (for_model(&known.gradients)?, for_model(&known.last)?);
    let learnt = parameters(model.module());
    let group = dtensor_nn::optim::Group::new(learnt.clone(), 1e-2).weight_decay(0.1);
    let mut optimizer = AdamW::of_groups(vec![group]).betas(0.9, 0.95).eps(1e-8);
    let mut replayed = Replayed {
        losses: 0.0,
        grad_norms: 0.0,
        gradients: None,
        weights: None,
        left_out: Vec::new(),
    };
    for step in 0..config.steps as usize {
        let (tokens, targets) = batch(known, step, &mesh)?;
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
        if step == 0 {
            replayed.left_out = match &known_gradients {
                Some(known) => vanishing(known),
                None => vanishing(&whole(&model, &gradients)?),
            }
            .map_err(dtensor::Error::from)?;
            if let Some(want) = &known_gradients {
                let of = |parameter: &Parameter| gradients.get(&parameter.value()).cloned();
                let worst = largest_difference(&model, &replayed.left_out, want, of)?;
                replayed.gradients = Some(worst);
            }
        }
        let norm = clip_grad_norm(&learnt, &mut gradients, f64::INFINITY)?;
        let loss = f64::from(loss.item::<f32>()?);
        super::super::check_finite(number, loss, norm)?;
        optimizer.step(&gradients)?;
        if world.rank() == 0 {
            say(step, loss, norm);
        }
        let difference = |got: f64, want: f64| no_nan(((got - want) / want).abs());
        replayed.losses = replayed.losses.max(difference(loss, known.losses[step]));
        if let Some(known) = known.grad_norms.get(step) {
            replayed.grad_norms = replayed.grad_norms.max(difference(norm, *known));
        }
    }
    if let Some(want) = &known_weights {
        let of = |parameter: &Parameter| Some(parameter.value().detach());
        replayed.weights = Some(largest_difference(&model, &replayed.left_out, want, of)?);
    }
    Ok(replayed)
}

/// Tokens of a step, and those that follow them.
fn batch(known: &Known, step: usize, mesh: &DeviceMesh) -> dtensor_nn::Result<(DTensor, DTensor)> {
    let local = |error: dtensor::LocalError| NnError::from(dtensor::Error::from(error));
    let tokens = known.tokens.select(0, step.cast_signed()).map_err(local)?;
    let tokens = tokens.to_dtype(DType::I64).map_err(local)?;
    let part = |from: usize| {
        let part = tokens.narrow(1, from, known.config.seq).map_err(local)?.contiguous();
        known.config.strategy.place(&part, mesh).map_err(NnError::from)
    };
    Ok((part(0)?, part(1)?))
}

/// The gradients of all parameters, on every rank.
fn whole(model: &Model, gradients: &Gradients) -> dtensor_nn::Result<BTreeMap<String, Tensor>> {
    let mut tensors = BTreeMap::new();
    for (name, parameter) in named_parameters(model.module()) {
        if let Some(gradient) = gradients.get(&parameter.value()) {
            tensors.insert(name, gradient.full_tensor()?);
        }
    }
    Ok(tensors)
}
