#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dtensor_checkpoint_fuzz::fuzzed::native_header(data));
