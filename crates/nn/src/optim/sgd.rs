use dtensor::Gradients;
use dtensor_local::nn::Sgd as Kernel;

use super::{Group, Optimizer, Slots, with_slots};
use crate::{Error, Parameter, Result, StateDict};

/// Descent along the gradient, as `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    kernel: Kernel,
    slots: Slots,
}

impl Sgd {
    /// With a learning rate.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Sgd {
        Sgd::of_groups(vec![Group::new(parameters, lr)])
    }

    /// Of groups that differ in learning rate and decay.
    pub fn of_groups(groups: Vec<Group>) -> Sgd {
        Sgd { kernel: Kernel::default(), slots: Slots::new(groups, &[]) }
    }

    /// With so much of the last direction.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Sgd {
        self.kernel.momentum = momentum;
        let names: &[&str] = if momentum == 0.0 { &[] } else { &["momentum_buffer"] };
        self.slots = Slots::new(std::mem::take(&mut self.slots.groups), names);
        self
    }

    /// With a look ahead along the direction, for which there must be [momentum](Sgd::momentum): without, a step is refused.
    #[must_use]
    pub fn nesterov(mut self) -> Sgd {
        self.kernel.nesterov = true;
        self
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let kernel = self.kernel;
        if kernel.nesterov && kernel.momentum == 0.0 {
            let want = "nesterov looks ahead along it: set momentum, or leave nesterov out";
            return Err(Error::bad("the momentum of Sgd", kernel.momentum, want));
        }
        self.slots.check(gradients)?;
        self.slots.each(gradients, |settings, parameter, gradient, kept| {
            let kernel = Kernel { lr: settings.lr, weight_decay: settings.weight_decay, ..kernel };
            kernel.step(parameter, gradient, kept.first_mut(), settings.step)
        })
    }

    with_slots!();
}
