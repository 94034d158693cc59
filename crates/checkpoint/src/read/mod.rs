//! Reading boxes of tensors, verified.

pub(crate) mod blocks;
mod files;
mod records;
pub(crate) mod runs;
mod scratch;
mod strided;

use std::sync::Arc;

use dtensor_layout::IndexBox;

use self::{
    blocks::{Blocks, READ},
    files::Files,
    records::{Record, Records},
    runs::{Overlap, copy_bytes},
    scratch::Scratch,
    strided::{Dim, Strided},
};
use crate::{Catalog, Checksum, Chunk, Error, ReadAt, Result, Storage, StoredType, TensorEntry};

/// Reads boxes of the tensors of a checkpoint, and verifies what it reads. Threads may share it.
///
/// Nothing is given out before it was verified, as far as the checkpoint has checksums:
///
/// * Where blocks have checksums of their own, the blocks that hold a part of the box are read whole. So boxes that begin
///   and end with blocks are read without waste.
/// * A record of a zip archive (`torch.save`, `.distcp`) has one checksum. The first box that needs some of it reads all
///   of it once, a part at a time.
///
/// Memory does not grow with tensors: it needs two blocks (of 1 MiB) per thread beside the memory that is filled.
pub struct Reader {
    catalog: Arc<Catalog>,
    files: Files,
    records: Records,
    scratch: Scratch,
    verify: bool,
}

impl Reader {
    /// A reader of the checkpoint with this catalog, whose files lie in `storage`.
    pub fn new(storage: Arc<dyn Storage>, catalog: Arc<Catalog>) -> Reader {
        let (records, scratch) = (Records::default(), Scratch::default());
        Reader { catalog, files: Files::new(storage), records, scratch, verify: true }
    }

    /// The same reader, which compares no checksums if `verify` is false.
    #[must_use]
    pub fn verifying(self, verify: bool) -> Reader {
        Reader { verify, ..self }
    }

    /// What the checkpoint holds.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Fills `into` with a box of a tensor, the last dim varying fastest, in the type in which it is stored.
    pub fn read_box(&self, name: &str, index: &IndexBox, into: &mut [u8]) -> Result<()> {
        let entry = self.catalog.tensors.get(name).ok_or_else(|| missing(&self.catalog, name))?;
        let inside = index.0.len() == entry.shape.len()
            && index.0.iter().zip(&entry.shape).all(|(range, &size)| range.end <= size);
        let bytes = index.numel().saturating_mul(entry.stored.size());
        if !inside || into.len() != bytes {
            return Err(Error::WrongBox {
                name: name.to_owned(),
                index: index.to_string(),
                shape: entry.shape.clone(),
                bytes,
                got: into.len(),
            });
        }
        for chunk in &entry.chunks {
            if let Some(overlap) = Overlap::of_boxes(&chunk.index, index) {
                self.read_overlap(name, entry, chunk, index, &overlap, into)?;
            }
        }
        Ok(())
    }

    /// Reads what a chunk and the box `index` share into the memory of that box.
    pub(crate) fn read_overlap(
        &self,
        name: &str,
        entry: &TensorEntry,
        chunk: &Chunk,
        index: &IndexBox,
        overlap: &Overlap,
        into: &mut [u8],
    ) -> Result<()> {
        let file = self.file(chunk.file)?;
        if let Some(record) = self.record(name, chunk) {
            let bytes = chunk.bytes(entry.stored);
            let is_chunk = (record.start, record.bytes) == (chunk.offset, bytes);
            let whole =
                overlap.numel() == chunk.index.numel() && overlap.is_one_run(&(0..overlap.numel()));
            if is_chunk && whole && chunk.strides.is_none() {
                let start = overlap.position(0).1 * entry.stored.size();
                return self.records.read(record, &*file, &mut into[start..][..bytes as usize]);
            }
            self.check_record(name, chunk)?;
        }
        match &chunk.strides {
            Some(strides) => self.read_strided(&*file, entry.stored, chunk, strides, index, into),
            None => {
                let blocks = Blocks::of(&self.catalog, name, entry.stored, chunk)?;
                self.read_rows(name, &*file, entry.stored, &blocks, overlap, into)
            }
        }
    }

    /// Reads a block of a chunk into memory that it fills, and verifies it there.
    pub(crate) fn read_block(
        &self,
        name: &str,
        file: &dyn ReadAt,
        blocks: &Blocks<'_>,
        block: usize,
        into: &mut [u8],
    ) -> Result<()> {
        file.read_at(blocks.offset(blocks.elements(block).start), into)?;
        self.check_block(name, blocks, block, into)
    }

    /// Whether a block has the bytes that were written, if that is asked.
    pub(crate) fn check_block(
        &self,
        name: &str,
        blocks: &Blocks<'_>,
        block: usize,
        bytes: &[u8],
    ) -> Result<()> {
        match self.verify {
            true => blocks.check(&self.catalog, name, block, bytes),
            false => Ok(()),
        }
    }

