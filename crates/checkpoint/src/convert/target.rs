//! Where files without a manifest go. In directories they appear all at once, in object stores one by one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Source;
#[cfg(feature = "object-store")]
use super::store_target::StoreStaging;
#[cfg(feature = "object-store")]
use crate::storage::one_writer;
use crate::{
    Error, MANIFEST_FILE, NewFile, Result,
    storage::{
        LocalNewFile,
        leftovers::{OLD, PARTIAL, Room, beside},
        local_path,
        replace::{failed, replace, sync_directory},
    },
};

/// Where the files of a conversion are to be: a file, or a directory of files.
pub(super) struct Goal {
    place: Place,
    is_file: bool,
}

enum Place {
    Local(PathBuf),
    /// A folder, and the file in it if that is what is meant.
    #[cfg(feature = "object-store")]
    Store(String, Option<String>),
}

impl Goal {
    /// What a path or a URL names; the name of a file ends in `.safetensors`. Refuses one where the source is.
    pub(super) fn new(source: &Source, target: &str) -> Result<Goal> {
        let is_file = target.ends_with(".safetensors");
        #[cfg(feature = "object-store")]
        if local_path(target).is_none() {
            let target = target.trim_end_matches('/');
            let lies_in = |one: &str, other: &str| {
                one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            if let Some(url) =
                source.url().filter(|url| lies_in(url, target) || lies_in(target, url))
            {
                let (source_path, target) = (url.to_owned(), target.to_owned());
                return Err(Error::SamePlace { source_path, target });
            }
            let file = target.rsplit_once('/').filter(|_| is_file);
            let place = match file {
                Some((folder, file)) => Place::Store(folder.to_owned(), Some(file.to_owned())),
                None => Place::Store(target.to_owned(), None),
            };
            return Ok(Goal { place, is_file });
        }
        Ok(Goal { place: Place::Local(resolved(source, target)?), is_file })
    }

    /// The name of the file, where it is one.
    pub(super) fn file_name(&self) -> Option<String> {
        match &self.place {
            Place::Local(path) => path
                .file_name()
                .filter(|_| self.is_file)
                .map(|name| name.to_string_lossy().into_owned()),
            #[cfg(feature = "object-store")]
            Place::Store(_, file) => file.clone(),
        }
    }

    /// Makes room there, for the process that does so for all.
    pub(super) fn begin(&self, overwrite: bool, id: &str) -> Result<Staging> {
        Ok(match &self.place {
            Place::Local(path) => {
                Staging::Local(Directory::new(path, self.is_file, overwrite, id)?)
            }
            #[cfg(feature = "object-store")]
            Place::Store(folder, file) => {
                Staging::Store(StoreStaging::new(folder, file.as_deref(), overwrite)?)
            }
        })
    }

    /// The room of this id that another process has made.
    pub(super) fn join(&self, id: &str) -> Result<Staging> {
        Ok(match &self.place {
            Place::Local(path) => Staging::Local(Directory::of(path, self.is_file, id)),
            #[cfg(feature = "object-store")]
            Place::Store(folder, _) => Staging::Store(StoreStaging::of(folder)?),
        })
    }
}

/// Files on their way to their place. If they never come to that, nothing is left of them.
pub(super) enum Staging {
    Local(Directory),
    #[cfg(feature = "object-store")]
    Store(StoreStaging),
}

impl Staging {
    /// A new file.
    pub(super) fn create(&self, name: &str, size: u64) -> Result<Box<dyn NewFile>> {
        // Only stores want to know.
        let _ = size;
        match self {
            Staging::Local(directory) => directory.create(name),
            #[cfg(feature = "object-store")]
            Staging::Store(store) => Ok(store.create(name, size)),
        }
    }

    /// Whether several processes may write to one file.
    pub(super) fn shares_files(&self) -> bool {
        match self {
            Staging::Local(_) => true,
            #[cfg(feature = "object-store")]
            Staging::Store(_) => false,
        }
    }

