//! What the fuzz targets do with bytes. It is here so that it is compiled and run with the tests, which know neither a nightly
//! toolchain nor cargo-fuzz; what is in `fuzz` only passes bytes on.

use dtensor_checkpoint::{Catalog, MANIFEST_FILE, Storage};

use crate::{
    formats_support::{Memory, bytes_of},
    hostile_support::{Asked, NATIVE_DATA, native, native_header as good_header, saved, sealed},
};

const METADATA: &[u8] = include_bytes!("../golden/distcp_files/.metadata");
const ARCHIVES: [(&str, &[u8]); 3] = [
    ("__0_0.distcp", include_bytes!("../golden/distcp_files/__0_0.distcp")),
    ("__0_1.distcp", include_bytes!("../golden/distcp_files/__0_1.distcp")),
    ("__0_2.distcp", include_bytes!("../golden/distcp_files/__0_2.distcp")),
];
const ONE_OF_MANY: &str = "model-00001-of-00003.safetensors";
const ONE_OF_MANY_BYTES: &[u8] =
    include_bytes!("../golden/hf_index/model-00001-of-00003.safetensors");

/// The archives of a distributed checkpoint, under metadata that fit. The first byte says which of them it is.
pub fn distcp(data: &[u8]) {
    let mut memory = Memory::of(ARCHIVES.map(|(name, bytes)| (name, bytes.to_vec())));
    let Some((file, data)) = data.split_first() else { return };
    let (name, good) = ARCHIVES[usize::from(*file) % ARCHIVES.len()];
    let mut bytes = data.to_vec();
    // The metadata know how long each file is.
    bytes.resize(good.len(), 0);
    memory = memory.with(name, bytes).with(".metadata", METADATA.to_vec());
    open(&memory);
}

/// The index of many safetensors files.
pub fn index(data: &[u8]) {
    let index = ("model.safetensors.index.json", data.to_vec());
    open(&Memory::of([(ONE_OF_MANY, ONE_OF_MANY_BYTES.to_vec()), index]));
}

/// The manifest of a checkpoint of ours, with a right checksum, beside a good file.
pub fn manifest(data: &[u8]) {
    let memory = native(&good_header(), &NATIVE_DATA).with(MANIFEST_FILE, sealed(data));
    open(&Asked(&memory));
}

/// The header of a file of a checkpoint of ours, under a manifest that has its checksum.
pub fn native_header(data: &[u8]) {
    open(&Asked(&native(data, &NATIVE_DATA)));
}

/// The pickle of a distributed checkpoint's metadata.
pub fn pickle(data: &[u8]) {
    open(&Memory::of([(".metadata", data.to_vec())]));
}

/// The headers of two safetensors files, of which each may hold parts of the other's tensors. First comes the length of one.
pub fn safetensors(data: &[u8]) {
    let Some((at, data)) = data.split_first_chunk() else { return };
    let (one, other) = data.split_at(usize::from(u16::from_le_bytes(*at)).min(data.len()));
    open(&Memory::of([("1.safetensors", one.to_vec()), ("2.safetensors", other.to_vec())]));
}

/// The pickle in a file of `torch.save`, with right checksums around it.
pub fn torch_save(data: &[u8]) {
    let file = saved(data.to_vec(), &[("0", vec![1; 24]), ("1", vec![2; 8])]);
    open(&Memory::of([("x.pt", file)]));
}

/// The archive of a file of `torch.save`.
pub fn zip(data: &[u8]) {
    open(&Memory::of([("x.pt", data.to_vec())]));
}

/// Opens files that may be anything, and reads all tensors if they are a checkpoint after all.
fn open(storage: &dyn Storage) {
    let Ok(catalog) = Catalog::open(storage) else { return };
    let total: u64 = catalog.tensors.values().map(|entry| entry.bytes()).sum();
    if total < 1 << 20 {
        for entry in catalog.tensors.values() {
            bytes_of(storage, &catalog, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    use super::*;
    use crate::hostile_mutations::{Random, mutated};

    type Target = (&'static str, fn(&[u8]), Vec<u8>);

    /// Every target, with something that it takes for good.
    fn targets() -> [Target; 8] {
        let golden = |name: &str| {
            fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        let safetensors_file = golden("four_ranks/full.safetensors");
        let length = (safetensors_file.len() as u16).to_le_bytes();
        let manifest_bytes = native(&good_header(), &NATIVE_DATA).0[MANIFEST_FILE].to_vec();
        [
            ("distcp", distcp, [&[0], ARCHIVES[0].1].concat()),
            ("index", index, golden("hf_index/model.safetensors.index.json")),
            ("manifest", manifest, manifest_bytes),
            ("native_header", native_header, good_header()),
            ("pickle", pickle, METADATA.to_vec()),
            ("safetensors", safetensors, [&length[..], &safetensors_file].concat()),
            // An empty dict.
            ("torch_save", torch_save, b"\x80\x02}.".to_vec()),
            ("zip", zip, golden("torch_save/model.pt")),
        ]
    }

    #[test]
    fn targets_end_for_what_is_good_and_for_what_is_not() {
        for (name, target, good) in targets() {
            let mut random = Random(4);
            target(&[]);
            target(&good);
            for round in 0..300 {
                let changed = mutated(&good, &mut random);
                let ended = catch_unwind(AssertUnwindSafe(|| target(&changed)));
                ended.unwrap_or_else(|_| panic!("{name}, round {round}"));
            }
        }
    }

    #[test]
    fn the_program_of_every_target_passes_bytes_on_to_it() {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/fuzz_targets");
        let mut programs: Vec<String> = fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        programs.sort();
        let names = targets().map(|(name, ..)| format!("{name}.rs"));
        assert_eq!(programs, names);
        for program in programs {
            let text = fs::read_to_string(format!("{place}/{program}")).unwrap();
            let target = program.trim_end_matches(".rs");
            let call = format!(
                "#![no_main]\n\nlibfuzzer_sys::fuzz_target!(|data: &[u8]| \
                 dtensor_checkpoint_fuzz::fuzzed::{target}(data));\n"
            );
            assert_eq!(text, call, "{program}");
        }
    }
}
