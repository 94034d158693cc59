//! What the fuzz targets share.

use dtensor_checkpoint::{Catalog, Storage};

// The helpers of the tests: files in memory that panic where they are read outside, and archives made by hand.
#[allow(dead_code)]
#[path = "../../tests/suite/formats_support.rs"]
pub mod formats_support;
#[allow(dead_code)]
#[path = "../../tests/suite/hostile_support.rs"]
pub mod hostile_support;

use formats_support::bytes_of;

/// Opens files that may be anything, and reads all tensors if they are a checkpoint after all.
pub fn open(storage: &dyn Storage) {
    let Ok(catalog) = Catalog::open(storage) else { return };
    let total: u64 = catalog.tensors.values().map(|entry| entry.bytes()).sum();
    if total < 1 << 20 {
        for entry in catalog.tensors.values() {
            bytes_of(storage, &catalog, entry);
        }
    }
}
