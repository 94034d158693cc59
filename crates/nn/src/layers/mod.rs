//! The layers that models are made of.

mod attention;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rotary;

pub(crate) use attention::check_heads;
pub use attention::{AttentionConfig, MultiHeadAttention};
pub use conv::{Conv1d, Conv2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::{Activation, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use rotary::Rotary;
