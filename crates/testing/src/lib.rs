//! What the tests of every crate stand on: golden data, ranks in one process, the rule oracle.
//!
//! This crate is not published. Its functions panic with a readable message where a test should
//! fail; that is their purpose.
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

pub mod golden;
