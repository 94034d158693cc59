//! A chunk as the blocks in which it is read and verified.

use std::ops::Range;

use crate::{Catalog, Checksum, Chunk, Error, Result, StoredType, hash};

/// Bytes that are read at a time where the checkpoint does not say it: as many as stay in a cache.
pub(crate) const READ: usize = 1 << 20;

/// The largest block of which there can be a checksum: one is held in memory.
const MOST: usize = 1 << 26;

/// The blocks of a chunk whose elements lie in row-major order. Positions are counted in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks<'c> {
    chunk: &'c Chunk,
    stored: StoredType,
    numel: usize,
    /// Elements of a block; the last one may have fewer.
    block: usize,
    /// One for every block, if there are some.
    hashes: Option<&'c [u128]>,
}

impl<'c> Blocks<'c> {
    /// The blocks of a chunk of the tensor `name`, if what the checkpoint says of it can be.
    pub(crate) fn of(
        catalog: &Catalog,
        name: &str,
        stored: StoredType,
        chunk: &'c Chunk,
    ) -> Result<Blocks<'c>> {
        let size = stored.size();
        let numel = chunk.index.numel();
        let bytes = numel.checked_mul(size).map(|bytes| bytes as u64);
        let end = bytes.and_then(|bytes| bytes.checked_add(chunk.offset));
        let (file, file_size) =
            catalog.files.get(chunk.file).map_or(("", 0), |file| (file.name.as_str(), file.size));
        let broken =
            |what: &str| Err(Error::broken(file, format!("`{name}` {}: {what}", chunk.index)));
        if end.is_none_or(|end| end > file_size) {
            return broken("its bytes lie beyond the end of the file");
        }
        let Checksum::Blocks { block, hashes } = &chunk.checksum else {
            return Ok(Blocks { chunk, stored, numel, block: READ / size, hashes: None });
        };
        if *block == 0 || *block > MOST || block % size != 0 {
            return broken(&format!(
                "blocks of {block} bytes have no checksums that can be verified"
            ));
        }
        let block = block / size;
        if hashes.len() != numel.div_ceil(block) {
            return broken(&format!("it has {} checksums for {numel} elements", hashes.len()));
        }
        Ok(Blocks { chunk, stored, numel, block, hashes: Some(hashes) })
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.numel.div_ceil(self.block)
    }

    /// The elements of a block.
    pub(crate) fn elements(&self, block: usize) -> Range<usize> {
        block * self.block..((block + 1) * self.block).min(self.numel)
    }

    /// The block of an element.
    pub(crate) fn block_of(&self, element: usize) -> usize {
        element / self.block
    }

    /// Where an element lies in the file.
    pub(crate) fn offset(&self, element: usize) -> u64 {
        self.chunk.offset + (element * self.stored.size()) as u64
    }

    /// Whether blocks have checksums, and so are read whole.
    pub(crate) fn have_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// Whether these are the bytes that were written.
    pub(crate) fn check(
        &self,
        catalog: &Catalog,
        name: &str,
        block: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.compare(catalog, name, block, || hash::xxh3(bytes))
    }

    /// The same of bytes in pieces.
    pub(crate) fn check_pieces(
        &self,
        catalog: &Catalog,
        name: &str,
        block: usize,
        pieces: &[&mut [u8]],
    ) -> Result<()> {
        self.compare(catalog, name, block, || {
            hash::xxh3_of_pieces(pieces.iter().map(|piece| &**piece))
        })
    }

    fn compare(
        &self,
        catalog: &Catalog,
        name: &str,
        block: usize,
        compute: impl FnOnce() -> u128,
    ) -> Result<()> {
        let Some(stored) = self.hashes.and_then(|hashes| hashes.get(block)) else { return Ok(()) };
        let computed = compute();
        if computed == *stored {
            return Ok(());
        }
        let range = self.elements(block);
        let file = catalog.files.get(self.chunk.file).map_or("", |file| file.name.as_str());
        Err(Error::Damaged {
            file: file.to_owned(),
            what: format!(
                "`{name}` (bytes {}..{})",
                self.offset(range.start),
                self.offset(range.end)
            ),
            stored: hash::to_hex(*stored),
            computed: hash::to_hex(computed),
        })
    }
}
