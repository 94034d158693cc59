//! Whether a checkpoint has the bytes that were written.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    Catalog, Checksum, Chunk, Error, Format, OnProgress, Reader, Result, Storage, TensorEntry,
    formats::native,
    read::blocks::{Blocks, READ},
    workers,
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

/// Reads every tensor of a checkpoint and compares it with its checksums; of a native one, manifest and headers too, so that
/// every byte of every file is covered.
///
/// It goes on after damage, and lists all of it. An error is what kept it from looking. `progress` is told from several threads
/// how many bytes were read, and of how many.
pub fn verify(
    catalog: &Arc<Catalog>,
    storage: &Arc<dyn Storage>,
    progress: Option<OnProgress<'_>>,
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
    let done = AtomicU64::new(0);
    let tell = |bytes: u64| {
        let now = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = progress {
            progress(now, total);
        }
    };
    report.damage.extend(find_damage(&reader, &work, &tell)?);
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

/// All threads of the machine look at chunks.
fn find_damage(
    reader: &Reader,
    work: &[Work<'_>],
    tell: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Error>> {
    let found: Mutex<Vec<(usize, Vec<Error>)>> = Mutex::default();
    workers::share(
        work.len(),
        workers::threads(0),
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
