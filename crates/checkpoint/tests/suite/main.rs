//! Tests of the checkpoint crate. One binary, because linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // An unwrap that fails is a test that fails.

mod async_save;
mod convert;
mod convert_diff;
mod convert_native;
mod convert_streaming;
mod convert_support;
mod convert_team;
mod flip;
mod formats_cover;
mod formats_distcp;
mod formats_find;
mod formats_safetensors;
mod formats_sharded_tensors;
mod formats_support;
mod formats_torch_save;
mod full_disk;
mod fuzzed;
mod golden_headers;
mod hostile_metadata;
mod hostile_mutations;
mod hostile_native;
mod hostile_pickle;
mod hostile_support;
mod hostile_zip;
mod kill;
mod load;
mod load_errors;
mod load_foreign;
mod load_reads;
mod load_support;
mod load_written;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(feature = "object-store")]
mod object_store;
mod objects;
mod replaced;
mod roundtrip;
mod save;
mod save_property;
mod saved;
mod series;
mod unreadable;
