//! What a file may make of few bytes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be made of any file.
const FREE: u64 = 16 << 20;
/// Bytes that may be made of a byte of a pickle. A small number in a long list has two bytes, and a dotted name of its own.
const PER_BYTE: u64 = 128;

/// How much memory the contents of pickles may take once they are written out.
///
/// A pickle can mention one thing many times: a list of ten lists, each of which is the same list of ten, and so on, is short and has
/// a billion elements. Whatever is made of a pickle is paid for from here, so that it stays in proportion to the bytes that were read.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub fn new() -> Budget {
        Budget(AtomicU64::new(FREE))
    }

    /// More, because a pickle of this length was read.
    pub fn grant(&self, pickle: u64) {
        self.0.fetch_add(pickle.saturating_mul(PER_BYTE), Ordering::Relaxed);
    }

    /// Whether there is still this much; it is gone then.
    #[must_use]
    pub fn pay(&self, bytes: u64) -> bool {
        let left = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}
