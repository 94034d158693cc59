//! The end of a save: rank 0 lists what all ranks wrote, and the new checkpoint takes its place.

use std::collections::BTreeMap;

use dtensor_comm::World;

use super::{
    PlannedFile, Saved,
    meeting::{Meeting, settle},
    plan::file_name,
};
use crate::{
    Entry, Error, FileRecord, Manifest, NewCheckpoint, Result, State, Value, manifest::MAX_MANIFEST,
};

/// What is said about a save as a whole.
pub(crate) struct Summary {
    pub place: String,
    pub id: String,
    pub n_ranks: usize,
    pub tensors: u64,
    pub bytes: u64,
    /// Bytes of tensors that this rank writes.
    pub written: u64,
    /// On rank 0, which writes them.
    values: BTreeMap<String, Value>,
}

impl Summary {
    pub(crate) fn new(
        world: &World,
        state: &State,
        files: &[PlannedFile],
        id: &str,
        place: String,
    ) -> Summary {
        let (mut tensors, mut bytes, mut values) = (0, 0, BTreeMap::new());
        for (name, entry) in state.iter() {
            match entry {
                Entry::Tensor(tensor) => {
                    tensors += 1;
                    bytes += (tensor.numel() * tensor.dtype().size()) as u64;
                }
                Entry::Value(value) if world.rank() == 0 => {
                    values.insert(name.to_owned(), value.clone());
                }
                Entry::Value(_) => {}
            }
        }
        let written = files.iter().map(|file| file.plan.size - file.plan.data_start).sum();
        let (id, n_ranks) = (id.to_owned(), world.size());
        Summary { place, id, n_ranks, tensors, bytes, written, values }
    }
}

/// The ranks meet, each with what it wrote. If all went well, rank 0 writes the manifest, commits, and calls `after`; else it removes
/// what was written. The same error on all ranks, or none. If it is `after` that failed, that is [`Error::AfterCommit`]: the
/// checkpoint is there.
pub(crate) fn finish(
    meeting: &mut dyn Meeting,
    new: &dyn NewCheckpoint,
    summary: Summary,
    written: Result<Vec<FileRecord>>,
    after: &dyn Fn() -> Result<()>,
) -> Result<Saved> {
    let Summary { place, id, n_ranks, tensors, bytes, written: own_bytes, values } = summary;
    let mut concluded = false;
    let outcome = settle(meeting, written.map(|records| to_bytes(&records)), |all| {
        concluded = true;
        let Some(all) = all else {
            new.abandon();
            return Ok(());
        };
        let mut files = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            files.extend(from_bytes(bytes).enumerate().map(|(index, (size, header_hash))| {
                let name = new.final_name(&file_name(rank, n_ranks, index));
                FileRecord { name, size, header_hash }
            }));
        }
        let manifest = Manifest::new(id.clone(), files, values, tensors, bytes);
        let manifest = manifest.to_file(MAX_MANIFEST);
        manifest.and_then(|manifest| new.commit(&manifest)).inspect_err(|_| new.abandon())?;
        after().map_err(|error| {
            let (path, message) = (place.clone(), error.to_string());
            Error::AfterCommit { path, message }
        })
    });
    if outcome.is_err() && meeting.rank() == 0 && !concluded {
        // The others cannot be reached any more.
        new.abandon();
    }
    outcome.map(|()| Saved { place, id, tensors, bytes, written: own_bytes })
}

/// Of a rank's files: 24 bytes each. Their names follow from the rank.
fn to_bytes(records: &[FileRecord]) -> Vec<u8> {
    let record = |record: &FileRecord| {
        let (size, hash) = (record.size.to_le_bytes(), record.header_hash.to_le_bytes());
        [&size[..], &hash[..]].concat()
    };
    records.iter().flat_map(record).collect()
}

fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = (u64, u128)> + '_ {
    bytes.chunks_exact(24).filter_map(|record| {
        let (size, hash) = record.split_first_chunk()?;
        Some((u64::from_le_bytes(*size), u128::from_le_bytes(hash.try_into().ok()?)))
    })
}
