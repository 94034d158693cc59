//! Places of this machine as they were when they were opened.
//!
//! A save exchanges a directory for another one whose files have the same names, and often the same sizes. Whoever opened one file
//! before that and another one after it would have a bit of both checkpoints. So what is read together is opened by way of the
//! directory itself, and not by way of its path: then a file of the old checkpoint is found, or none.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::{Dir, FileType, Mode, OFlags, open, openat, statat};

use super::{ReadAt, Storage, local::LocalFile};
use crate::{Error, Result, SourceFile};

/// As many files stay open once they were opened, so that they can still be read after the checkpoint was replaced.
const MOST_HELD: usize = 64;

/// As often something is tried that fails because a checkpoint is replaced: each time a whole save has come between.
const TRIES: usize = 10;

/// Does something that begins with opening a place, and does it again if what was there was replaced meanwhile.
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match attempt() {
            Err(Error::Replaced { .. }) => {}
            outcome => return outcome,
        }
    }
    attempt()
}

/// A directory, whatever is at its path by now.
pub(super) struct HeldDirectory {
    path: PathBuf,
    directory: File,
    /// By name, the first that were opened.
    files: Mutex<HashMap<String, Arc<File>>>,
}

impl HeldDirectory {
    pub(super) fn new(path: &Path) -> Result<HeldDirectory> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty()).map_err(io::Error::from);
        let directory = directory.map_err(Error::io("open", path.display().to_string()))?;
        Ok(HeldDirectory {
            path: path.to_owned(),
            directory: directory.into(),
            files: Mutex::default(),
        })
    }

    fn open_file(&self, name: &str) -> Result<Arc<File>> {
        let files = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // Anew for everybody who reads: the system reads ahead for each of those that opened a file, and gives that up where
        // several read in turns through one.
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => Arc::new(File::from(file)),
            Err(error) => {
                // Whoever replaces a checkpoint removes the files of the old one.
                if let Some(file) = files().get(name) {
                    return Ok(Arc::clone(file));
                }
                self.check_held()?;
                let path = self.path.join(name).display().to_string();
                return Err(Error::io("open", path)(error.into()));
            }
        };
        let mut files = files();
        if files.len() < MOST_HELD && !files.contains_key(name) {
            files.insert(name.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }

    fn list_now(&self) -> io::Result<Vec<SourceFile>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            // What a symbolic link points to counts: model hubs keep their files behind such links.
            let about =
                match statat(&self.directory, entry.file_name(), rustix::fs::AtFlags::empty()) {
                    // A link that leads nowhere, or what somebody has removed since: not what is being looked for.
                    Err(rustix::io::Errno::NOENT) => continue,
                    about => about?,
                };
            let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
            if let (true, Ok(name)) = (is_file, entry.file_name().to_str()) {
                found.push(SourceFile { name: name.to_owned(), size: about.st_size as u64 });
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }
}

impl Storage for HeldDirectory {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let found = self.list_now().map_err(Error::io("list", self.place()));
        // The files of a checkpoint that was replaced go one after the other: what was found may be a part of them.
        self.check_held()?;
        found
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        Ok(Box::new(LocalFile::new(name, self.open_file(name)?, &self.path)?))
    }

    fn check_held(&self) -> Result<()> {
        check_still_there(&self.directory, &self.path)
    }
}

/// A file, whatever is at its path by now. In the eyes of whoever reads it, its directory holds nothing else.
pub(super) struct HeldFile {
    path: PathBuf,
    directory: PathBuf,
    name: String,
    file: Arc<File>,
}

impl HeldFile {
    pub(super) fn new(directory: &Path, name: &str) -> Result<HeldFile> {
        let path = directory.join(name);
        let file = File::open(&path).map_err(Error::io("open", path.display().to_string()))?;
        Ok(HeldFile {
            path,
            directory: directory.to_owned(),
            name: name.to_owned(),
            file: Arc::new(file),
        })
    }
}

impl Storage for HeldFile {
    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let size = self.open(&self.name)?.size();
        Ok(vec![SourceFile { name: self.name.clone(), size }])
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        if name != self.name {
            let path = self.directory.join(name).display().to_string();
            return Err(Error::io("open", path)(ErrorKind::NotFound.into()));
        }
        Ok(Box::new(LocalFile::new(name, Arc::clone(&self.file), &self.directory)?))
    }

    fn check_held(&self) -> Result<()> {
        check_still_there(&self.file, &self.path)
    }
}

/// Whether a path leads to what is open. As long as it is open, nothing else has its number.
fn check_still_there(held: &File, path: &Path) -> Result<()> {
    let number = |about: fs::Metadata| (about.dev(), about.ino());
    let shown = || path.display().to_string();
    let held = held.metadata().map(number).map_err(Error::io("look at", shown()))?;
    match fs::metadata(path).map(number) {
        Ok(there) if there == held => Ok(()),
        Ok(_) => Err(Error::Replaced { path: shown() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Replaced { path: shown() }),
        Err(error) => Err(Error::io("look at", shown())(error)),
    }
}
