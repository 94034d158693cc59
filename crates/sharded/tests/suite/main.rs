//! Tests of sharded tensors, on threads. One binary, because linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // An unwrap that fails is a test that fails.
#![allow(clippy::single_range_in_vec_init)] // One range is a box of one dim.

mod checkpoint;
mod checkpoint_errors;
mod checkpoint_property;
mod construct;
mod defects;
mod distributed;
mod embedding;
mod embedding_gradients;
mod factories;
mod gather;
mod ledger;
mod metadata;
mod module;
mod ops;
mod optim;
mod parts;
mod placement;
mod remote;
mod remote_errors;
mod reshard;
mod scatter;
mod spec;
mod state;
mod support;
