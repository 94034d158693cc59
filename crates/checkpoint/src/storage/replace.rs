//! Directories that take the place of others.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{Error, Result};

/// Puts the directory `new` at `target`, in one step wherever the file system can. What was there is then at `new`, or at `old`
/// where it took two.
pub(crate) fn replace(new: &Path, target: &Path, old: &Path) -> io::Result<()> {
    match exchange(new, target) {
        Ok(()) => Ok(()),
        // There is nothing to exchange it with.
        Err(_) if !target.exists() => fs::rename(new, target),
        // The file system cannot, or something else is wrong, and then this cannot either.
        Err(_) => replace_in_two_steps(new, target, old),
    }
}

/// Each of two directories takes the place of the other, in one step.
pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Between the two steps nothing is in the place. A reader then looks at `old`, and so does the next save.
pub(super) fn replace_in_two_steps(new: &Path, target: &Path, old: &Path) -> io::Result<()> {
    with_a_break(new, target, old, || ())
}

/// The same; a test does something between the steps.
pub(super) fn with_a_break(
    new: &Path,
    target: &Path,
    old: &Path,
    between: impl FnOnce(),
) -> io::Result<()> {
    fs::rename(target, old)?;
    between();
    fs::rename(new, target).inspect_err(|_| {
        let _ = fs::rename(old, target);
    })
}

/// Brings the names in a directory to disk.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(failed("sync", directory))
}

/// For `map_err`: what the system refused to do with a path.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io(doing, path.display().to_string())
}
