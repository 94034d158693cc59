//! Records of zip archives, each of which has one checksum for all of its bytes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::blocks::READ;
use crate::{Error, ReadAt, Result};

/// Which records were found to be as they were written. Each is read once, by whoever touches it first; others wait for that.
#[derive(Default)]
pub(super) struct Records(Mutex<HashMap<(usize, u64), Arc<Verdict>>>);

/// What was found, once somebody has looked.
type Verdict = OnceLock<Result<()>>;

/// A record of a file.
#[derive(Clone, Copy)]
pub(super) struct Record<'n> {
    /// What lies in it, for errors.
    pub name: &'n str,
    pub file: usize,
    pub start: u64,
    pub bytes: u64,
    pub crc: u32,
}

impl Records {
    /// Verifies a record, if that was not done.
    pub(super) fn check(
        &self,
        record: Record<'_>,
        file: &dyn ReadAt,
        scratch: &mut [u8],
    ) -> Result<()> {
        let stream = || {
            let mut hasher = crc32fast::Hasher::new();
            let (mut at, end) = (record.start, record.start.saturating_add(record.bytes));
            while at < end {
                let length = (end - at).min(scratch.len() as u64);
                let part = &mut scratch[..length as usize];
                file.read_at(at, part)?;
                hasher.update(part);
                at += length;
            }
            record.compare(file, hasher.finalize())
        };
        self.cell(record).get_or_init(stream).clone()
    }

    /// Reads all of a record, and verifies it on the way if that was not done.
    pub(super) fn read(
        &self,
        record: Record<'_>,
        file: &dyn ReadAt,
        into: &mut [u8],
    ) -> Result<()> {
        let cell = self.cell(record);
        let mut hasher = cell.get().is_none().then(crc32fast::Hasher::new);
        let mut at = record.start;
        for part in into.chunks_mut(READ) {
            file.read_at(at, part)?;
            at += part.len() as u64;
            if let Some(hasher) = &mut hasher {
                hasher.update(part);
            }
        }
        match hasher {
            Some(hasher) => cell.get_or_init(|| record.compare(file, hasher.finalize())).clone(),
            None => cell.get().cloned().unwrap_or(Ok(())),
        }
    }

    fn cell(&self, record: Record<'_>) -> Arc<Verdict> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(records.entry((record.file, record.start)).or_default())
    }
}

impl Record<'_> {
    pub(super) fn compare(&self, file: &dyn ReadAt, computed: u32) -> Result<()> {
        match computed == self.crc {
            true => Ok(()),
            false => Err(Error::Damaged {
                file: file.name().to_owned(),
                what: format!(
                    "the record of `{}` (bytes {}..{})",
                    self.name,
                    self.start,
                    self.start + self.bytes
                ),
                stored: format!("{:08x}", self.crc),
                computed: format!("{computed:08x}"),
            }),
        }
    }
}
