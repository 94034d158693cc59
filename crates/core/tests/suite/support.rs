//! What the tests stand on.

pub use dtensor_testing::tensors::{dense, layouts_of, mesh, place, tensor};
