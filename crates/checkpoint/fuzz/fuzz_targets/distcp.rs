//! The archives of a distributed checkpoint, under metadata that fit.

#![no_main]

use dtensor_checkpoint_fuzz::{formats_support::Memory, open};
use libfuzzer_sys::fuzz_target;

const METADATA: &[u8] = include_bytes!("../../tests/golden/distcp_files/.metadata");
const FILES: [(&str, &[u8]); 3] = [
    ("__0_0.distcp", include_bytes!("../../tests/golden/distcp_files/__0_0.distcp")),
    ("__0_1.distcp", include_bytes!("../../tests/golden/distcp_files/__0_1.distcp")),
    ("__0_2.distcp", include_bytes!("../../tests/golden/distcp_files/__0_2.distcp")),
];

fuzz_target!(|data: &[u8]| {
    let mut memory = Memory::of(FILES.map(|(name, bytes)| (name, bytes.to_vec())));
    // The metadata know how long each file is.
    let Some((file, data)) = data.split_first() else { return };
    let (name, good) = FILES[usize::from(*file) % FILES.len()];
    let mut bytes = data.to_vec();
    bytes.resize(good.len(), 0);
    memory = memory.with(name, bytes).with(".metadata", METADATA.to_vec());
    open(&memory);
});
