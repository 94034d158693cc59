//! Files without a manifest that appear at their place all at once.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::Source;
use crate::{
    Error, MANIFEST_FILE, NewFile, Result,
    save::new_id,
    storage::{
        leftovers::{self, PARTIAL},
        local_path,
    },
};

/// A file, or a directory of files, that is written beside its place and put there when everything is on disk. Until then nothing
/// is seen of it; if it never comes to that, nothing is left of it.
///
/// What is written is in a hidden directory. If the process is killed, the next one that writes to this place removes it.
pub(super) struct Staging {
    target: PathBuf,
    partial: PathBuf,
    is_file: bool,
    /// On `partial`: a sign of life.
    _lock: Option<File>,
}

impl Staging {
    /// Refuses a target that exists, unless it may be replaced; and a directory with anything in it that is no file of a
    /// checkpoint, because that would be lost.
    pub(super) fn new(target: &Path, is_file: bool, overwrite: bool) -> Result<Staging> {
        if target.symlink_metadata().is_ok() && !is_empty_directory(target) {
            if !overwrite {
                return Err(Error::Exists { path: target.display().to_string() });
            }
            check_replaceable(target, is_file)?;
        }
        let partial = leftovers::beside(target, PARTIAL, &new_id());
        let make = || {
            leftovers::clear(target)?;
            fs::create_dir(&partial)?;
            leftovers::lock(&partial)
        };
        let lock = make().map_err(failed("create", target))?;
        Ok(Staging { target: target.to_owned(), partial, is_file, _lock: lock })
    }

    /// A new file.
    pub(super) fn create(&self, name: &str) -> Result<Box<dyn NewFile>> {
        let path = self.partial.join(name);
        let file = File::create_new(&path).map_err(failed("create", &path))?;
        Ok(Box::new(SyncedFile { path, file }))
    }

    /// Puts everything in its place; where that is a file, the one of this name.
    pub(super) fn commit(self, name: &str) -> Result<()> {
        let put = || {
            sync_directory(&self.partial)?;
            match self.is_file {
                true => fs::rename(self.partial.join(name), &self.target)?,
                false => match self.target.exists() {
                    // What was there is then at `partial`, and goes with it.
                    true => {
                        renameat_with(CWD, &self.partial, CWD, &self.target, RenameFlags::EXCHANGE)?
                    }
                    false => fs::rename(&self.partial, &self.target)?,
                },
            }
            self.target.parent().map_or(Ok(()), sync_directory)
        };
        put().map_err(failed("write", &self.target))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit this is what was replaced, or nothing. What cannot be removed is hidden and in nobody's way.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// The path of a target, with everything before its name resolved. Refuses one where the source is.
pub(super) fn resolved(source: &Source, target: &str) -> Result<PathBuf> {
    let path = local_path(target).ok_or_else(|| Error::Unsupported {
        what: "a target that is no path of this machine".into(),
        place: target.to_owned(),
        way_out: "write to a directory, and copy it from there",
    })?;
    let absolute = std::path::absolute(path).map_err(failed("find", Path::new(path)))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        let why = "it has no name of its own".to_owned();
        return Err(Error::BadText {
            text: target.to_owned(),
            what: "place for a checkpoint",
            why,
        });
    };
    let resolved = parent.canonicalize().map_err(failed("find", parent))?.join(name);
    // A link leads to what it names.
    let resolved = resolved.canonicalize().unwrap_or(resolved);
    check_apart(source, &resolved)?;
    Ok(resolved)
}

/// Refuses a target that is the source, is in it, or has it inside.
pub(super) fn check_apart(source: &Source, target: &Path) -> Result<()> {
    let place = source.path().and_then(|path| path.canonicalize().ok());
    match place {
        Some(place) if target.starts_with(&place) || place.starts_with(target) => {
            let (source, target) = (place.display().to_string(), target.display().to_string());
            Err(Error::SamePlace { source_path: source, target })
        }
        _ => Ok(()),
    }
}

struct SyncedFile {
    path: PathBuf,
    file: File,
}

impl NewFile for SyncedFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(failed("write", &self.path))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.file.sync_all().map_err(failed("sync", &self.path))
    }
}

fn check_replaceable(target: &Path, is_file: bool) -> Result<()> {
    let occupied =
        |found: String| Err(Error::Occupied { path: target.display().to_string(), found });
    match (target.is_dir(), is_file) {
        (false, true) => Ok(()),
        (true, true) => occupied("a directory".into()),
        (false, false) => occupied("a file".into()),
        (true, false) => {
            for entry in fs::read_dir(target).map_err(failed("list", target))? {
                let entry = entry.map_err(failed("list", target))?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if !is_checkpoint_file(&name) || entry.path().is_dir() {
                    return occupied(format!("`{name}`"));
                }
            }
            Ok(())
        }
    }
}

fn is_checkpoint_file(name: &str) -> bool {
    let ends = [".safetensors", ".safetensors.index.json", ".distcp"];
    ends.iter().any(|end| name.ends_with(end)) || [MANIFEST_FILE, ".metadata"].contains(&name)
}

fn is_empty_directory(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io(doing, path.display().to_string())
}
