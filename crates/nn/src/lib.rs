//! Modules, parallel styles, fully sharded training and optimizers on distributed tensors.
//!
//! A model is written as for one device. Where its parameters lie is decided afterwards: [`parallelize_module`] cuts
//! them over the ranks of a mesh axis by a plan of names and styles, [`fully_shard`] cuts what is left over another axis and
//! gathers it for use. Nothing in the model changes.
//!
//! ```
//! use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, randint};
//! use dtensor_nn::{AdamW, Forward, FullyShardOptions, Gpt, GptConfig, Optimizer, cross_entropy, fully_shard, gpt_plan,
//!     parallelize_module, parameters};
//!
//! Runner::threads(4).run(|world| {
//!     let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
//!     let config = GptConfig { vocabulary: 16, sequence: 8, layers: 1, dim: 8, heads: 2, ..GptConfig::default() };
//!     let mut model = Gpt::new(&config, DType::F32, &mesh)?;
//!     parallelize_module(&mut model, &mesh, "tp", &gpt_plan())?;
//!     fully_shard(&mut model, "dp", &FullyShardOptions::default())?;
//!     let ids = randint(0, 16, &[4, 8], DType::I64, &mesh, &[Shard(0), Replicate])?;
//!     let mut optimizer = AdamW::new(parameters(&model), 1e-2);
//!     let loss = cross_entropy(&model.call(&ids)?, &ids)?;
//!     optimizer.step(&loss.backward()?)?;
//!     assert!(cross_entropy(&model.call(&ids)?, &ids)?.item::<f32>()? < loss.item::<f32>()?);
//!     Ok::<_, dtensor_nn::Error>(())
//! })?;
//! # Ok::<(), dtensor::RunError>(())
//! ```

#![forbid(unsafe_code)]

// The derive macro names this crate, also within it.
extern crate self as dtensor_nn;

mod boxed;
mod context_parallel;
mod error;
mod fully_shard;
pub mod init;
mod layers;
mod loss;
mod matching;
mod models;
mod module;
pub mod optim;
mod parallel;
mod parameter;
mod pattern;
mod state_dict;
mod traverse;

pub use boxed::Sequential;
pub use context_parallel::{
    ContextParallel, Sequence, context_parallel_shard, context_parallel_unshard, context_plan,
    head_tail_inverse, head_tail_order,
};
pub use error::{Error, Result};
pub use fully_shard::{FullyShardOptions, fully_shard, replicate};
pub use layers::{
    Activation, AttentionConfig, Conv1d, Conv2d, Dropout, Embedding, LayerNorm, Linear, Mlp,
    MultiHeadAttention, RmsNorm, Rotary,
};
pub use loss::{
    bce_with_logits, cross_entropy, cross_entropy_with, l1_loss, mse_loss, nll_loss, smooth_l1_loss,
};
pub use matching::{for_each_matching, replace_matching};
pub use models::{
    Gpt, GptBlock, GptConfig, Llama, LlamaBlock, LlamaConfig, gpt_plan, gpt_sequence_plan,
    llama_plan, llama_sequence_plan,
};
pub use module::{Field, Forward, Hook, Member, Members, Module, ModuleState, ModulesMut};
pub use optim::{
    AdamW, Optimizer, Sgd, blank_optimizer_state_dict, clip_grad_norm, clip_grad_norm_by,
    load_optimizer_state_dict, optimizer_state_dict,
};
pub use parallel::{
    ColwiseParallel, ParallelStyle, Plan, PrepareInput, PrepareInputOutput, PrepareOutput,
    RowwiseParallel, SequenceParallel, Spot, distribute_module, parallelize_module,
};
pub use parameter::Parameter;
pub use state_dict::{StateDict, load_state_dict, load_tensors, state_dict};
pub use traverse::{
    assign_names, for_each_module, module_names, named_buffers, named_parameters, parameters,
    set_training,
};
