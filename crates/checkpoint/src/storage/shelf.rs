//! A place with several checkpoints in it, for a [`Series`](crate::Series).

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{leftovers, local_path};
use crate::{Error, Result};

/// A directory, or a prefix of an object store, with checkpoints and small files in it.
pub(crate) trait Shelf {
    /// The names of the checkpoints, or of what might be some.
    fn checkpoints(&self) -> Result<Vec<String>>;

    /// The content of a small file, if it is there.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Writes a small file; a reader sees the old one or the new one.
    fn write(&self, name: &str, text: &[u8]) -> Result<()>;

    /// Removes a checkpoint, which is whole or gone for every reader.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes what killed saves have left beside the checkpoints.
    fn clear(&self) -> Result<()>;

    /// Removes what killed saves have left under the name of a checkpoint that is not complete, if that is where they write.
    fn remove_abandoned(&self, name: &str) -> Result<()>;
}

/// The place that a path or a URL names.
pub(crate) fn shelf(place: &str) -> Result<Box<dyn Shelf>> {
    match local_path(place) {
        Some(path) => Ok(Box::new(LocalShelf { root: PathBuf::from(path) })),
        #[cfg(feature = "object-store")]
        None => Ok(Box::new(super::ObjectFiles::open(place)?)),
        #[cfg(not(feature = "object-store"))]
        None => Err(super::no_object_stores(place)),
    }
}

struct LocalShelf {
    root: PathBuf,
}

impl Shelf for LocalShelf {
    fn checkpoints(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(self.failed("list", ""))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(self.failed("list", ""))?;
            if entry.path().is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match fs::read(self.root.join(name)) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            content => content.map(Some).map_err(self.failed("read", name)),
        }
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        let hidden = self.root.join(format!(".{name}.new"));
        let write = || {
            fs::write(&hidden, text)?;
            fs::File::open(&hidden)?.sync_all()?;
            fs::rename(&hidden, self.root.join(name))?;
            fs::File::open(&self.root)?.sync_all()
        };
        write().map_err(self.failed("write", name))
    }

    fn remove(&self, name: &str) -> Result<()> {
        // Under the name of an unfinished one it is nobody's any more, and is removed by the next save if this one is killed.
        let doomed =
            leftovers::beside(&self.root.join(name), leftovers::PARTIAL, &crate::save::new_id());
        fs::rename(self.root.join(name), &doomed).map_err(self.failed("remove", name))?;
        fs::remove_dir_all(&doomed).map_err(self.failed("remove", name))
    }

    fn clear(&self) -> Result<()> {
        leftovers::clear_unfinished(&self.root).map_err(self.failed("clear", ""))
    }

    fn remove_abandoned(&self, _: &str) -> Result<()> {
        // A directory has its name when it is complete; one with this name and without a manifest is not from a save.
        Ok(())
    }
}

impl LocalShelf {
    fn failed(&self, doing: &'static str, name: &str) -> impl FnOnce(std::io::Error) -> Error {
        let path: &Path = &self.root;
        Error::io(doing, path.join(name).display().to_string())
    }
}
