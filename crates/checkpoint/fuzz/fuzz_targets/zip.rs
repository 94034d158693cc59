//! The archive of a file of `torch.save`.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| open(&Memory::of([("x.pt", data.to_vec())])));
