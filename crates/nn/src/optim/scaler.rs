//! Losses large enough for `f16`.

use dtensor::{DTensor, Gradients};

use super::{Optimizer, clip};
use crate::{Parameter, Result};

/// Multiplies a loss so that small gradients do not vanish in `f16`, and divides the gradients afterwards. A step whose
/// gradients are not all finite is left out, and the factor is halved; after a number of good steps it is doubled. As
/// `torch.amp.GradScaler`.
#[derive(Clone, Debug, PartialEq)]
pub struct GradScaler {
    factor: f64,
    growth_interval: u64,
    good_steps: u64,
}

impl Default for GradScaler {
    fn default() -> GradScaler {
        GradScaler { factor: 65_536.0, growth_interval: 2_000, good_steps: 0 }
    }
}

impl GradScaler {
    /// With a factor to begin with, doubled after so many good steps.
    pub fn new(factor: f64, growth_interval: u64) -> GradScaler {
        GradScaler { factor, growth_interval, good_steps: 0 }
    }

    /// The factor at present.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The loss to walk back from.
    pub fn scale(&self, loss: &DTensor) -> Result<DTensor> {
        Ok(loss.mul(self.factor)?)
    }

    /// Divides the gradients and makes a step, unless some are not finite: says whether it did. All ranks decide alike.
    pub fn step(
        &mut self,
        parameters: &[Parameter],
        mut gradients: Gradients,
        optimizer: &mut dyn Optimizer,
    ) -> Result<bool> {
        if !clip::grad_norm(parameters, &mut gradients)?.is_finite() {
            self.factor /= 2.0;
            self.good_steps = 0;
            return Ok(false);
        }
        for parameter in parameters {
            let leaf = parameter.value();
            if let Some(gradient) = gradients.remove(&leaf) {
                gradients.insert(&leaf, gradient.mul(1.0 / self.factor)?);
            }
        }
        optimizer.step(&gradients)?;
        self.good_steps += 1;
        if self.good_steps >= self.growth_interval {
            (self.factor, self.good_steps) = (self.factor * 2.0, 0);
        }
        Ok(true)
    }
}
