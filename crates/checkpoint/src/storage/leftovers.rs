//! What a save writes beside its place, and what is left of it when it is killed.
//!
//! Beside a checkpoint `name` there may be hidden directories, each with the id of its save:
//!
//! | name | what | when it is found |
//! |---|---|---|
//! | `.name.partial-ID` | a new checkpoint, not complete; or an old one that was replaced and is being deleted | it is removed |
//! | `.name.old-ID` | the old checkpoint, while the new one is put in its place without an exchange | it is put back if `name` is missing, else removed |
//! | `.name.notes-ID` | notes between ranks | it is removed |
//!
//! Whoever is at work holds a lock on its directories, which ends with the process. So nothing is removed under the hands of
//! another save, and a second save to the same place is refused.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::claim::Claim;
use crate::{Error, MANIFEST_FILE, Result, manifest::ID_DIGITS, storage::replace::failed};

pub(crate) const PARTIAL: &str = "partial";
pub(crate) const OLD: &str = "old";
pub(crate) const NOTES: &str = "notes";

/// The directory of this kind beside the place of a checkpoint.
pub(crate) fn beside(target: &Path, kind: &str, id: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{kind}-{id}"))
}

/// The lock of a directory, until it is dropped. `None` if somebody else has it. Where a file system knows no locks
/// everybody gets it.
pub(crate) fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::open(directory)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)),
    }
}

/// The right to write to a place, until this is dropped: nobody else has it meanwhile, neither in this process nor, where the file
/// system knows locks, in another one.
#[derive(Debug)]
pub(crate) struct Room {
    _claim: Claim,
    /// On the directories of the save.
    _locks: Vec<File>,
}

impl Room {
    /// Makes the directory `partial` for what is to be at `target`, after what killed saves have left there is gone.
    /// [`Error::Busy`] if another save to this place is under way.
    pub(crate) fn make(target: &Path, partial: &Path) -> Result<Room> {
        let claim = Claim::new(target.display().to_string())?;
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        // Between looking for others and being seen by them nobody else may do the same.
        let _turn = turn(directory).map_err(failed("lock", directory))?;
        if is_busy(target).map_err(failed("list", directory))? {
            return Err(Error::Busy { path: target.display().to_string() });
        }
        clear(target).map_err(failed("clear", directory))?;
        fs::create_dir(partial).map_err(failed("create", partial))?;
        let lock = lock(partial).map_err(failed("lock", partial))?;
        Ok(Room { _claim: claim, _locks: lock.into_iter().collect() })
    }

    /// Another directory of the same save.
    pub(crate) fn extend(&mut self, directory: &Path) -> Result<()> {
        fs::create_dir(directory).map_err(failed("create", directory))?;
        self._locks.extend(lock(directory).map_err(failed("lock", directory))?);
        Ok(())
    }
}

/// How long others are waited for that are making room in the same directory. They need some milliseconds; whoever holds the lock
/// of a directory for longer is none of us.
const TURN: Duration = Duration::from_secs(10);

/// The lock of a directory, for as long as it takes to make room.
fn turn(directory: &Path) -> io::Result<Option<File>> {
    let begun = Instant::now();
    loop {
        match lock(directory)? {
            None if begun.elapsed() < TURN => thread::sleep(Duration::from_millis(2)),
            turn => return Ok(turn),
        }
    }
}

/// Whether somebody is at work on what is to be at this place.
fn is_busy(target: &Path) -> io::Result<bool> {
    let at_work = [left_behind(target, PARTIAL)?, left_behind(target, NOTES)?].concat();
    // One that cannot be opened has just been removed.
    Ok(at_work.iter().any(|directory| matches!(lock(directory), Ok(None))))
}

/// Puts an old checkpoint back in its place if that is empty, and removes everything else that saves which were killed
/// have left beside it.
pub(crate) fn clear(target: &Path) -> io::Result<()> {
    let left = |kind| left_behind(target, kind);
    if !target.exists()
        && let Some(old) = complete(left(OLD)?)
    {
        fs::rename(old, target)?;
    }
    for directory in [left(PARTIAL)?, left(OLD)?, left(NOTES)?].concat() {
        remove_unless_locked(&directory);
    }
    Ok(())
}

/// Removes the unfinished checkpoints of a directory, whatever their names. Those that are being written stay.
pub(crate) fn clear_unfinished(directory: &Path) -> io::Result<()> {
    // One that has just been made may not have its lock yet.
    let _turn = turn(directory)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let of_kind =
            |kind: &str| name.rsplit_once(&format!(".{kind}-")).is_some_and(|(_, id)| is_id(id));
        if name.starts_with('.') && [PARTIAL, NOTES].iter().any(|kind| of_kind(kind)) {
            remove_unless_locked(&entry.path());
        }
    }
    Ok(())
}

/// The path itself; or, if nothing is there, the old checkpoint that was on its way out when the machine stopped.
pub(crate) fn old_if_missing(target: &Path) -> PathBuf {
    let old = || complete(left_behind(target, OLD).ok()?);
    match target.exists() {
        true => target.to_owned(),
        false => old().unwrap_or_else(|| target.to_owned()),
    }
}

fn left_behind(target: &Path, kind: &str) -> io::Result<Vec<PathBuf>> {
    let prefix = beside(target, kind, "");
    let Some((directory, prefix)) = prefix.parent().zip(prefix.file_name()) else {
        return Ok(Vec::new());
    };
    let prefix = prefix.to_string_lossy();
    // The rest has to be an id, because another checkpoint may be called `name.partial-something`.
    let is_left = |name: &str| name.strip_prefix(&*prefix).is_some_and(is_id);
    // A path of one part has the empty path as its parent, which means the current directory.
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if is_left(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn complete(old: Vec<PathBuf>) -> Option<PathBuf> {
    old.into_iter().find(|directory| directory.join(MANIFEST_FILE).is_file())
}

/// What cannot be removed is no harm: it is in nobody's way, and the next save tries again.
fn remove_unless_locked(directory: &Path) {
    if let Ok(Some(_lock)) = lock(directory) {
        let _ = fs::remove_dir_all(directory);
    }
}
