//! Styles that change no parameter.

use super::{ParallelStyle, Spot, styles::surround};
use crate::{Module, Result};

/// Brings the operand of a module to where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareInput(pub Spot);

/// Brings the result of a module to where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareOutput(pub Spot);

/// Both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareInputOutput {
    /// Where the operand is brought.
    pub input: Spot,
    /// Where the result is brought.
    pub output: Spot,
}

impl ParallelStyle for PrepareInput {
    fn apply(&self, _: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        surround(module, axis, self.0, Spot::AsItIs);
        Ok(())
    }
}

impl ParallelStyle for PrepareOutput {
    fn apply(&self, _: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        surround(module, axis, Spot::AsItIs, self.0);
        Ok(())
    }
}

impl ParallelStyle for PrepareInputOutput {
    fn apply(&self, _: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        surround(module, axis, self.input, self.output);
        Ok(())
    }
}
