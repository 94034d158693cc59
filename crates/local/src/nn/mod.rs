//! Fused kernels of neural networks: softmax, normalisations, losses, attention, embeddings, convolutions, pooling,
//! interpolation, dropout and optimizer steps, with the gradients that compositions of other kernels would compute
//! slowly.
//!
//! Most are methods of [`Tensor`](crate::Tensor); here are their settings and results. Kernels compute in
//! `f32` (`bf16` and `f16` are widened first and rounded once at the end) or in `f64`, and in pieces that do
//! not depend on the number of threads.

mod attention;
mod attention_backward;
mod attention_mask;
mod batch_norm;
mod block;
mod conv;
mod cross_entropy;
mod dropout;
mod embedding;
mod group_norm;
mod interpolate;
mod nll;
mod norm;
mod norm_backward;
mod optim;
mod plane_norm;
mod pooling;
mod real;
mod softmax;
mod windows;

pub use attention::Attention;
pub use attention_backward::AttentionGrads;
pub use attention_mask::AttentionMask;
pub use batch_norm::BatchStats;
pub use conv::{Conv, ConvGrads, ConvTranspose, WantedGrads};
pub use cross_entropy::{CrossEntropy, Reduction};
pub use group_norm::ChannelNormGrads;
pub use interpolate::{Interpolate, InterpolateMode, InterpolateSize};
pub use nll::NllLoss;
pub use norm_backward::NormGrads;
pub use optim::{AdamW, Sgd};
pub use pooling::{AvgPool, MaxPool};
