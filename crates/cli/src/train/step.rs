//! One step of training.

use dtensor::{BackwardOptions, DTensor, DeviceMesh, Gradients};
use dtensor_nn::{
    AdamW, Optimizer, Parameter, clip_grad_norm, cross_entropy, optim::Schedule, parameters,
};

use super::{config::Config, data::Text, model::Model, profile::Parts};

/// A model that learns.
pub struct Trainer {
    pub model: Model,
    pub parameters: Vec<Parameter>,
    pub optimizer: AdamW,
    mesh: DeviceMesh,
}

/// What a step has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub loss: f64,
    pub grad_norm: f64,
}

impl Trainer {
    pub fn new(model: Model, config: &Config, mesh: &DeviceMesh) -> Trainer {
        let parameters = parameters(model.module());
        let (decayed, others) = parameters.iter().cloned().partition(|p| p.value().n_dims() > 1);
        let group = |parameters: Vec<Parameter>, decay: f64| {
            dtensor_nn::optim::Group::new(parameters, config.lr).weight_decay(decay)
        };
        let groups = vec![group(decayed, config.weight_decay), group(others, 0.0)];
        let optimizer = AdamW::of_groups(groups).betas(0.9, 0.95);
        Trainer { model, parameters, optimizer, mesh: mesh.clone() }
    }

    pub fn mesh(&self) -> &DeviceMesh {
        &self.mesh
    }

    /// Learns from the batch of a step. Its parts are timed.
    pub fn step(
        &mut self,
        step: u64,
        text: &Text,
        config: &Config,
        schedule: &dyn Schedule,
        parts: &mut Parts,
    ) -> dtensor_nn::Result<Outcome> {
        schedule.apply(step, &mut self.optimizer);
        let rows = config.batch / config.accumulate;
        let mut gradients = Gradients::default();
        let mut loss_sum = 0.0;
        for part in 0..config.accumulate {
            let rows = part * rows..(part + 1) * rows;
            let (tokens, targets) = parts.time("batch", || {
                text.batch(step, config.seed, rows, config.seq, &config.strategy, &self.mesh)
            })?;
            let loss = parts.time("forward", || {
                let loss = self.loss(&tokens, &targets)?;
                loss_sum += f64::from(loss.item::<f32>()?);
                Ok::<_, dtensor::Error>(loss)
            })?;
            parts.time("backward", || {
                let share = loss.div(config.accumulate as f64)?;
                match config.accumulate {
                    1 => gradients = share.backward()?,
                    _ => {
                        // Contributions of the ranks are added up, and sent once.
                        let options = BackwardOptions::default().unreduced();
                        gradients.accumulate(share.backward_with(&options)?)?;
                    }
                }
                Ok::<_, dtensor::Error>(())
            })?;
        }
        if config.accumulate > 1 {
            parts.time("reduce", || gradients.reduce())?;
        }
        let loss = loss_sum / config.accumulate as f64;
        let grad_norm =
            parts.time("clip", || clip_grad_norm(&self.parameters, &mut gradients, config.clip))?;
        if loss.is_finite() && grad_norm.is_finite() {
            parts.time("optimizer", || self.optimizer.step(&gradients))?;
        }
        Ok(Outcome { loss, grad_norm })
    }

    pub fn loss(&self, tokens: &DTensor, targets: &DTensor) -> dtensor::Result<DTensor> {
        cross_entropy(&self.model.logits(tokens)?, targets)
    }
}
