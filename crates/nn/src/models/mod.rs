//! Whole models.

mod gpt;
mod llama;

pub use gpt::{Gpt, GptBlock, GptConfig, gpt_plan};
pub use llama::{Llama, LlamaBlock, LlamaConfig, llama_plan};

use crate::{Module, Result, init, named_parameters};

/// Gives every matrix values that are normal around 0, and every bias zeros.
fn init_normal(model: &dyn Module, deviation: f64) -> Result<()> {
    for (name, parameter) in named_parameters(model) {
        let value = parameter.value();
        let (shape, dtype, mesh) = (value.shape(), value.dtype(), value.mesh());
        if value.n_dims() > 1 {
            let values = init::normal(shape, deviation, dtype, mesh, value.placements())?;
            parameter.set(&values)?;
        } else if name.ends_with("bias") {
            parameter.set(&dtensor::zeros(shape, dtype, mesh, value.placements())?)?;
        }
    }
    Ok(())
}