    /// A file that another process has created, where several may write to one.
    pub(super) fn join(&self, name: &str) -> Result<Box<dyn NewFile>> {
        match self {
            Staging::Local(directory) => directory.join(name),
            #[cfg(feature = "object-store")]
            Staging::Store(_) => Err(one_writer(name)),
        }
    }

    /// Puts everything in its place, when all processes have written their files. One of them calls it.
    pub(super) fn commit(&self, files: &[&str]) -> Result<()> {
        match self {
            Staging::Local(directory) => {
                directory.commit(files.first().copied().unwrap_or_default())
            }
            #[cfg(feature = "object-store")]
            Staging::Store(store) => store.commit(files),
        }
    }

    /// After that, all processes say that their files are to stay.
    pub(super) fn keep(&self) {
        match self {
            Staging::Local(_) => {}
            #[cfg(feature = "object-store")]
            Staging::Store(store) => store.keep(),
        }
    }
}

/// A file, or a directory of files, that is written beside its place and put there when everything is on disk. Until then nothing
/// is seen of it; if it never comes to that, nothing is left of it.
///
/// What is written is in a hidden directory. If the process is killed, the next one that writes to this place removes it.
pub(super) struct Directory {
    target: PathBuf,
    partial: PathBuf,
    old: PathBuf,
    is_file: bool,
    /// Whether this process made it, and removes it.
    is_own: bool,
    /// Of the process that made it.
    _room: Option<Room>,
}

impl Directory {
    /// Refuses a target that exists, unless it may be replaced; and a directory with anything in it that is no file of a
    /// checkpoint, because that would be lost.
    fn new(target: &Path, is_file: bool, overwrite: bool, id: &str) -> Result<Directory> {
        if target.symlink_metadata().is_ok() && !is_empty_directory(target) {
            if !overwrite {
                return Err(Error::Exists { path: target.display().to_string() });
            }
            check_replaceable(target, is_file)?;
        }
        let mut staging = Directory::of(target, is_file, id);
        staging._room = Some(Room::make(target, &staging.partial)?);
        staging.is_own = true;
        Ok(staging)
    }

    /// The one of this id that another process has made.
    fn of(target: &Path, is_file: bool, id: &str) -> Directory {
        let (partial, old) = (beside(target, PARTIAL, id), beside(target, OLD, id));
        let target = target.to_owned();
        Directory { target, partial, old, is_file, is_own: false, _room: None }
    }

    fn create(&self, name: &str) -> Result<Box<dyn NewFile>> {
        Ok(Box::new(LocalNewFile::create(self.partial.join(name), true)?))
    }

    fn join(&self, name: &str) -> Result<Box<dyn NewFile>> {
        Ok(Box::new(LocalNewFile::join(self.partial.join(name), true)?))
    }

    /// Puts everything in its place; where that is a file, the one of this name.
    fn commit(&self, name: &str) -> Result<()> {
        sync_directory(&self.partial)?;
        let put = match self.is_file {
            true => fs::rename(self.partial.join(name), &self.target),
            false => replace(&self.partial, &self.target, &self.old),
        };
        put.map_err(failed("write", &self.target))?;
        self.target.parent().map_or(Ok(()), sync_directory)?;
        // What was there is now here, or at `partial`, which goes with this.
        let _ = fs::remove_dir_all(&self.old);
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // After a commit this is what was replaced, or nothing. What cannot be removed is hidden and in nobody's way.
        if self.is_own {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// The path of a target, with everything before its name resolved. Refuses one where the source is.
fn resolved(source: &Source, target: &str) -> Result<PathBuf> {
    let path = local_path(target).ok_or_else(|| Error::Unsupported {
        what: "a URL of an object store".into(),
        place: target.to_owned(),
        way_out: "build with the feature `object-store`",
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

pub(super) fn is_checkpoint_file(name: &str) -> bool {
    let ends = [".safetensors", ".safetensors.index.json", ".distcp"];
    ends.iter().any(|end| name.ends_with(end)) || [MANIFEST_FILE, ".metadata"].contains(&name)
}

fn is_empty_directory(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}
