//! The headers of two safetensors files, of which each may hold parts of the other's tensors.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((at, data)) = data.split_first_chunk() else { return };
    let (one, other) = data.split_at(usize::from(u16::from_le_bytes(*at)).min(data.len()));
    open(&Memory::of([("1.safetensors", one.to_vec()), ("2.safetensors", other.to_vec())]));
});
