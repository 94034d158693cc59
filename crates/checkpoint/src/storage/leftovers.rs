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
//! another save, and a second save to the same place is refused. Where a file system knows no locks, what saves of this process are
//! writing is known, and of others what nobody has written to for a day counts as left behind.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::claim::{Claim, is_claimed};
use crate::{Error, MANIFEST_FILE, Result, manifest::ID_DIGITS, storage::replace::failed};

pub(crate) const PARTIAL: &str = "partial";
pub(crate) const OLD: &str = "old";
pub(crate) const NOTES: &str = "notes";

/// The directory of this kind beside the place of a checkpoint.
pub(crate) fn beside(target: &Path, kind: &str, id: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{kind}-{id}"))
}

/// How long nothing was written by a save that counts as killed, where there are no locks that would tell it from one that is under
/// way in another process.
pub(crate) const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// What trying to lock a directory gives.
#[derive(Debug)]
enum Lock {
    /// This one has it, until it is dropped.
    Held(File),
    /// Somebody else has it.
    Taken,
    /// The file system knows no locks.
    Unknown,
}

/// Tries to lock a directory.
type TryLock = dyn Fn(&Path) -> io::Result<Lock>;

fn lock(directory: &Path) -> io::Result<Lock> {
    let file = File::open(directory)?;
    Ok(match file.try_lock() {
        Ok(()) => Lock::Held(file),
        Err(TryLockError::WouldBlock) => Lock::Taken,
        Err(TryLockError::Error(_)) => Lock::Unknown,
    })
}

impl Lock {
    fn held(self) -> Option<File> {
        match self {
            Lock::Held(file) => Some(file),
            Lock::Taken | Lock::Unknown => None,
        }
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
        Ok(Room { _claim: claim, _locks: lock.held().into_iter().collect() })
    }

    /// Another directory of the same save.
    pub(crate) fn extend(&mut self, directory: &Path) -> Result<()> {
        fs::create_dir(directory).map_err(failed("create", directory))?;
        self._locks.extend(lock(directory).map_err(failed("lock", directory))?.held());
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
            Lock::Taken if begun.elapsed() < TURN => thread::sleep(Duration::from_millis(2)),
            turn => return Ok(turn.held()),
        }
    }
}

/// Whether somebody is at work on what is to be at this place.
fn is_busy(target: &Path) -> io::Result<bool> {
    let at_work = [left_behind(target, PARTIAL)?, left_behind(target, NOTES)?].concat();
    // One that cannot be opened has just been removed.
    Ok(at_work.iter().any(|directory| matches!(lock(directory), Ok(Lock::Taken))))
}

/// Puts an old checkpoint back in its place if that is empty, and removes everything else that saves which were killed
/// have left beside it.
pub(crate) fn clear(target: &Path) -> io::Result<()> {
    clear_by(target, &lock)
}

fn clear_by(target: &Path, lock: &TryLock) -> io::Result<()> {
    let left = |kind| left_behind(target, kind);
    if !target.exists()
        && let Some(old) = complete(left(OLD)?)
    {
        fs::rename(old, target)?;
    }
    for directory in [left(PARTIAL)?, left(OLD)?, left(NOTES)?].concat() {
        remove_if_left(&directory, lock, ABANDONED);
    }
    Ok(())
}

/// Removes the unfinished checkpoints of a directory, whatever their names. Those that are being written stay.
pub(crate) fn clear_unfinished(directory: &Path) -> io::Result<()> {
    clear_unfinished_by(directory, &lock, ABANDONED)
}

fn clear_unfinished_by(directory: &Path, lock: &TryLock, age: Duration) -> io::Result<()> {
    // One that has just been made may not have its lock yet.
    let _turn = turn(directory)?;
    // As those say it who have claimed a place.
    let directory = directory.canonicalize()?;
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let of_kind = |kind: &&str| {
            let (target, id) = name.strip_prefix('.')?.rsplit_once(&format!(".{kind}-"))?;
            is_id(id).then(|| directory.join(target))
        };
        let target = [PARTIAL, NOTES].iter().find_map(of_kind);
        if target.is_some_and(|target| !is_claimed(&target.display().to_string())) {
            remove_if_left(&entry.path(), lock, age);
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

/// Removes what nobody is at work on. What cannot be removed is no harm: it is in nobody's way, and the next save tries again.
fn remove_if_left(directory: &Path, lock: &TryLock, age: Duration) {
    let _lock = match lock(directory) {
        Ok(Lock::Held(lock)) => Some(lock),
        Ok(Lock::Unknown) if is_older(directory, age).unwrap_or(false) => None,
        _ => return,
    };
    let _ = fs::remove_dir_all(directory);
}

/// Whether nothing was written to a directory, or to what is in it, for some time.
fn is_older(directory: &Path, age: Duration) -> io::Result<bool> {
    let mut newest = fs::metadata(directory)?.modified()?;
    for entry in fs::read_dir(directory)? {
        newest = newest.max(entry?.metadata()?.modified()?);
    }
    // What is from the future was written by a clock that is ahead.
    Ok(newest.elapsed().is_ok_and(|passed| passed >= age))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of what saves might have left, one of each kind.
    const LEFT: [&str; 2] = [".model.partial-0123456789abcdef", ".model.notes-0123456789abcdef"];

    fn with_leftovers() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in LEFT {
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join("file"), "half").unwrap();
        }
        directory
    }

    fn left(directory: &tempfile::TempDir) -> usize {
        fs::read_dir(directory.path()).unwrap().count()
    }

    /// As a file system without locks answers.
    fn no_locks(_: &Path) -> io::Result<Lock> {
        Ok(Lock::Unknown)
    }

    #[test]
    fn without_locks_only_what_is_old_is_removed() {
        let directory = with_leftovers();
        clear_unfinished_by(directory.path(), &no_locks, ABANDONED).unwrap();
        clear_by(&directory.path().join("model"), &no_locks).unwrap();
        assert_eq!(left(&directory), LEFT.len());
        clear_unfinished_by(directory.path(), &no_locks, Duration::ZERO).unwrap();
        assert_eq!(left(&directory), 0);
    }

    #[test]
    fn what_a_save_of_this_process_writes_stays_whatever_the_locks_say() {
        let directory = with_leftovers();
        let target = directory.path().canonicalize().unwrap().join("model");
        let claim = Claim::new(target.display().to_string()).unwrap();
        clear_unfinished_by(directory.path(), &no_locks, Duration::ZERO).unwrap();
        clear_unfinished(directory.path()).unwrap();
        assert_eq!(left(&directory), LEFT.len());
        drop(claim);
        clear_unfinished(directory.path()).unwrap();
        assert_eq!(left(&directory), 0);
    }
}
