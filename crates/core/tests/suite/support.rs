//! What the tests stand on.

pub use dtensor_testing::tensors::{dense, draw, layouts_of, mesh, place, tensor, values};
