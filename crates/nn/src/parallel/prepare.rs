//! Styles that change no parameter.
//!
//! PyTorch's `PrepareModuleInput` has a layout for every argument of a module. Here a module takes one tensor and gives one
//! ([`Forward`](crate::Forward)), so that styles and units can be put around any of them; what else it needs (masks,
//! positions, a cache) is state of the module, or an operand of [`ModuleState::around`](crate::ModuleState::around)'s closure,
//! which brings it where it is needed itself. So there is one place for the operand, and one for the result.

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
