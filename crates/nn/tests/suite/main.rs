//! Tests of the neural network crate, on threads. One binary, because linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::panic)] // An unwrap that fails is a test that fails.

mod clip;
mod fully_shard;
mod gathered;
mod mixed_precision;
mod modules;
mod optimizer_names;
mod optimizers;
mod parallel;
mod prefetch;
mod scaler;
mod state;
mod styles;
mod support;
