//! Learning rates that change.

use super::Optimizer;

/// A learning rate over time, as a part of the one that the optimizer began with.
pub trait Schedule {
    /// In step `step`, counted from 0.
    fn factor(&self, step: u64) -> f64;

    /// Sets it for the next step.
    fn apply(&self, step: u64, optimizer: &mut dyn Optimizer) {
        optimizer.scale_learning_rate(self.factor(step));
    }
}

/// Always the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant;

/// Along a line from one part to another, and then constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// In the first step.
    pub from: f64,
    /// In step `steps` and after it.
    pub to: f64,
    /// How long it takes.
    pub steps: u64,
}

/// Along half a cosine from 1 to `to`, and then constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    /// In step `steps` and after it.
    pub to: f64,
    /// How long it takes.
    pub steps: u64,
}

/// Along a line from nothing to what another schedule begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp<S> {
    /// How long it takes.
    pub steps: u64,
    /// What comes then.
    pub then: S,
}

impl Schedule for Constant {
    fn factor(&self, _: u64) -> f64 {
        1.0
    }
}

impl Schedule for Linear {
    fn factor(&self, step: u64) -> f64 {
        self.from + (self.to - self.from) * progress(step, self.steps)
    }
}

impl Schedule for Cosine {
    fn factor(&self, step: u64) -> f64 {
        let half = (1.0 + (std::f64::consts::PI * progress(step, self.steps)).cos()) / 2.0;
        self.to + (1.0 - self.to) * half
    }
}

impl<S: Schedule> Schedule for WarmUp<S> {
    fn factor(&self, step: u64) -> f64 {
        match step.checked_sub(self.steps) {
            Some(step) => self.then.factor(step),
            None => self.then.factor(0) * (step + 1) as f64 / (self.steps + 1) as f64,
        }
    }
}

fn progress(step: u64, steps: u64) -> f64 {
    if steps == 0 { 1.0 } else { (step.min(steps)) as f64 / steps as f64 }
}
