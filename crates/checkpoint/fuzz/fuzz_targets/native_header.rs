//! The header of a file of a checkpoint of ours, under a manifest that has its checksum.

#![no_main]

use dtensor_checkpoint_fuzz::{
    hostile_support::{Asked, NATIVE_DATA, native},
    open,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| open(&Asked(&native(data, &NATIVE_DATA))));
