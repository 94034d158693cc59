//! Pieces from the source to the files of the target.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use super::{
    Source, numbers,
    pieces::{self, CutRule, Part, Piece, TargetFile},
};
use crate::{NewFile, OnProgress, Result, hash, progress::Meter, workers};

/// What files are written to.
pub(super) trait Target: Sync {
    /// A new file.
    fn create(&self, file: &TargetFile) -> Result<Box<dyn NewFile>>;

    /// The first bytes of a file, by its position; `hashes` are those of the blocks of its parts, in order.
    fn header(&self, file: usize, hashes: &[Vec<u128>]) -> Vec<u8>;

    /// All bytes of a file are written.
    fn finished(&self, file: usize, header: &[u8]);

    /// Whether blocks are hashed.
    fn hashes(&self) -> bool;
}

/// Reads, casts and writes those of the files that are this process's `own`. A file is open from its first piece to its last, so that many files are not as many
/// at a time; the header goes into it last, when everything is known.
pub(super) fn write_all(
    source: &Source,
    files: &[TargetFile],
    own: &[bool],
    target: &dyn Target,
    threads: usize,
    progress: Option<&OnProgress<'_>>,
) -> Result<()> {
    let threads = workers::threads(threads);
    let most = workers::piece_bytes(threads, 2);
    let rule = match target.hashes() {
        // Blocks that are hashed begin where the part does, whatever the source is cut into.
        true => CutRule { most, align: hash::BLOCK, at_chunks_of: None },
        false => {
            CutRule { most, align: hash::BLOCK.min(most), at_chunks_of: Some(source.catalog()) }
        }
    };
    let own_files = || files.iter().enumerate().filter(|(file, _)| own[*file]);
    let pieces: Vec<Piece> =
        own_files().flat_map(|(file, target)| pieces::pieces(file, &target.parts, &rule)).collect();
    let opened: Vec<Opened> = files.iter().map(Opened::new).collect();
    for piece in &pieces {
        opened[piece.file].left.fetch_add(1, Ordering::Relaxed);
    }
    for (position, file) in own_files() {
        if opened[position].left.load(Ordering::Relaxed) == 0 {
            // Nothing but a header.
            opened[position].finish(position, file, target)?;
        }
    }
    let total = own_files().flat_map(|(_, file)| &file.parts).map(Part::bytes).sum();
    let meter = Meter::new(total, progress);
    let threads = threads.min(pieces.len()).max(1);
    let lane = pieces.len().div_ceil(threads);
    workers::share(lane * threads, threads, Buffers::default, |buffers, job| {
        // Each thread is somewhere else, or all would wait for the one that verifies what they are about to read.
        let Some(piece) = pieces.get(job % threads * lane + job / threads) else { return Ok(()) };
        let (file, opened) = (&files[piece.file], &opened[piece.file]);
        buffers.fill(source, file, piece)?;
        opened.write(file, target, piece, &buffers.bytes)?;
        if opened.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            opened.finish(piece.file, file, target)?;
        }
        meter.add(buffers.bytes.len() as u64);
        Ok(())
    })
}

/// A file that is being written.
struct Opened {
    /// From the first piece on.
    file: Mutex<Option<Box<dyn NewFile>>>,
    /// Pieces that are not written yet.
    left: AtomicUsize,
    /// Of the blocks of each part.
    hashes: Mutex<Vec<Vec<u128>>>,
}

impl Opened {
    fn new(file: &TargetFile) -> Opened {
        let none = |part: &Part| vec![0; hash::n_blocks(part.bytes())];
        let hashes = Mutex::new(file.parts.iter().map(none).collect());
        Opened { file: Mutex::default(), left: AtomicUsize::new(0), hashes }
    }

