//! What an optimizer does with the elements of one rank.

use dtensor_local::{
    LocalError, Tensor,
    nn::{AdamW, Sgd},
};

/// One step of a tensor in the memory of one rank: whatever works element by element.
pub trait LocalOptimizer {
    /// The names of what is remembered for every element, with these settings.
    fn state_names(&self) -> &'static [&'static str];

    /// The names of what is remembered with any settings. What these settings do not need is kept for others.
    fn all_state_names(&self) -> &'static [&'static str] {
        self.state_names()
    }

    /// Changes a parameter and what is remembered of it, in the order of the names; that begins as zeros. Steps
    /// count from 1, and again from 1 where other settings begin to remember something. Shapes and dtypes stay:
    /// a tensor with another is an error, and zeros take the place of its elements.
    fn step(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        step: u64,
    ) -> Result<(), LocalError>;
}

impl LocalOptimizer for Sgd {
    fn state_names(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { self.all_state_names() }
    }

    fn all_state_names(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn step(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        step: u64,
    ) -> Result<(), LocalError> {
        Sgd::step(self, parameter, gradient, state.first_mut(), step)
    }
}

impl LocalOptimizer for AdamW {
    fn state_names(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn step(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        step: u64,
    ) -> Result<(), LocalError> {
        match state {
            [mean, square] => AdamW::step(self, parameter, gradient, mean, square, step),
            other => Err(LocalError::BadNumber {
                op: "adamw",
                name: "the number of state tensors",
                got: other.len().to_string(),
                want: "two",
            }),
        }
    }
}
