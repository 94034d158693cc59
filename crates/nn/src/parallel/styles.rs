//! The styles of tensor parallel.

use std::sync::Arc;

use dtensor::{DTensor, Placement};

use super::{ParallelStyle, Spot};
use crate::{Embedding, Error, Linear, Module, Parameter, Result, boxed::cast, named_parameters};

/// A [`Linear`] whose outputs are cut, or an [`Embedding`] whose columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColwiseParallel {
    /// Where the operand is brought.
    pub input: Spot,
    /// Where the result is brought; by itself it is cut along its last dim.
    pub output: Spot,
}

impl Default for ColwiseParallel {
    fn default() -> ColwiseParallel {
        ColwiseParallel { input: Spot::Replicate, output: Spot::AsItIs }
    }
}

/// A [`Linear`] whose inputs are cut, or an [`Embedding`] whose rows are. By itself, the result is a pending sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowwiseParallel {
    /// Where the operand is brought: by default cut along its last dim, or for an [`Embedding`] a copy.
    pub input: Option<Spot>,
    /// Where the result is brought.
    pub output: Spot,
}

impl Default for RowwiseParallel {
    fn default() -> RowwiseParallel {
        RowwiseParallel { input: None, output: Spot::Replicate }
    }
}

/// A module that treats positions apart, such as a normalisation: they are cut, and its parameters are copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceParallel {
    /// The dim of the positions.
    pub dim: isize,
}

impl Default for SequenceParallel {
    fn default() -> SequenceParallel {
        SequenceParallel { dim: 1 }
    }
}

impl ParallelStyle for ColwiseParallel {
    fn apply(&self, name: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        if let Some(linear) = cast::<Linear>(module) {
            cut(name, &linear.weight, axis, 0)?;
            linear.bias.iter().try_for_each(|bias| cut(name, bias, axis, 0))?;
        } else if let Some(embedding) = cast::<Embedding>(module) {
            cut(name, &embedding.weight, axis, 1)?;
        } else {
            return Err(wrong("ColwiseParallel", name));
        }
        surround(module, axis, self.input, self.output);
        Ok(())
    }
}

impl ParallelStyle for RowwiseParallel {
    fn apply(&self, name: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        let input = if let Some(linear) = cast::<Linear>(module) {
            cut(name, &linear.weight, axis, 1)?;
            Spot::Shard(-1)
        } else if let Some(embedding) = cast::<Embedding>(module) {
            cut(name, &embedding.weight, axis, 0)?;
            Spot::Replicate
        } else {
            return Err(wrong("RowwiseParallel", name));
        };
        surround(module, axis, self.input.unwrap_or(input), self.output);
        Ok(())
    }
}

impl ParallelStyle for SequenceParallel {
    fn apply(&self, name: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        for (parameter_name, parameter) in named_parameters(module) {
            let value = parameter.value();
            let have = value.placements()[axis];
            if have != Placement::Replicate {
                let name = format!("{name}.{parameter_name}");
                return Err(Error::AlreadyCut { name, axis: axis_name(&value, axis), have });
            }
        }
        surround(module, axis, Spot::Shard(self.dim), Spot::AsItIs);
        Ok(())
    }
}

/// Brings the operand of a module to one place, and its result to another.
pub(crate) fn surround(module: &mut dyn Module, axis: usize, input: Spot, output: Spot) {
    let state = module.state_mut();
    if input != Spot::AsItIs {
        state.put_before(Arc::new(move |x| input.place(x, axis)));
    }
    if output != Spot::AsItIs {
        state.put_after(Arc::new(move |y| output.place(y, axis)));
    }
}

/// Cuts a parameter over the ranks of an axis.
fn cut(module: &str, parameter: &Parameter, axis: usize, dim: usize) -> Result<()> {
    let value = parameter.value();
    let mut placements = value.placements().to_vec();
    let have = placements[axis];
    if have != Placement::Replicate {
        let (name, axis) = (module.to_owned(), axis_name(&value, axis));
        return Err(Error::AlreadyCut { name, axis, have });
    }
    placements[axis] = Placement::Shard(dim);
    parameter.set(&value.redistribute(&placements)?)?;
    Ok(())
}

/// The name of an axis of the mesh that a tensor lies on.
pub(crate) fn axis_name(value: &DTensor, axis: usize) -> String {
    value.mesh().mesh().axes()[axis].name().to_owned()
}

fn wrong(style: &'static str, module: &str) -> Error {
    Error::WrongModule { style, module: module.to_owned(), wanted: "Linear and Embedding" }
}
