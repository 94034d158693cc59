//! Whether a checkpoint has the bytes that were written.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    Catalog, Checksum, Chunk, Error, Format, MANIFEST_FILE, Manifest, OnProgress, Reader, Result,
    Storage, TensorEntry,
    formats::{self, native},
    progress::Meter,
    read::blocks::{Blocks, READ},
    storage, workers,
};

/// What [`verify`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyReport {
    /// Files that were looked at.
    pub files: usize,
    /// Tensors whose bytes were read.
    pub tensors: usize,
    /// Bytes of tensors that were compared with a checksum.
    pub verified_bytes: u64,
    /// Bytes of tensors that were read, and of which the checkpoint has no checksum.
    pub unverified_bytes: u64,
    /// What is wrong, in the order of the tensors. Nothing, if the checkpoint is whole.
    pub damage: Vec<Error>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

/// How a checkpoint is verified.
#[derive(Clone, Copy, Default)]
pub struct VerifyOptions<'a> {
    /// Threads that read and compare; 0 is as many as the machine has.
    pub threads: usize,
    /// Told now and then how many bytes were read.
    pub progress: Option<&'a OnProgress<'a>>,
}

/// Verifies the checkpoint that a path or a URL names: as [`verify`], and what keeps it from being opened is damage as well. If
/// headers of ours are damaged, all that are so are listed; tensors are then not looked at.
pub fn verify_at(place: &str, options: &VerifyOptions<'_>) -> Result<VerifyReport> {
    let error = match formats::open_place(place) {
        Ok((storage, catalog)) => return verify(&Arc::new(catalog), &storage, options),
        Err(error) => error,
    };
    let damage = match is_damage(&error) {
        true => damaged_headers(place).filter(|damage| !damage.is_empty()),
        false => return Err(error),
    };
    let damage = damage.unwrap_or_else(|| vec![error]);
    Ok(VerifyReport { files: damage.len(), damage, ..VerifyReport::default() })
}

/// What is wrong with the headers of a checkpoint of ours; `None` if there is no manifest that lists them.
fn damaged_headers(place: &str) -> Option<Vec<Error>> {
    let storage = storage::open(place).ok()?;
    let manifest = native::read_manifest(&*storage).ok()?;
    let manifest = Manifest::parse(MANIFEST_FILE, &manifest).ok()?;
    let errors =
        manifest.files.iter().filter_map(|file| native::read_header(&*storage, file).err());
    Some(errors.collect())
}

/// Reads every tensor of a checkpoint and compares it with its checksums; of a native one, manifest and headers too, so that
/// every byte of every file is covered.
///
/// It goes on after damage, and lists all of it. An error is what kept it from looking.
pub fn verify(
    catalog: &Arc<Catalog>,
    storage: &Arc<dyn Storage>,
    options: &VerifyOptions<'_>,
) -> Result<VerifyReport> {
    let mut report = VerifyReport { files: catalog.files.len(), ..VerifyReport::default() };
    if catalog.format == Format::Native {
        report.files += 1;
        match native::open(&**storage) {
            Ok(_) => {}
            Err(error) if is_damage(&error) => report.damage.push(error),
            Err(error) => return Err(error),
        }
    }
    let reader = Reader::new(Arc::clone(storage), Arc::clone(catalog));
    let work: Vec<Work<'_>> = catalog
        .tensors
        .iter()
        .flat_map(|(name, entry)| entry.chunks.iter().map(move |chunk| Work { name, entry, chunk }))
        .filter(|work| !work.chunk.index.is_empty())
        .collect();
    report.tensors = catalog.tensors.len();
    let total = work.iter().map(Work::bytes).sum();
    for work in &work {
        match work.chunk.checksum {
            Checksum::None => report.unverified_bytes += work.bytes(),
            Checksum::Crc32 { .. } | Checksum::Blocks { .. } => {
                report.verified_bytes += work.bytes()
            }
        }
    }
    let meter = Meter::new(total, options.progress);
    report.damage.extend(find_damage(&reader, &work, options.threads, &|bytes| meter.add(bytes))?);
    Ok(report)
}

/// A chunk to be read.
struct Work<'c> {
    name: &'c str,
    entry: &'c TensorEntry,
    chunk: &'c Chunk,
}

impl Work<'_> {
    fn bytes(&self) -> u64 {
        self.chunk.bytes(self.entry.stored)
    }

    /// Everything that is wrong with the chunk; the first error that is no damage ends it.
    fn look(&self, reader: &Reader, buffer: &mut Vec<u8>, tell: &dyn Fn(u64)) -> Vec<Error> {
        let by_blocks = matches!(self.chunk.checksum, Checksum::Blocks { .. } | Checksum::None)
            && self.chunk.strides.is_none();
        let looked = match by_blocks {
            true => self.look_at_blocks(reader, buffer, tell),
            false => reader.check_record(self.name, self.chunk).map(|()| {
                tell(self.bytes());
                Vec::new()
            }),
        };
        looked.unwrap_or_else(|error| vec![error])
    }

    fn look_at_blocks(
        &self,
        reader: &Reader,
        buffer: &mut Vec<u8>,
        tell: &dyn Fn(u64),
    ) -> Result<Vec<Error>> {
        let blocks = Blocks::of(reader.catalog(), self.name, self.entry.stored, self.chunk)?;
        let file = reader.file(self.chunk.file)?;
        let mut damage = Vec::new();
        for block in 0..blocks.len() {
            let bytes = blocks.elements(block).len() * self.entry.stored.size();
            buffer.resize(bytes.max(buffer.len()), 0);
            match reader.read_block(self.name, &*file, &blocks, block, &mut buffer[..bytes]) {
                Ok(()) => {}
                Err(error @ Error::Damaged { .. }) => damage.push(error),
                Err(error) => return Err(error),
            }
            tell(bytes as u64);
        }
        Ok(damage)
    }
}

/// The threads look at chunks.
fn find_damage(
    reader: &Reader,
    work: &[Work<'_>],
    threads: usize,
    tell: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Error>> {
    let found: Mutex<Vec<(usize, Vec<Error>)>> = Mutex::default();
    workers::share(
        work.len(),
        workers::threads(threads),
        || vec![0; READ],
        |buffer, number| {
            let errors = work[number].look(reader, buffer, tell);
            if !errors.is_empty() {
                found.lock().unwrap_or_else(PoisonError::into_inner).push((number, errors));
            }
            Ok(())
        },
    )?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(number, _)| *number);
    let errors: Vec<Error> = found.into_iter().flat_map(|(_, errors)| errors).collect();
    match errors.iter().find(|error| !is_damage(error)) {
        Some(error) => Err(error.clone()),
        None => Ok(errors),
    }
}

/// Whether an error is about the checkpoint, and not about the way to it: files that are gone or cut off count.
fn is_damage(error: &Error) -> bool {
    use std::io::ErrorKind::{NotFound, UnexpectedEof};
    match error {
        Error::Damaged { .. } | Error::Broken { .. } => true,
        Error::Io { kind, .. } => matches!(kind, NotFound | UnexpectedEof),
        _ => false,
    }
}
