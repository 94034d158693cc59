//! The end of a save: rank 0 lists what all ranks wrote, and the new checkpoint takes its place.

use std::collections::BTreeMap;

use dtensor_comm::World;

use super::{
    After, PlannedFile, Saved,
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
/// checkpoint is there; so it is if nobody could be told.
pub(crate) fn finish(
    meeting: &mut dyn Meeting,
    new: &dyn NewCheckpoint,
    summary: Summary,
    written: Result<Vec<FileRecord>>,
    after: &After<'_>,
) -> Result<Saved> {
    let Summary { place, id, n_ranks, tensors, bytes, written: own_bytes, values } = summary;
    let (mut concluded, mut committed) = (false, false);
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
        committed = true;
        after().map_err(|error| after_commit(&place, &error))
    });
    if outcome.is_err() && meeting.rank() == 0 && !concluded {
        // The others cannot be reached any more.
        new.abandon();
    }
    let outcome = match outcome {
        Err(error) if committed && !matches!(error, Error::AfterCommit { .. }) => {
            Err(after_commit(&place, &error))
        }
        outcome => outcome,
    };
    outcome.map(|()| Saved { place, id, tensors, bytes, written: own_bytes })
}

fn after_commit(place: &str, error: &Error) -> Error {
    Error::AfterCommit { path: place.to_owned(), message: error.to_string() }
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

#[cfg(test)]
mod tests {
    use std::{path::Path, thread, time::Duration};

    use super::*;
    use crate::{
        save::{ByNotes, meeting::DONE},
        storage,
    };

    const ID: &str = "0123456789abcdef";

    /// Longer than any test.
    const PATIENCE: Duration = Duration::from_secs(3600);

    /// A save as a rank sees it.
    fn new_in(directory: &Path) -> Box<dyn NewCheckpoint> {
        let path = directory.join("model").display().to_string();
        storage::destination(&path).unwrap().new_checkpoint(ID, false)
    }

    /// The same of rank 0, which has begun it.
    fn begun_in(directory: &Path) -> Box<dyn NewCheckpoint> {
        let new = new_in(directory);
        new.begin().unwrap();
        new.begin_notes().unwrap();
        new
    }

    /// Of a save without tensors.
    fn summary(new: &dyn NewCheckpoint, n_ranks: usize) -> Summary {
        let (place, id, values) = (new.place(), ID.to_owned(), BTreeMap::new());
        Summary { place, id, n_ranks, tensors: 0, bytes: 0, written: 0, values }
    }

    fn end(meeting: &mut ByNotes<'_>, new: &dyn NewCheckpoint, n_ranks: usize) -> Result<Saved> {
        finish(meeting, new, summary(new, n_ranks), Ok(Vec::new()), &|| Ok(()))
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = directory.read_dir().unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn an_outcome_that_nobody_can_be_told_is_after_the_commit() {
        let directory = tempfile::tempdir().unwrap();
        let new = begun_in(directory.path());
        let mut meeting = ByNotes::new(&*new, 0, 1, PATIENCE);
        // There is no place for a note any more.
        let after = || {
            new.remove_notes();
            Ok(())
        };
        let outcome = finish(&mut meeting, &*new, summary(&*new, 1), Ok(Vec::new()), &after);
        let Err(Error::AfterCommit { path, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(path, new.place());
        assert!(new.is_committed());
    }

    #[test]
    fn a_rank_that_dies_before_it_hears_the_outcome_is_not_waited_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let new = begun_in(directory.path());
        new.post("00001-done", &[DONE]).unwrap();
        let mut meeting = ByNotes::new(&*new, 0, 2, PATIENCE);
        meeting.linger = Duration::from_millis(20);
        end(&mut meeting, &*new, 2).unwrap();
        assert_eq!(names_in(directory.path()), ["model"]);
    }

    #[test]
    fn a_rank_that_comes_too_late_for_the_outcome_sees_it_in_the_checkpoint() {
        for committed in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let new = begun_in(directory.path());
            new.post("00001-done", if committed { &[DONE] } else { &[1] }).unwrap();
            let mut first = ByNotes::new(&*new, 0, 2, PATIENCE);
            first.linger = Duration::ZERO;
            assert_eq!(end(&mut first, &*new, 2).is_ok(), committed);
            let theirs = new_in(directory.path());
            let told = ByNotes::new(&*theirs, 1, 2, PATIENCE).announce(None);
            assert_eq!(told.is_ok(), committed, "{told:?}");
        }
    }

    #[test]
    fn if_rank_0_cannot_read_what_a_rank_says_the_others_do_not_wait() {
        let directory = tempfile::tempdir().unwrap();
        let new = begun_in(directory.path());
        // What cannot be read as a file, in the place of what rank 2 has to say.
        std::fs::create_dir(directory.path().join(format!(".model.notes-{ID}/00002-done")))
            .unwrap();
        let rank = |rank: usize, new: &dyn NewCheckpoint| {
            end(&mut ByNotes::new(new, rank, 3, PATIENCE), new, 3).unwrap_err()
        };
        let errors = thread::scope(|scope| {
            let other = scope.spawn(|| rank(1, &*new_in(directory.path())));
            while !new.notes().unwrap().unwrap().contains(&"00001-done".to_owned()) {
                thread::yield_now();
            }
            [rank(0, &*new), other.join().unwrap()]
        });
        for error in errors {
            assert!(matches!(error, Error::OnRank { rank: 0, .. }), "{error}");
        }
        assert!(names_in(directory.path()).is_empty());
    }
}
