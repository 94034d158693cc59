//! Pooling: the largest element or the mean of every window.

pub(super) mod adaptive;
pub(super) mod avg;
pub(super) mod backward;
pub(super) mod max;
mod sliding;

pub use dtensor_local::nn::{AvgPool, MaxPool};
pub(super) use sliding::plane_letters;
