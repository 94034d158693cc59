//! Where a checkpoint is written.

use std::{sync::Arc, time::Duration};

use crate::{Error, Result};

/// A place for a checkpoint. What is there is replaced in one step, once the new one is complete.
pub trait Destination: Send + Sync {
    /// For people, and for errors.
    fn place(&self) -> String;

    /// What the save of this id writes. Nothing happens yet. Every rank has one, for the same id; if `sync`, data are on the
    /// disk, and not only in the memory of the system, before anything is in the place of the old checkpoint.
    fn new_checkpoint(&self, id: &str, sync: bool) -> Box<dyn NewCheckpoint>;
}

/// A checkpoint that is being written, as one rank sees it. Until [`commit`](NewCheckpoint::commit) nobody else sees any of it.
///
/// Ranks also leave notes for each other beside it: that is how those meet that write behind the back of the program,
/// which is using the world's calls meanwhile.
pub trait NewCheckpoint: Send + Sync {
    /// For people, and for errors.
    fn place(&self) -> String;

    /// Rank 0 calls it before any other rank writes: refuses a place where something else is, removes what killed saves
    /// have left behind, makes room.
    fn begin(&self) -> Result<()>;

    /// A new file of this size.
    fn create(&self, name: &str, size: u64) -> Result<Box<dyn NewFile>>;

    /// Whether several processes may write to one file, each to places of its own. One of them creates it, the others
    /// [`join`](NewCheckpoint::join).
    fn shares_files(&self) -> bool {
        false
    }

    /// A file that another process has created, where several may write to one.
    fn join(&self, name: &str) -> Result<Box<dyn NewFile>> {
        Err(one_writer(name))
    }

    /// Removes a file that this rank could not finish, if it is there: where a disk is full, others then can say so.
    fn discard(&self, name: &str);

    /// The name of a file as it is seen from the place of the checkpoint, after the commit.
    fn final_name(&self, name: &str) -> String;

    /// Rank 0 calls it when all files are finished: writes the manifest, and puts the new checkpoint in its place.
    fn commit(&self, manifest: &[u8]) -> Result<()>;

    /// Whether this very checkpoint is in its place, as any rank sees it; false if that cannot be known.
    fn is_committed(&self) -> bool {
        false
    }

    /// Rank 0 calls it instead, if something failed: removes what was written. What cannot be removed is left to the next
    /// save; the failure that led here is the one to be told.
    fn abandon(&self);

    /// Rank 0 makes room for notes, before anybody leaves one.
    fn begin_notes(&self) -> Result<()>;

    /// Leaves a note, which appears whole.
    fn post(&self, note: &str, text: &[u8]) -> Result<()>;

    /// The names of all notes; `None` if rank 0 has removed them.
    fn notes(&self) -> Result<Option<Vec<String>>>;

    /// What a note says.
    fn read(&self, note: &str) -> Result<Vec<u8>>;

    /// Removes a note, if it is there.
    fn remove(&self, note: &str);

    /// Rank 0 removes all notes, when nobody waits for one any more.
    fn remove_notes(&self);

    /// How long to wait, at most, between two looks at the notes.
    fn longest_nap(&self) -> Duration;
}

/// A file that is being written: every byte once, in any order.
pub trait NewFile: Send {
    /// Writes bytes to their place.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// All bytes are written, and the file is complete. Not called if writing failed.
    fn finish(self: Box<Self>) -> Result<()>;

    /// By which several threads write to it at the same time, if that is possible.
    fn shared(&self) -> Option<Arc<dyn WriteAt>> {
        None
    }
}

/// A file that several threads write to, each to places of its own.
pub trait WriteAt: Send + Sync {
    /// Writes bytes to their place.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// For files that only the process which creates them can write.
pub(crate) fn one_writer(file: &str) -> Error {
    Error::Unsupported {
        what: "writing with several processes to one file".into(),
        place: file.to_owned(),
        way_out: "let one process write it",
    }
}
