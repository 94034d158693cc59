//! The index of many safetensors files.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, open};
use libfuzzer_sys::fuzz_target;

const FILE: &[u8] = include_bytes!("../../tests/golden/hf_index/model-00001-of-00003.safetensors");

fuzz_target!(|data: &[u8]| {
    let index = ("model.safetensors.index.json", data.to_vec());
    open(&Memory::of([("model-00001-of-00003.safetensors", FILE.to_vec()), index]));
});
