//! Parts of files that are read as files of their own, and parts that are read ahead.

use std::ops::Range;

use crate::{Error, ReadAt, Result};

/// Ranges that are this near to each other are read in one go: asking costs more than the bytes between.
const NEAR: u64 = 16 * 1024;

/// A part of a file as a file of its own: offsets count from its start.
pub(crate) struct Window<'f> {
    file: &'f dyn ReadAt,
    start: u64,
    size: u64,
}

impl<'f> Window<'f> {
    /// `size` bytes from `start` on, which must be in the file.
    pub fn new(file: &'f dyn ReadAt, start: u64, size: u64) -> Result<Window<'f>> {
        match start.checked_add(size).is_some_and(|end| end <= file.size()) {
            true => Ok(Window { file, start, size }),
            false => Err(outside(file, start, size)),
        }
    }

    /// All of a file.
    pub fn whole(file: &'f dyn ReadAt) -> Window<'f> {
        Window { file, start: 0, size: file.size() }
    }

    /// Where it begins in the file.
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl ReadAt for Window<'_> {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let length = into.len() as u64;
        match offset.checked_add(length).is_some_and(|end| end <= self.size) {
            true => self.file.read_at(self.start + offset, into),
            false => Err(outside(self, offset, length)),
        }
    }
}

/// A file of which some parts are in memory already. What is not is read when it is asked for.
pub(crate) struct Prefetched<'f> {
    file: &'f dyn ReadAt,
    /// By their first byte; they do not touch each other.
    parts: Vec<(u64, Vec<u8>)>,
}

impl<'f> Prefetched<'f> {
    /// Reads these ranges, as far as they are in the file, in as few calls as is sensible.
    pub fn new(file: &'f dyn ReadAt, mut ranges: Vec<Range<u64>>) -> Result<Prefetched<'f>> {
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            let range = range.start..range.end.min(file.size());
            match merged.last_mut() {
                _ if range.is_empty() => {}
                Some(last) if range.start <= last.end.saturating_add(NEAR) => {
                    last.end = last.end.max(range.end)
                }
                _ => merged.push(range),
            }
        }
        let mut parts = Vec::with_capacity(merged.len());
        for range in merged {
            parts.push((range.start, read(file, range.start, range.end - range.start)?));
        }
        Ok(Prefetched { file, parts })
    }

    fn held(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let after = self.parts.partition_point(|(start, _)| *start <= offset);
        let (start, bytes) = self.parts.get(after.checked_sub(1)?)?;
        let from = usize::try_from(offset - start).ok()?;
        bytes.get(from..from.checked_add(length)?)
    }
}

impl ReadAt for Prefetched<'_> {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self.held(offset, into.len()) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => self.file.read_at(offset, into),
        }
    }
}

/// Bytes of a file; the range is checked against its size before memory is taken.
pub(crate) fn read(file: &dyn ReadAt, offset: u64, length: u64) -> Result<Vec<u8>> {
    let inside = offset.checked_add(length).is_some_and(|end| end <= file.size());
    let (true, Ok(length)) = (inside, usize::try_from(length)) else {
        return Err(outside(file, offset, length));
    };
    let mut bytes = vec![0; length];
    file.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

fn outside(file: &dyn ReadAt, offset: u64, length: u64) -> Error {
    let what =
        format!("{length} bytes from byte {offset} on are wanted, and it has {}", file.size());
    Error::broken(file.name(), what)
}
