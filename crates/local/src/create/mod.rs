//! Tensors made from a few numbers.

mod like;
mod ranges;
