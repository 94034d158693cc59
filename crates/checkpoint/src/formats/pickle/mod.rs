//! Python's pickles as trees of plain data. Nothing that a pickle asks for is ever called.
//!
//! A pickle is a program for a small machine with a stack and a memo: opcodes of one byte push numbers, texts and containers,
//! gather what lies above a mark into a tuple, store and fetch by number. Three opcodes are what makes Python's own reader
//! dangerous: `GLOBAL` and `STACK_GLOBAL` import a thing by name, and `REDUCE` calls it. Here a name must be in the fixed list of
//! [`Global`], and a call becomes a [`Call`]: a note of what was asked for, which those who read the tree understand or refuse.
//!
//! Whatever the bytes are, memory stays within a small multiple of their number: objects are 16 bytes and are copied freely,
//! containers lie in one table whose length is limited, and texts are slices of the input. Containers may hold each other in a
//! circle, so whoever walks a tree limits the depth.

mod cursor;
mod globals;
mod machine;
mod tree;

pub(crate) use globals::{Global, dtype_name};
pub(crate) use tree::{Call, Node, Object, Tree};

use crate::{Error, Result};

/// As long as a pickle may be. That of a checkpoint of a million chunks has about 200 MB.
pub(crate) const MAX_PICKLE: u64 = 512 << 20;

/// Where the bytes of a pickle are: for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The file.
    pub file: &'a str,
    /// The byte of the file at which the pickle begins.
    pub start: u64,
}

impl Place<'_> {
    /// What is wrong with the pickle at this byte of it.
    pub fn broken(&self, at: usize, what: impl AsRef<str>) -> Error {
        let what = format!("pickle, byte {}: {}", self.start + at as u64, what.as_ref());
        Error::broken(self.file, what)
    }
}

/// The tree that a pickle describes.
pub(crate) fn parse<'a>(bytes: &'a [u8], place: Place<'_>) -> Result<Tree<'a>> {
    machine::Machine::new(bytes, place).run()
}