    fn write(
        &self,
        file: &TargetFile,
        target: &dyn Target,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<()> {
        if target.hashes() {
            self.hash(file, piece, bytes);
        }
        self.write_at(file, target, piece.offset, bytes)
    }

    fn hash(&self, file: &TargetFile, piece: &Piece, mut bytes: &[u8]) {
        for run in &piece.runs {
            let size = file.parts[run.part].to.size();
            let (run_bytes, rest) = bytes.split_at(run.elements.len() * size);
            bytes = rest;
            let found: Vec<u128> = run_bytes.chunks(hash::BLOCK).map(hash::xxh3).collect();
            let first = run.elements.start * size / hash::BLOCK;
            let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
            hashes[run.part][first..][..found.len()].copy_from_slice(&found);
        }
    }

    fn finish(&self, position: usize, file: &TargetFile, target: &dyn Target) -> Result<()> {
        let hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let header = target.header(position, &hashes);
        self.write_at(file, target, 0, &header)?;
        let opened = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        opened.map_or(Ok(()), NewFile::finish)?;
        target.finished(position, &header);
        Ok(())
    }

    /// Writes to the file, which the first who comes opens.
    fn write_at(
        &self,
        file: &TargetFile,
        target: &dyn Target,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let mut opened = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let new = match &mut *opened {
            Some(new) => new,
            none => none.insert(target.create(file)?),
        };
        match new.shared() {
            Some(shared) => {
                // All threads may be at one file, and would write one after the other.
                drop(opened);
                shared.write_at(offset, bytes)
            }
            None => new.write_at(offset, bytes),
        }
    }
}

/// What a thread works in.
#[derive(Default)]
struct Buffers {
    /// A piece as it is written.
    bytes: Vec<u8>,
    /// A run as it was read, if it is cast.
    uncast: Vec<u8>,
}

impl Buffers {
    fn fill(&mut self, source: &Source, file: &TargetFile, piece: &Piece) -> Result<()> {
        let bytes =
            piece.runs.iter().map(|run| run.elements.len() * file.parts[run.part].to.size());
        self.bytes.resize(bytes.sum(), 0);
        let mut rest = &mut self.bytes[..];
        for run in &piece.runs {
            let part = &file.parts[run.part];
            let (into, after) = rest.split_at_mut(run.elements.len() * part.to.size());
            rest = after;
            let boxes = pieces::boxes(&part.index, run.elements.clone());
            if part.from == part.to {
                source.read(&part.source, &boxes, into)?;
                continue;
            }
            self.uncast.resize(run.elements.len() * part.from.size(), 0);
            source.read(&part.source, &boxes, &mut self.uncast)?;
            numbers::cast(part.from, part.to, &self.uncast, into);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Condvar},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::WriteAt;

    /// A file in which a write ends when another one has begun.
    #[derive(Default)]
    struct InPairs {
        begun: Mutex<usize>,
        another: Condvar,
    }

    struct PairedFile(Arc<InPairs>);

    impl WriteAt for InPairs {
        fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
            let mut begun = self.begun.lock().unwrap();
            *begun += 1;
            self.another.notify_all();
            // As long as it takes, and no longer than a test may hang.
            let patience = Duration::from_secs(60);
            let alone = |begun: &mut usize| *begun < 2;
            let (_begun, waited) = self.another.wait_timeout_while(begun, patience, alone).unwrap();
            assert!(!waited.timed_out(), "the other write waits for this one");
            Ok(())
        }
    }

    impl NewFile for PairedFile {
        fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.0.write_at(offset, bytes)
        }

        fn finish(self: Box<Self>) -> Result<()> {
            Ok(())
        }

        fn shared(&self) -> Option<Arc<dyn WriteAt>> {
            Some(Arc::<InPairs>::clone(&self.0))
        }
    }

    impl Target for Arc<InPairs> {
        fn create(&self, _: &TargetFile) -> Result<Box<dyn NewFile>> {
            Ok(Box::new(PairedFile(Arc::clone(self))))
        }

        fn header(&self, _: usize, _: &[Vec<u128>]) -> Vec<u8> {
            Vec::new()
        }

        fn finished(&self, _: usize, _: &[u8]) {}

        fn hashes(&self) -> bool {
            false
        }
    }

    #[test]
    fn two_threads_write_to_one_file_at_the_same_time() {
        let file = TargetFile { name: "one".into(), size: 2, parts: Vec::new() };
        let (opened, target) = (Opened::new(&file), Arc::new(InPairs::default()));
        thread::scope(|scope| {
            for offset in 0..2 {
                let (opened, file, target) = (&opened, &file, &target);
                scope.spawn(move || opened.write_at(file, target, offset, b"x").unwrap());
            }
        });
        assert_eq!(*target.begun.lock().unwrap(), 2);
    }
}
