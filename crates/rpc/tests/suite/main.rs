//! Tests of calls between workers, on threads. One binary, because linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // An unwrap that fails is a test that fails.

mod bootstrap;
mod calls;
mod fuzz;
mod hostile;
mod peer;
mod references;
mod shutdown;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod wire;
