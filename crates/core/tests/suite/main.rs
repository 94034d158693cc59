//! Tests of the core crate, on threads. One binary, because linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::panic)] // An unwrap that fails is a test that fails.

mod anomaly;
mod api;
mod autograd;
mod debug;
mod elementwise;
mod fft;
mod gradients;
mod gradients_by_row;
mod gradients_elementwise;
mod gradients_linalg;
mod gradients_movement;
mod gradients_nn;
mod gradients_products;
mod gradients_reduce;
mod gradients_second;
mod indexing;
mod linalg;
mod local_gradients;
mod mesh;
mod movement;
mod nn;
mod oracle;
mod order;
mod products;
mod random;
mod redistribute;
mod reduce;
mod ring;
mod support;
mod sweep;
mod value_errors;
