//! The pickle in a file of `torch.save`, with right checksums around it.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, hostile_support::saved, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file = saved(data.to_vec(), &[("0", vec![1; 24]), ("1", vec![2; 8])]);
    open(&Memory::of([("x.pt", file)]));
});