    /// The same of a block in pieces.
    pub(crate) fn check_pieces(
        &self,
        name: &str,
        blocks: &Blocks<'_>,
        block: usize,
        pieces: &[&mut [u8]],
    ) -> Result<()> {
        match self.verify {
            true => blocks.check_pieces(&self.catalog, name, block, pieces),
            false => Ok(()),
        }
    }

    /// Verifies the record of a zip archive in which a chunk lies, if it lies in one.
    pub(crate) fn check_record(&self, name: &str, chunk: &Chunk) -> Result<()> {
        match self.record(name, chunk) {
            Some(record) => {
                let file = self.file(chunk.file)?;
                self.records.check(record, &*file, &mut self.scratch.borrow(READ))
            }
            None => Ok(()),
        }
    }

    /// Whether a checksum that was computed of all bytes of a chunk is that of the record which the chunk is.
    pub(crate) fn check_crc(&self, name: &str, chunk: &Chunk, computed: u32) -> Result<()> {
        match self.record(name, chunk) {
            Some(record) => record.compare(&*self.file(chunk.file)?, computed),
            None => Ok(()),
        }
    }

    /// A file by its position in the catalog, open.
    pub(crate) fn file(&self, file: usize) -> Result<Arc<dyn ReadAt>> {
        self.files.get(&self.catalog, file)
    }

    fn read_rows(
        &self,
        name: &str,
        file: &dyn ReadAt,
        stored: StoredType,
        blocks: &Blocks<'_>,
        overlap: &Overlap,
        into: &mut [u8],
    ) -> Result<()> {
        let size = stored.size();
        let last = overlap.numel().saturating_sub(1);
        let touched =
            blocks.block_of(overlap.position(0).0)..=blocks.block_of(overlap.position(last).0);
        for block in touched {
            let range = blocks.elements(block);
            let elements = overlap.within(&range);
            if elements.is_empty() {
                continue;
            }
            let whole = elements.len() == range.len() || !(self.verify && blocks.have_hashes());
            if whole && overlap.is_one_run(&elements) {
                let (from, to) = overlap.position(elements.start);
                let to = &mut into[to * size..][..elements.len() * size];
                file.read_at(blocks.offset(from), to)?;
                self.check_block(name, blocks, block, to)?;
                continue;
            }
            let mut scratch = self.scratch.borrow(range.len() * size);
            self.read_block(name, file, blocks, block, &mut scratch)?;
            overlap.for_runs(elements, |from, to, length| {
                let from = &scratch[(from - range.start) * size..][..length * size];
                copy_bytes(from, &mut into[to * size..][..length * size]);
            });
        }
        Ok(())
    }

    fn read_strided(
        &self,
        file: &dyn ReadAt,
        stored: StoredType,
        chunk: &Chunk,
        strides: &[usize],
        index: &IndexBox,
        into: &mut [u8],
    ) -> Result<()> {
        let (mut first, mut to) = (0_u64, 1);
        let (mut start, mut dims) = (0, Vec::with_capacity(strides.len()));
        for ((held, wanted), &from) in chunk.index.0.iter().zip(&index.0).zip(strides).rev() {
            let shared = held.start.max(wanted.start)..held.end.min(wanted.end);
            dims.push(Dim { size: shared.len(), from, to });
            let skipped = ((shared.start - held.start) as u64).saturating_mul(from as u64);
            first = first.saturating_add(skipped);
            start += (shared.start - wanted.start) * to;
            to *= wanted.len();
        }
        let size = stored.size();
        let offset = chunk.offset.saturating_add(first.saturating_mul(size as u64));
        let mut scratch = self.scratch.borrow(READ);
        let into = &mut into[start * size..];
        Strided { file, size, into, scratch: &mut scratch }.read(offset, dims)
    }

    fn record<'n>(&self, name: &'n str, chunk: &Chunk) -> Option<Record<'n>> {
        match chunk.checksum {
            Checksum::Crc32 { start, bytes, crc } if self.verify => {
                Some(Record { name, file: chunk.file, start, bytes, crc })
            }
            _ => None,
        }
    }
}

/// What to say of a name that the checkpoint does not have.
pub(crate) fn missing(catalog: &Catalog, name: &str) -> Error {
    if let Some(error) = catalog.why_unreadable(name) {
        return error;
    }
    // Names end with what a thing is, and begin with where it is: both count.
    let alike = |other: &&String| {
        let same = |(a, b): &(u8, u8)| a == b;
        let from_start = name.bytes().zip(other.bytes()).take_while(same).count();
        from_start + name.bytes().rev().zip(other.bytes().rev()).take_while(same).count()
    };
    let nearest = catalog.tensors.keys().chain(catalog.values.keys()).max_by_key(alike);
    let nearest = nearest.map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
    Error::Missing { name: name.to_owned(), nearest }
}
