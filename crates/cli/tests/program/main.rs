//! Tests of the real program, from outside: arguments and input in, output and exit code out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic, helpers included")]

mod bench;
mod bench_train;
mod ckpt;
mod golden;
mod help;
mod layout;
mod ops;
mod plan;
mod support;
mod train;
