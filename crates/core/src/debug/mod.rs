//! Seeing what happens.

mod comm;

pub use comm::{CommDebug, CommEvent};
pub(crate) use comm::{ran, saw, sent};
