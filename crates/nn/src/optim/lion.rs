use dtensor::{DType, Gradients, LocalError, Tensor};
use dtensor_local::{Element, bf16, f16};

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
        self.slots.check(gradients)?;
        self.slots.each(gradients, |settings, parameter, gradient, kept| {
            let [mean] = kept else { return Ok(()) };
            let factors = Factors {
                lr: settings.lr,
                kept: 1.0 - settings.lr * settings.weight_decay,
                new_in_direction: 1.0 - beta1,
                new_in_mean: 1.0 - beta2,
            };
            match parameter.dtype() {
                DType::F64 => factors.step::<f64>(parameter, gradient, mean),
                DType::F32 => factors.step::<f32>(parameter, gradient, mean),
                DType::Bf16 => factors.step::<bf16>(parameter, gradient, mean),
                // Parameters are floats.
                _ => factors.step::<f16>(parameter, gradient, mean),
            }
        })
    }

    with_slots!();
}

struct Factors {
    lr: f64,
    /// What decay leaves of a parameter.
    kept: f64,
    new_in_direction: f64,
    new_in_mean: f64,
}

impl Factors {
    /// One pass over memory, in place: three tensors are read and two written, and none is made.
    fn step<T: Element + Real>(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        mean: &mut Tensor,
    ) -> Result<(), LocalError> {
        if parameter.is_meta() {
            return Ok(());
        }
        let gradient = gradient.contiguous();
        let gradients = gradient.as_slice::<T>()?.iter();
        let (values, means) = (parameter.as_mut_slice::<T>()?, mean.as_mut_slice::<T>()?);
        for ((value, mean), gradient) in values.iter_mut().zip(means).zip(gradients) {
            let (before, new) = (mean.wide(), gradient.wide());
            let towards = |part: f64| before + part * (new - before);
            let direction = towards(self.new_in_direction);
            // A sign has no sign of zero: without a direction there is no step.
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            *value = T::narrow(value.wide() * self.kept - sign * self.lr);
            *mean = T::narrow(towards(self.new_in_mean));
        }
        Ok(())
    }
}

/// Elements that are computed with in `f64`: memory is what a step waits for.
trait Real: Copy {
    fn wide(self) -> f64;
    fn narrow(wide: f64) -> Self;
}

impl Real for f64 {
    fn wide(self) -> f64 {
        self
    }

    fn narrow(wide: f64) -> f64 {
        wide
    }
}

impl Real for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn narrow(wide: f64) -> f32 {
        wide as f32
    }
}

impl Real for bf16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }

    fn narrow(wide: f64) -> bf16 {
        bf16::from_f64(wide)
    }
}

impl Real for f16 {
    fn wide(self) -> f64 {
        self.to_f64()
    }

    fn narrow(wide: f64) -> f16 {
        f16::from_f64(wide)
    }
}
