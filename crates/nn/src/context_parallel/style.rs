//! The style of context parallel.

use dtensor::{DeviceMesh, Placement};

use super::Sequence;
use crate::{
    Error, Gpt, Llama, Module, MultiHeadAttention, ParallelStyle, Plan, Result, Spot,
    boxed::cast_mut,
    named_parameters,
    parallel::{axis_name, surround},
};

/// Positions cut over the ranks of an axis, for a [`Gpt`], a [`Llama`], and the [`MultiHeadAttention`] of any model: all
/// that knows positions. [`context_plan`] has it for the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextParallel {
    /// Whether every rank has a part of the beginning and a part of the end. Then tokens and targets are brought to that
    /// order beforehand, by [`context_parallel_shard`](crate::context_parallel_shard).
    pub balanced: bool,
}

impl Default for ContextParallel {
    fn default() -> ContextParallel {
        ContextParallel { balanced: true }
    }
}

/// Context parallel for a [`Gpt`] or a [`Llama`]. May go together with other plans on other axes.
pub fn context_plan(balanced: bool) -> Plan {
    let style = ContextParallel { balanced };
    Plan::new().with("layers.*.attn", style).with("", style)
}

impl ParallelStyle for ContextParallel {
    fn apply(&self, name: &str, module: &mut dyn Module, axis: usize) -> Result<()> {
        let n = mesh_of(module).map_or(1, |mesh| mesh.mesh().axis_size(axis));
        let sequence = if self.balanced { Sequence::BalancedRing(n) } else { Sequence::Ring };
        for (parameter_name, parameter) in named_parameters(module) {
            let value = parameter.value();
            let have = value.placements()[axis];
            if have != Placement::Replicate {
                let name = crate::traverse::joined(name, &parameter_name);
                return Err(Error::AlreadyCut { name, axis: axis_name(&value, axis), have });
            }
        }
        if let Some(attention) = cast_mut::<MultiHeadAttention>(module) {
            attention.set_sequence(sequence);
        } else if let Some(model) = cast_mut::<Gpt>(module) {
            model.set_sequence(sequence);
        } else if let Some(model) = cast_mut::<Llama>(module) {
            model.set_sequence(sequence);
        } else {
            let wanted = "Gpt, Llama and MultiHeadAttention";
            let (style, module) = ("ContextParallel", name.to_owned());
            return Err(Error::WrongModule { style, module, wanted });
        }
        surround(module, axis, Spot::Shard(1), Spot::AsItIs);
        Ok(())
    }
}

fn mesh_of(module: &dyn Module) -> Option<DeviceMesh> {
    let first = named_parameters(module).into_iter().next();
    first.map(|(_, parameter)| parameter.value().mesh().clone())
}
