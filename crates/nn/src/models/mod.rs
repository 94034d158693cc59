//! Whole models.

mod gpt;
mod llama;

pub use gpt::{Gpt, GptBlock, GptConfig, gpt_plan};
pub use llama::{Llama, LlamaBlock, LlamaConfig, llama_plan};

use dtensor::DTensor;

use crate::{Module, Result, init, named_parameters};

/// Whether tokens are `[batch, positions]`, and not more positions than there may be.
fn check_tokens(model: &'static str, ids: &DTensor, most: usize) -> dtensor::Result<()> {
    match *ids.shape() {
        [_, positions] if positions <= most => Ok(()),
        _ => Err(dtensor::Error::Unsupported {
            op: model,
            what: format!("tokens of shape {:?}, for {most} positions at most", ids.shape()).into(),
            way_out: "give tokens [batch, positions], not more of them than the model is made for",
        }),
    }
}

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
