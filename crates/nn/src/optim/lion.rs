use dtensor::Gradients;

use super::{Group, Optimizer, Slots, with_slots};
use crate::{Parameter, Result, StateDict};

/// Lion, by Chen and others: steps of one size in the direction of the sign of a mean of gradients. One mean is
/// remembered, half of what Adam does.
#[derive(Debug)]
pub struct Lion {
    beta1: f64,
    beta2: f64,
    slots: Slots,
}

impl Lion {
    /// With a learning rate, betas 0.9 and 0.99, and no decay.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Lion {
        Lion::of_groups(vec![Group::new(parameters, lr)])
    }

    /// Of groups that differ in learning rate and decay.
    pub fn of_groups(groups: Vec<Group>) -> Lion {
        Lion { beta1: 0.9, beta2: 0.99, slots: Slots::new(groups, &["exp_avg"]) }
    }

    /// With these decays: of the mean for the direction, and of the one that is remembered.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lion {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }
}

impl Optimizer for Lion {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let (beta1, beta2) = (self.beta1, self.beta2);
        self.slots.each(gradients, |settings, parameter, gradient, kept| {
            let [mean] = kept else { return Ok(()) };
            let direction = mean.lerp(gradient, 1.0 - beta1)?.sign()?;
            let decayed = parameter.mul_scalar(1.0 - settings.lr * settings.weight_decay)?;
            *parameter = decayed.sub(&direction.mul_scalar(settings.lr)?)?;
            *mean = mean.lerp(gradient, 1.0 - beta2)?;
            Ok(())
        })
    }

    with_slots!();
}
