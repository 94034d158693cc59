//! Pooling over one to three spatial dims: the largest element or the mean of every window.
//!
//! All kinds differ only in which elements an output sees, which is worked out per dim before (`spans`).

mod avg;
mod max;
mod spans;

pub use avg::AvgPool;
pub use max::MaxPool;
