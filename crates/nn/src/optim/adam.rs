use dtensor::Gradients;
use dtensor_local::nn::AdamW as Kernel;

use super::{Group, Optimizer, Slots, with_slots};
use crate::{Parameter, Result, StateDict};

/// Adam with decay apart from the gradient, as `torch.optim.AdamW`.
#[derive(Debug)]
pub struct AdamW {
    kernel: Kernel,
    slots: Slots,
}

/// Adam, as `torch.optim.Adam`: decay is added to the gradient.
#[derive(Debug)]
pub struct Adam(AdamW);

impl AdamW {
    /// With a learning rate, and else PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8, decay 0.01.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> AdamW {
        AdamW::of_groups(vec![Group::new(parameters, lr).weight_decay(0.01)])
    }

    /// Of groups that differ in learning rate and decay.
    pub fn of_groups(groups: Vec<Group>) -> AdamW {
        let slots = Slots::new(groups, &["exp_avg", "exp_avg_sq"]);
        AdamW { kernel: Kernel::default(), slots }
    }

    /// With these decays of the two means.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> AdamW {
        (self.kernel.beta1, self.kernel.beta2) = (beta1, beta2);
        self
    }

    /// With this added to the root of the second mean.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> AdamW {
        self.kernel.eps = eps;
        self
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.slots.check(gradients)?;
        self.step_some(gradients)
    }

    with_slots!();
}

impl AdamW {
    /// A step of those that have a gradient, be it none of them.
    pub(super) fn step_some(&mut self, gradients: &Gradients) -> Result<()> {
        let kernel = self.kernel;
        self.slots.each(gradients, |settings, parameter, gradient, kept| {
            let [mean, square] = kept else { return Ok(()) };
            let kernel = Kernel { lr: settings.lr, weight_decay: settings.weight_decay, ..kernel };
            kernel.step(parameter, gradient, mean, square, settings.step)
        })
    }
}

impl Adam {
    /// With a learning rate, and else PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8, no decay.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Adam {
        Adam::of_groups(vec![Group::new(parameters, lr)])
    }

    /// Of groups that differ in learning rate and decay.
    pub fn of_groups(groups: Vec<Group>) -> Adam {
        let mut adam = AdamW::of_groups(groups);
        adam.kernel.decoupled = false;
        Adam(adam)
    }

    /// With these decays of the two means.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Adam {
        Adam(self.0.betas(beta1, beta2))
    }

    /// With this added to the root of the second mean.
    #[must_use]
    pub fn eps(self, eps: f64) -> Adam {
        Adam(self.0.eps(eps))
    }
}

impl Optimizer for Adam {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.0.step(gradients)
    }

    fn numbered_parameters(&self) -> Vec<(String, Parameter)> {
        self.0.numbered_parameters()
    }

    fn learning_rates(&self) -> Vec<f64> {
        self.0.learning_rates()
    }

    fn scale_learning_rate(&mut self, factor: f64) {
        self.0.scale_learning_rate(factor);
    }

    fn state_dict(&self) -> Result<StateDict> {
        self.0.state_dict()
    }

    fn blank_state_dict(&self) -> Result<StateDict> {
        self.0.blank_state_dict()
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        self.0.load_state_dict(state)
    }
}
