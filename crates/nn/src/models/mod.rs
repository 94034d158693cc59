//! Whole models.

mod gpt;
mod llama;

pub use gpt::{Gpt, GptBlock, GptConfig, gpt_plan, gpt_sequence_plan};
pub use llama::{Llama, LlamaBlock, LlamaConfig, llama_plan, llama_sequence_plan};

use dtensor::{DTensor, checkpoint};

use crate::{
    ColwiseParallel, Forward, Module, Plan, PrepareInput, Result, RowwiseParallel, Spot, init,
    named_parameters,
};

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

/// One block after the other; if `recompute`, of each only its operand is kept for gradients.
fn through<B: Forward + Clone>(
    blocks: &[B],
    x: DTensor,
    recompute: bool,
) -> dtensor::Result<DTensor> {
    blocks.iter().try_fold(x, |x, block| match recompute {
        true => {
            let block = block.clone();
            checkpoint(&x, move |x| block.call(x))
        }
        false => block.call(&x),
    })
}

/// Tensor parallel in which what stands between the products runs on cut positions. Without what the models differ in.
fn sequence_plan() -> Plan {
    let to_positions = RowwiseParallel { input: None, output: Spot::Shard(1) };
    let columns = ColwiseParallel::default();
    Plan::new()
        .with("tok", to_positions)
        .with("layers.*.attn", PrepareInput(Spot::Replicate))
        .with("layers.*.attn.w[qkv]", columns)
        .with("layers.*.attn.wo", to_positions)
        .with("layers.*.mlp", PrepareInput(Spot::Replicate))
        .with("layers.*.mlp.w2", to_positions)
        .with("head", columns)
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
