//! Writing one file: data are hashed and written in one pass, and the header last.

use std::sync::Arc;

use crate::{
    FileRecord, NewCheckpoint, NewFile, OnProgress, Result,
    formats::native_write::{FilePlan, Part},
    hash,
    hash::BlockHasher,
    progress,
};

/// Gives the bytes of a part, in pieces. The number is its position in the list that the file was planned for.
pub(crate) type ReadPart<'a> = dyn FnMut(usize, &Part, &mut Give<'_>) -> Result<()> + 'a;

/// Takes bytes.
pub(crate) type Give<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Bytes of one call: what is smaller is gathered first, so that thousands of small tensors are not as many calls; what
/// is larger is cut, so that it is written while it is in the cache from being hashed.
const CALL: usize = hash::BLOCK;

/// How much this rank has written.
pub(crate) type Meter = progress::Meter<Arc<OnProgress<'static>>>;

/// Writes a file, and says what the manifest has to know of it.
pub(crate) fn write_file(
    new: &dyn NewCheckpoint,
    name: &str,
    plan: &FilePlan,
    read: &mut ReadPart<'_>,
    meter: &Meter,
) -> Result<FileRecord> {
    let file = new.create(name, plan.size)?;
    let mut sink = Sink { file, gathered: Vec::new(), offset: plan.data_start, meter };
    let mut hasher = BlockHasher::new();
    let mut hashes = Vec::with_capacity(plan.parts().len());
    for (position, part) in plan.parts() {
        read(position, part, &mut |bytes| {
            bytes.chunks(CALL).try_for_each(|piece| {
                hasher.update(piece);
                sink.push(piece)
            })
        })?;
        hashes.push(hasher.finish());
    }
    let header = plan.header(&hashes);
    sink.finish(&header)?;
    let (size, header_hash) = (plan.size, hash::xxh3(&header));
    Ok(FileRecord { name: new.final_name(name), size, header_hash })
}

/// What becomes the data of a file, from the first byte to the last.
struct Sink<'a> {
    file: Box<dyn NewFile>,
    /// What is not written yet, from `offset` on.
    gathered: Vec<u8>,
    offset: u64,
    meter: &'a Meter,
}

impl Sink<'_> {
    /// Takes up to `CALL` bytes.
    fn push(&mut self, piece: &[u8]) -> Result<()> {
        if self.gathered.len() + piece.len() > CALL {
            self.flush()?;
        }
        match piece.len() == CALL {
            true => self.write(piece),
            false => {
                if self.gathered.capacity() == 0 {
                    self.gathered.reserve_exact(CALL);
                }
                self.gathered.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        self.write(&gathered)?;
        gathered.clear();
        self.gathered = gathered;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(self.offset, bytes)?;
        self.offset += bytes.len() as u64;
        self.meter.add(bytes.len() as u64);
        Ok(())
    }

    fn finish(mut self, header: &[u8]) -> Result<()> {
        self.flush()?;
        self.file.write_at(0, header)?;
        self.file.finish()
    }
}
