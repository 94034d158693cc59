//! Whether a checkpoint has the bytes that were written.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use dtensor_comm::Group;
use serde_json::{Value as Json, json};

use crate::{
    Catalog, Checksum, Chunk, Error, Format, MANIFEST_FILE, Manifest, OnProgress, Reader, Result,
    Storage, TensorEntry,
    formats::{self, native},
    progress::Meter,
    read::blocks::{Blocks, READ},
    storage::{self, held},
    team::Team,
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
    /// What cannot be read, and so was not looked at, by name, with the reason: see [`Catalog::unreadable`]. It is no damage.
    pub unreadable: BTreeMap<String, String>,
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
#[derive(Clone, Default)]
pub struct VerifyOptions<'a> {
    /// Threads that read and compare; 0 is as many as the machine has.
    pub threads: usize,
    /// Processes that share the work: all of them call with the same arguments, each reads some of the bytes, and all get the whole
    /// report. None: this process alone.
    pub group: Option<Group>,
    /// Told now and then how many bytes were read, of those that this process reads.
    pub progress: Option<&'a OnProgress<'a>>,
}

/// Verifies the checkpoint that a path or a URL names: as [`verify`], and what keeps it from being opened is damage as well. If
/// headers of ours are damaged, all that are so are listed; tensors are then not looked at.
pub fn verify_at(place: &str, options: &VerifyOptions<'_>) -> Result<VerifyReport> {
    held::retry(|| verify_now(place, options))
}

fn verify_now(place: &str, options: &VerifyOptions<'_>) -> Result<VerifyReport> {
    let team = Team::new(options.group.as_ref());
    let opened = match formats::open_place(place) {
        Err(error) if is_damage(&error) => Ok(Err(error)),
        opened => opened.map(Ok),
    };
    let opened = team.agree(opened)?;
    let mut own = Found::default();
    if let Err(error) = &opened {
        let damage = damaged_headers(place).filter(|damage| !damage.is_empty());
        own.push(0, damage.unwrap_or_else(|| vec![error.clone()]));
    }
    // All of them should find the same, and the first who finds something speaks for all.
    let found = team.all(own.to_bytes())?.into_iter().find(|found| !found.is_empty());
    match (found, opened) {
        (None, Ok((storage, catalog))) => verify(&Arc::new(catalog), &storage, options),
        (found, _) => {
            let damage = Found::from_bytes(&found.unwrap_or_default()).in_order();
            Ok(VerifyReport { files: damage.len(), damage, ..VerifyReport::default() })
        }
    }
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
    let team = Team::new(options.group.as_ref());
    let mut report = VerifyReport { files: catalog.files.len(), ..VerifyReport::default() };
    let mut headers = Found::default();
    if catalog.format == Format::Native {
        report.files += 1;
        team.once(|| match native::open(&**storage) {
            Err(error) if is_damage(&error) => {
                headers.push(0, vec![error]);
                Ok(())
            }
            opened => opened.map(drop),
        })?;
    }
    let reader = Reader::new(Arc::clone(storage), Arc::clone(catalog));
    let chunks = catalog
        .tensors
        .iter()
        .flat_map(|(name, entry)| entry.chunks.iter().map(move |chunk| (name, entry, chunk)))
        .filter(|(_, _, chunk)| !chunk.index.is_empty());
    report.tensors = catalog.tensors.len();
    report.unreadable = catalog.unreadable.clone();
    let mut work = Vec::new();
    for (name, entry, chunk) in chunks {
        let bytes = chunk.bytes(entry.stored);
        match chunk.checksum {
            Checksum::None => report.unverified_bytes += bytes,
            Checksum::Crc32 { .. } | Checksum::Blocks { .. } => report.verified_bytes += bytes,
        }
        work.extend(Work::of(catalog, name, entry, chunk));
    }
    let own = team.share(work.iter().map(Work::bytes));
    let meter = Meter::new(work[own.clone()].iter().map(Work::bytes).sum(), options.progress);
    let found = find_damage(&reader, &work, own, options.threads, &|bytes| meter.add(bytes));
    let mut found = team.agree(found)?;
    found.0.extend(headers.0);
    report.damage = Found::from_bytes(&team.all(found.to_bytes())?.concat()).in_order();
    Ok(report)
}

/// The most blocks that are looked at in one go: of a large chunk, several threads and processes look at some each.
const BLOCKS: usize = 16;

/// Something to be read.
struct Work<'c> {
    name: &'c str,
    entry: &'c TensorEntry,
    chunk: &'c Chunk,
    part: Part<'c>,
}

/// What is to be read of a chunk.
enum Part<'c> {
    /// Some of its blocks.
    Blocks(Blocks<'c>, Range<usize>),
    /// All of it, as it has one checksum, or lies otherwise than row after row.
    Record,
    /// Nothing: what the checkpoint says of it cannot be.
    Nothing(Error),
}

