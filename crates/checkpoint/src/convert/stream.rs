//! Pieces from the source to the files of the target.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    Source, numbers,
    pieces::{self, CutRule, Part, Piece, TargetFile},
};
use crate::{NewFile, OnProgress, Result, hash, progress::Meter, team::Team, workers};

/// What files are written to.
pub(super) trait Target: Sync {
    /// A new file.
    fn create(&self, file: &TargetFile) -> Result<Box<dyn NewFile>>;

    /// Whether several processes may write to one file.
    fn shares_files(&self) -> bool;

    /// A file that another process has created, where several may write to one.
    fn join(&self, file: &TargetFile) -> Result<Box<dyn NewFile>>;

    /// The first bytes of a file, by its position; `hashes` are those of the blocks of its parts, in order.
    fn header(&self, file: usize, hashes: &[Vec<u128>]) -> Vec<u8>;

    /// All bytes of a file are written.
    fn finished(&self, file: usize, header: &[u8]);

    /// Whether blocks are hashed.
    fn hashes(&self) -> bool;
}

/// Reads, casts and writes the files: of each piece, the process that has it in its share. The same error for all processes, or
/// none.
///
/// A file is open from its first piece to its last, so that many files are not as many at a time; the header goes into it last,
/// when everything is known. Of a file whose pieces are in several shares, the process with the first one creates it before the
/// others open it, and writes the header when all are done.
pub(super) fn write_all(
    source: &Source,
    files: &[TargetFile],
    target: &dyn Target,
    team: &Team<'_>,
    threads: usize,
    progress: Option<&OnProgress<'_>>,
) -> Result<()> {
    let threads = workers::threads(threads);
    let most = team.least(workers::piece_bytes(threads, 2))?;
    let rule = match target.hashes() {
        // Blocks that are hashed begin where the part does, whatever the source is cut into.
        true => CutRule { most, align: hash::BLOCK, at_chunks_of: None },
        false => {
            CutRule { most, align: hash::BLOCK.min(most), at_chunks_of: Some(source.catalog()) }
        }
    };
    let numbered = files.iter().enumerate();
    let pieces: Vec<Piece> =
        numbered.flat_map(|(file, target)| pieces::pieces(file, &target.parts, &rule)).collect();
    let own = own_pieces(files, &pieces, target, team);
    let opened: Vec<Opened> = (0..files.len())
        .map(|position| {
            let first = pieces.partition_point(|piece| piece.file < position);
            let end = pieces.partition_point(|piece| piece.file <= position);
            Opened::new(&files[position], first..end, &own, team)
        })
        .collect();
    let begun = opened.iter().zip(files).enumerate().try_for_each(|(position, (opened, file))| {
        match (opened.is_creator, opened.is_shared, opened.left.load(Ordering::Relaxed)) {
            (true, true, _) => opened.create(file, target),
            // Nothing but a header.
            (true, false, 0) => opened.finish(position, file, target),
            _ => Ok(()),
        }
    });
    team.agree(begun)?;
    let own = &pieces[own];
    let total = own.iter().map(|piece| piece.bytes(files)).sum();
    let meter = Meter::new(total, progress);
    let threads = threads.min(own.len()).max(1);
    let lane = own.len().div_ceil(threads);
    let written = workers::share(lane * threads, threads, Buffers::default, |buffers, job| {
        // Each thread is somewhere else, or all would wait for the one that verifies what they are about to read.
        let Some(piece) = own.get(job % threads * lane + job / threads) else { return Ok(()) };
        let (file, opened) = (&files[piece.file], &opened[piece.file]);
        buffers.fill(source, file, piece)?;
        opened.write(file, target, piece, &buffers.bytes)?;
        if opened.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            match opened.is_shared {
                true => opened.close()?,
                false => opened.finish(piece.file, file, target)?,
            }
        }
        meter.add(buffers.bytes.len() as u64);
        Ok(())
    });
    team.agree(written)?;
    if target.hashes() {
        exchange_hashes(&opened, team)?;
    }
    let joint = opened.iter().zip(files).enumerate();
    let mut joint = joint.filter(|(_, (opened, _))| opened.is_shared && opened.is_creator);
    team.agree(
        joint.try_for_each(|(position, (opened, file))| opened.finish(position, file, target)),
    )
}

