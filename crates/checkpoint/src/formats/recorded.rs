//! What was read of a place to find out what it holds, so that others find out the same without reading it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Error, ReadAt, Result, SourceFile, Storage};

/// A place whose files are read by somebody else, too: what is read is kept.
///
/// Headers are small, and the reading of them is the same wherever it happens. So one rank reads, the others are told its bytes,
/// and all of them come to the same catalog without a form in which catalogs would be sent.
pub(crate) struct Recording<'s> {
    storage: &'s dyn Storage,
    log: Arc<Mutex<Log>>,
}

/// The same place, for those who were told what was read.
pub(crate) struct Replay {
    place: String,
    log: Log,
}

#[derive(Default)]
struct Log {
    listing: Option<Vec<SourceFile>>,
    files: BTreeMap<String, FileLog>,
}

#[derive(Clone, Default)]
struct FileLog {
    size: u64,
    /// By their first byte; of several the longest.
    reads: BTreeMap<u64, Vec<u8>>,
}

impl<'s> Recording<'s> {
    pub fn new(storage: &'s dyn Storage) -> Recording<'s> {
        Recording { storage, log: Arc::default() }
    }

    /// All that was read, for [`Replay::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let log = lock(&self.log);
        let mut bytes = Vec::new();
        put(&mut bytes, self.storage.place().as_bytes());
        let listing = log.listing.as_deref();
        put_number(&mut bytes, listing.map_or(0, |files| files.len() as u64 + 1));
        for file in listing.unwrap_or_default() {
            put(&mut bytes, file.name.as_bytes());
            put_number(&mut bytes, file.size);
        }
        put_number(&mut bytes, log.files.len() as u64);
        for (name, FileLog { size, reads }) in &log.files {
            put(&mut bytes, name.as_bytes());
            put_number(&mut bytes, *size);
            put_number(&mut bytes, reads.len() as u64);
            for (offset, read) in reads {
                put_number(&mut bytes, *offset);
                put(&mut bytes, read);
            }
        }
        bytes
    }
}

impl Storage for Recording<'_> {
    fn place(&self) -> String {
        self.storage.place()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let files = self.storage.list()?;
        lock(&self.log).listing = Some(files.clone());
        Ok(files)
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let file = self.storage.open(name)?;
        lock(&self.log).files.entry(name.to_owned()).or_default().size = file.size();
        Ok(Box::new(RecordedFile { path: name.to_owned(), file, log: Arc::clone(&self.log) }))
    }
}

struct RecordedFile {
    /// By which it was opened.
    path: String,
    file: Box<dyn ReadAt>,
    log: Arc<Mutex<Log>>,
}

impl ReadAt for RecordedFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, into)?;
        let mut log = lock(&self.log);
        let reads = &mut log.files.entry(self.path.clone()).or_default().reads;
        let known = reads.entry(offset).or_default();
        if known.len() < into.len() {
            *known = into.to_vec();
        }
        Ok(())
    }
}

impl Replay {
    pub fn from_bytes(bytes: &[u8]) -> Result<Replay> {
        let mut rest = bytes;
        parse(&mut rest).ok_or_else(|| Error::broken("what rank 0 read", "it is cut off"))
    }
}

impl Storage for Replay {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        self.log.listing.clone().ok_or_else(|| not_read(&self.place))
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let log = self.log.files.get(name).ok_or_else(|| not_read(name))?;
        Ok(Box::new(ReplayedFile { name: name.to_owned(), log: log.clone() }))
    }
}

struct ReplayedFile {
    name: String,
    log: FileLog,
}

impl ReadAt for ReplayedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.log.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.log.reads.get(&offset).and_then(|read| read.get(..into.len()));
        // Nothing is read to fill nothing.
        let read = read.or(into.is_empty().then_some(&[]));
        into.copy_from_slice(read.ok_or_else(|| not_read(&self.name))?);
        Ok(())
    }
}

/// Reading depends on bytes alone; so this is a mistake of ours, and no wrong value.
fn not_read(place: &str) -> Error {
    Error::broken(place, "rank 0 has not read what this rank asks for; please report it")
}

fn put_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_le_bytes());
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    put_number(bytes, part.len() as u64);
    bytes.extend(part);
}

fn parse(rest: &mut &[u8]) -> Option<Replay> {
    let place = text(rest)?;
    let listing = match number(rest)?.checked_sub(1) {
        None => None,
        Some(n) => Some((0..n).map(|_| file(rest)).collect::<Option<Vec<_>>>()?),
    };
    let mut files = BTreeMap::new();
    for _ in 0..number(rest)? {
        let SourceFile { name, size } = file(rest)?;
        let mut reads = BTreeMap::new();
        for _ in 0..number(rest)? {
            reads.insert(number(rest)?, part(rest)?.to_vec());
        }
        files.insert(name, FileLog { size, reads });
    }
    Some(Replay { place, log: Log { listing, files } })
}

fn file(rest: &mut &[u8]) -> Option<SourceFile> {
    Some(SourceFile { name: text(rest)?, size: number(rest)? })
}

fn text(rest: &mut &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(part(rest)?).into_owned())
}

fn part<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (part, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*number))
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
