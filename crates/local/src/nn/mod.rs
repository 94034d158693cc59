//! Fused kernels of neural networks: softmax, normalisations, cross entropy, attention, embeddings and optimizer steps,
//! with the gradients that compositions of other kernels would compute slowly.
//!
//! Most are methods of [`Tensor`](crate::Tensor); here are their settings and results. Kernels compute in
//! `f32` (`bf16` and `f16` are widened first and rounded once at the end) or in `f64`, and in pieces that do
//! not depend on the number of threads.

mod attention;
mod attention_backward;
mod block;
mod cross_entropy;
mod disjoint;
mod embedding;
mod norm;
mod norm_backward;
mod optim;
mod real;
mod softmax;

pub use attention::Attention;
pub use attention_backward::AttentionGrads;
pub use cross_entropy::{CrossEntropy, Reduction};
pub use norm_backward::NormGrads;
pub use optim::{AdamW, Sgd};
