//! Tensors made from a few numbers.

mod like;
mod ranges;

pub use ranges::Sequence;