impl<'c> Work<'c> {
    /// All that is to be read of a chunk.
    fn of(
        catalog: &Catalog,
        name: &'c str,
        entry: &'c TensorEntry,
        chunk: &'c Chunk,
    ) -> Vec<Work<'c>> {
        let by_blocks = matches!(chunk.checksum, Checksum::Blocks { .. } | Checksum::None)
            && chunk.strides.is_none();
        let work = |part: Part<'c>| Work { name, entry, chunk, part };
        if !by_blocks {
            return vec![work(Part::Record)];
        }
        match Blocks::of(catalog, name, entry.stored, chunk) {
            Err(error) => vec![work(Part::Nothing(error))],
            Ok(blocks) => (0..blocks.len())
                .step_by(BLOCKS)
                .map(|first| work(Part::Blocks(blocks, first..blocks.len().min(first + BLOCKS))))
                .collect(),
        }
    }

    fn bytes(&self) -> u64 {
        match &self.part {
            Part::Record => self.chunk.bytes(self.entry.stored),
            Part::Nothing(_) => 0,
            Part::Blocks(blocks, part) => {
                let elements = part.clone().map(|block| blocks.elements(block).len());
                (elements.sum::<usize>() * self.entry.stored.size()) as u64
            }
        }
    }

    /// Everything that is wrong with it; the first error that is no damage ends it.
    fn look(&self, reader: &Reader, buffer: &mut Vec<u8>, tell: &dyn Fn(u64)) -> Vec<Error> {
        let looked = match &self.part {
            Part::Blocks(blocks, part) => {
                self.look_at_blocks(reader, blocks, part.clone(), buffer, tell)
            }
            Part::Nothing(error) => Err(error.clone()),
            Part::Record => reader.check_record(self.name, self.chunk).map(|()| {
                tell(self.bytes());
                Vec::new()
            }),
        };
        looked.unwrap_or_else(|error| vec![error])
    }

    fn look_at_blocks(
        &self,
        reader: &Reader,
        blocks: &Blocks<'_>,
        part: Range<usize>,
        buffer: &mut Vec<u8>,
        tell: &dyn Fn(u64),
    ) -> Result<Vec<Error>> {
        let file = reader.file(self.chunk.file)?;
        let mut damage = Vec::new();
        for block in part {
            let bytes = blocks.elements(block).len() * self.entry.stored.size();
            buffer.resize(bytes.max(buffer.len()), 0);
            match reader.read_block(self.name, &*file, blocks, block, &mut buffer[..bytes]) {
                Ok(()) => {}
                Err(error @ Error::Damaged { .. }) => damage.push(error),
                Err(error) => return Err(error),
            }
            tell(bytes as u64);
        }
        Ok(damage)
    }
}

/// The threads look at what is this process's `own` of the work. Found is numbered by the work, from 1 on.
fn find_damage(
    reader: &Reader,
    work: &[Work<'_>],
    own: Range<usize>,
    threads: usize,
    tell: &(dyn Fn(u64) + Sync),
) -> Result<Found> {
    let found: Mutex<Found> = Mutex::default();
    workers::share(
        own.len(),
        workers::threads(threads),
        || vec![0; READ],
        |buffer, job| {
            let number = own.start + job;
            let errors = work[number].look(reader, buffer, tell);
            found.lock().unwrap_or_else(PoisonError::into_inner).push(number + 1, errors);
            Ok(())
        },
    )?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let refusals = found.0.iter().filter(|(_, error)| !is_damage(error));
    match refusals.min_by_key(|(number, _)| *number) {
        Some((_, error)) => Err(error.clone()),
        None => Ok(found),
    }
}

/// What is wrong, by the number of what it was found in.
#[derive(Default)]
struct Found(Vec<(usize, Error)>);

impl Found {
    fn push(&mut self, number: usize, errors: Vec<Error>) {
        self.0.extend(errors.into_iter().map(|error| (number, error)));
    }

    /// In the order of numbers. That a file is gone is found in all parts of it, and told once.
    fn in_order(mut self) -> Vec<Error> {
        self.0.sort_by_key(|(number, _)| *number);
        let mut errors: Vec<Error> = self.0.into_iter().map(|(_, error)| error).collect();
        errors.dedup();
        errors
    }

    /// For other processes: a line each, so that those of several can follow each other.
    fn to_bytes(&self) -> Vec<u8> {
        let line = |(number, error): &(usize, Error)| {
            let error = match error {
                Error::Damaged { file, what, stored, computed } => {
                    json!([file, what, stored, computed])
                }
                Error::Io { doing, path, kind, why } => {
                    json!([path, why, doing, *kind == ErrorKind::NotFound, null])
                }
                Error::Broken { file, what } => json!([file, what]),
                other => json!(["", other.to_string()]),
            };
            json!([number, error]).to_string() + "\n"
        };
        self.0.iter().map(line).collect::<String>().into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Found {
        let error = |line: &str| {
            let (number, fields): (usize, Vec<Json>) = serde_json::from_str(line).ok()?;
            let text = |field: &Json| field.as_str().unwrap_or_default().to_owned();
            let error = match fields.as_slice() {
                [file, what] => Error::broken(text(file), text(what)),
                [file, what, stored, computed] => {
                    let (file, what) = (text(file), text(what));
                    Error::Damaged { file, what, stored: text(stored), computed: text(computed) }
                }
                [path, why, doing, is_missing, _] => Error::Io {
                    doing: if doing == "open" { "open" } else { "read" },
                    path: text(path),
                    kind: match is_missing.as_bool() {
                        Some(true) => ErrorKind::NotFound,
                        _ => ErrorKind::UnexpectedEof,
                    },
                    why: text(why),
                },
                _ => return None,
            };
            Some((number, error))
        };
        Found(String::from_utf8_lossy(bytes).lines().filter_map(error).collect())
    }
}

/// Whether an error is about the checkpoint, and not about the way to it: files that are gone or cut off count.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Damaged { .. } | Error::Broken { .. } => true,
        Error::Io { kind, .. } => {
            matches!(kind, ErrorKind::NotFound | ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}
