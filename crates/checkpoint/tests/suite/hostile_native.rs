//! Checkpoints of ours that are cut off or changed: an error or a catalog, and never anything else.
//!
//! Checksums find every accident. Whoever means harm writes checksums that are right, and so do these tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dtensor_checkpoint::{Catalog, Format, MANIFEST_FILE};

use crate::{
    formats_support::{Memory, bytes_of},
    hostile_mutations::{Random, mutated},
    hostile_support::{Asked, NATIVE_DATA, NATIVE_FILE, native, native_header, sealed},
};

/// Opens what may be broken, and reads all of it if it is not.
#[track_caller]
fn open(memory: &Memory, what: impl Fn() -> String) -> bool {
    let storage = Asked(memory);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let Ok(catalog) = Catalog::open(&storage) else { return false };
        let total: u64 = catalog.tensors.values().map(|entry| entry.bytes()).sum();
        assert!(total < 1 << 20, "{total} bytes of tensors");
        for entry in catalog.tensors.values() {
            bytes_of(&storage, &catalog, entry);
        }
        true
    }));
    result.unwrap_or_else(|_| panic!("{}", what()))
}

fn good() -> Memory {
    native(&native_header(), &NATIVE_DATA)
}

#[test]
fn a_good_one_is_opened() {
    let memory = good();
    let catalog = Catalog::open(&Asked(&memory)).unwrap();
    assert_eq!((catalog.format, catalog.tensors.len()), (Format::Native, 2));
    assert!(open(&memory, || unreachable!()));
    let manifest = &memory.0[MANIFEST_FILE];
    assert_eq!(sealed(manifest), **manifest);
}

#[test]
fn a_native_file_that_is_cut_off_or_changed_anywhere_is_an_error() {
    let memory = good();
    for (file, bytes) in &memory.0 {
        for length in 0..bytes.len() {
            let cut = memory.clone().with(file, bytes[..length].to_vec());
            assert!(!open(&cut, || format!("{file} cut off at {length}")), "{file} {length}");
        }
        // The bytes of tensors are verified by those who read them.
        let headers =
            if file == NATIVE_FILE { bytes.len() - NATIVE_DATA.len() } else { bytes.len() };
        for at in 0..headers {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << (at % 8);
            let changed = memory.clone().with(file, changed);
            assert!(!open(&changed, || format!("{file} changed at {at}")), "{file} {at}");
        }
    }
}

#[test]
fn a_manifest_with_a_right_checksum_may_say_anything() {
    let (memory, mut random, mut opened) = (good(), Random(2), 0);
    let manifest = &memory.0[MANIFEST_FILE];
    for round in 0..3000 {
        let changed = sealed(&mutated(manifest, &mut random));
        let changed = memory.clone().with(MANIFEST_FILE, changed);
        opened += usize::from(open(&changed, || format!("manifest, round {round}")));
    }
    assert!(opened > 0, "no change was harmless: this test tests nothing");
}

#[test]
fn a_header_with_a_right_checksum_may_say_anything() {
    let (header, mut random, mut opened) = (native_header(), Random(3), 0);
    for round in 0..3000 {
        let changed = native(&mutated(&header, &mut random), &NATIVE_DATA);
        opened += usize::from(open(&changed, || format!("header, round {round}")));
    }
    assert!(opened > 0, "no change was harmless: this test tests nothing");
}

#[test]
fn names_in_a_manifest_do_not_lead_elsewhere() {
    let memory = good();
    let manifest = String::from_utf8(memory.0[MANIFEST_FILE].to_vec()).unwrap();
    for name in ["../secret", "/etc/passwd", "a/../../b", "", ".", "a//b", "c:\\d"] {
        let name = name.replace('\\', "\\\\");
        let text = manifest.replace(NATIVE_FILE, &name);
        let changed = memory.clone().with(MANIFEST_FILE, sealed(text.as_bytes()));
        let error = Catalog::open(&Asked(&changed)).unwrap_err().to_string();
        assert!(error.contains("is no name of a file in the checkpoint"), "{error}");
    }
}
