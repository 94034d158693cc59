//! The manifest of a checkpoint of ours, with a right checksum, beside a good file.

#![no_main]

use dtensor_checkpoint::MANIFEST_FILE;
use dtensor_checkpoint_fuzz::{
    hostile_support::{Asked, NATIVE_DATA, native, native_header, sealed},
    open,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let memory = native(&native_header(), &NATIVE_DATA).with(MANIFEST_FILE, sealed(data));
    open(&Asked(&memory));
});
