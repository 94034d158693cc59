//! The pickle of a distributed checkpoint's metadata.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| open(&Memory::of([(".metadata", data.to_vec())])));