/// The positions of the pieces that this process writes.
fn own_pieces(
    files: &[TargetFile],
    pieces: &[Piece],
    target: &dyn Target,
    team: &Team<'_>,
) -> Range<usize> {
    if target.shares_files() {
        return team.share(pieces.iter().map(|piece| piece.bytes(files)));
    }
    let bytes = |file: &TargetFile| file.parts.iter().map(Part::bytes).sum();
    let own = team.share(files.iter().map(bytes));
    let first = |file: usize| pieces.partition_point(|piece| piece.file < file);
    first(own.start)..first(own.end)
}

/// The processes tell each other the hashes of files that they share.
fn exchange_hashes(opened: &[Opened], team: &Team<'_>) -> Result<()> {
    let mut own = Vec::new();
    for (file, opened) in opened.iter().enumerate().filter(|(_, opened)| opened.is_shared) {
        let hashes = opened.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, hashes) in hashes.iter().enumerate() {
            for (block, &hash) in hashes.iter().enumerate().filter(|(_, hash)| **hash != 0) {
                let record = [file as u128, part as u128, block as u128, hash];
                own.extend(record.iter().flat_map(|number| number.to_le_bytes()));
            }
        }
    }
    for record in team.all(own)?.concat().as_chunks::<16>().0.as_chunks::<4>().0 {
        let [file, part, block, hash] = record.map(u128::from_le_bytes);
        let Some(opened) = opened.get(file as usize) else { continue };
        let mut hashes = opened.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = hashes.get_mut(part as usize);
        if let Some(place) = blocks.and_then(|blocks| blocks.get_mut(block as usize)) {
            *place = hash;
        }
    }
    Ok(())
}

/// A file that is being written.
struct Opened {
    /// From the first piece of this process on.
    file: Mutex<Option<Box<dyn NewFile>>>,
    /// Pieces that this process has not written yet.
    left: AtomicUsize,
    /// Whether other processes write to it as well.
    is_shared: bool,
    /// Whether this process creates it, and writes its header.
    is_creator: bool,
    /// Of the blocks of each part.
    hashes: Mutex<Vec<Vec<u128>>>,
}

impl Opened {
    /// For a file of these `pieces`, by a process that has its `own`.
    fn new(file: &TargetFile, pieces: Range<usize>, own: &Range<usize>, team: &Team<'_>) -> Opened {
        let none = |part: &Part| vec![0; hash::n_blocks(part.bytes())];
        let hashes = Mutex::new(file.parts.iter().map(none).collect());
        let common = pieces.start.max(own.start)..pieces.end.min(own.end);
        Opened {
            file: Mutex::default(),
            left: AtomicUsize::new(common.len()),
            is_shared: !common.is_empty() && common != pieces,
            is_creator: match pieces.is_empty() {
                true => team.is_first(),
                false => common.start == pieces.start && !common.is_empty(),
            },
            hashes,
        }
    }

    fn create(&self, file: &TargetFile, target: &dyn Target) -> Result<()> {
        let new = target.create(file)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        Ok(())
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
        self.close()?;
        target.finished(position, &header);
        Ok(())
    }

    /// Brings to disk what this process has written.
    fn close(&self) -> Result<()> {
        let opened = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        opened.map_or(Ok(()), NewFile::finish)
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
        let new = match (&mut *opened, self.is_shared) {
            (Some(new), _) => new,
            (none, true) => none.insert(target.join(file)?),
            (none, false) => none.insert(target.create(file)?),
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

        fn shares_files(&self) -> bool {
            true
        }

        fn join(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
            self.create(file)
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
        let opened = Opened::new(&file, 0..2, &(0..2), &Team::new(None));
        let target = Arc::new(InPairs::default());
        thread::scope(|scope| {
            for offset in 0..2 {
                let (opened, file, target) = (&opened, &file, &target);
                scope.spawn(move || opened.write_at(file, target, offset, b"x").unwrap());
            }
        });
        assert_eq!(*target.begun.lock().unwrap(), 2);
    }
}
