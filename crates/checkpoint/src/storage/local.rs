//! A directory of this machine.

use std::{
    fs,
    fs::File,
    io::{ErrorKind, IoSliceMut},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ReadAt, Storage,
    held::{HeldDirectory, HeldFile},
};
use crate::{Error, Result, SourceFile};

/// A directory of this machine; reads go straight to the files.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    root: PathBuf,
}

impl LocalFiles {
    /// The directory at this path.
    pub fn new(root: impl Into<PathBuf>) -> LocalFiles {
        LocalFiles { root: root.into() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory as it is now: see [`Storage::hold`].
    pub(crate) fn hold_directory(&self) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(HeldDirectory::new(&self.root)?))
    }

    /// One file of it, as it is now: see [`Storage::hold`].
    pub(crate) fn hold_file(&self, name: &str) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(HeldFile::new(&self.root, name)?))
    }
}

impl Storage for LocalFiles {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let failed = || Error::io("list", self.place());
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            // What a symbolic link points to counts: model hubs keep their files behind such links.
            let about = match fs::metadata(entry.path()) {
                // A link that leads nowhere, or what somebody has removed since: not what is being looked for.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                about => about.map_err(failed())?,
            };
            if let (true, Ok(name)) = (about.is_file(), entry.file_name().into_string()) {
                files.push(SourceFile { name, size: about.len() });
            }
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let path = self.root.join(name);
        let file = File::open(&path).map_err(Error::io("open", path.display().to_string()))?;
        Ok(Box::new(LocalFile::new(name, Arc::new(file), &self.root)?))
    }

    fn hold(&self) -> Result<Option<Arc<dyn Storage>>> {
        self.hold_directory().map(Some)
    }
}

/// A file that is open.
pub(super) struct LocalFile {
    name: String,
    file: Arc<File>,
    size: u64,
}

impl LocalFile {
    /// The file of this name, which was opened in a directory.
    pub(super) fn new(name: &str, file: Arc<File>, directory: &Path) -> Result<LocalFile> {
        let path = || directory.join(name).display().to_string();
        let size = file.metadata().map_err(Error::io("open", path()))?.len();
        Ok(LocalFile { name: name.to_owned(), file, size })
    }
}

impl ReadAt for LocalFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(Error::io("read", self.name.as_str()))
    }

    fn read_pieces_at(&self, offset: u64, pieces: &mut [&mut [u8]]) -> Result<()> {
        let scatter = |slices: &mut [IoSliceMut<'_>], offset: u64| {
            rustix::io::preadv(&*self.file, slices, offset)
        };
        self.scatter(offset, pieces, scatter)
    }
}

impl LocalFile {
    /// Fills pieces of memory by a call that fills several, as far as that goes.
    fn scatter(
        &self,
        mut offset: u64,
        pieces: &mut [&mut [u8]],
        mut call: impl FnMut(&mut [IoSliceMut<'_>], u64) -> rustix::io::Result<usize>,
    ) -> Result<()> {
        // As many as systems take in one call.
        for pieces in pieces.chunks_mut(1024) {
            let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut slices: Vec<IoSliceMut<'_>> =
                pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            // A signal that somebody handles, as profilers and debuggers do, is no failure.
            let read = rustix::io::retry_on_intr(|| call(&mut slices, offset))
                .map_err(|error| Error::io("read", self.name.as_str())(error.into()))?;
            // A call may end early. What is left is read piece by piece.
            let mut before = 0;
            for piece in pieces.iter_mut().filter(|_| read < bytes) {
                let done = read.saturating_sub(before).min(piece.len());
                self.read_at(offset + (before + done) as u64, &mut piece[done..])?;
                before += piece.len();
            }
            offset += bytes as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_not_listed_and_those_that_lead_to_files_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("a"), "abc").unwrap();
        symlink(path("a"), path("b")).unwrap();
        symlink(path("gone"), path("c")).unwrap();
        let listed = LocalFiles::new(directory.path()).list().unwrap();
        let file = |name: &str| SourceFile { name: name.into(), size: 3 };
        assert_eq!(listed, [file("a"), file("b")]);
    }

    #[test]
    fn a_read_that_a_signal_interrupts_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "0123456789").unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let file = LocalFile::new("a", file, directory.path()).unwrap();
        let (mut one, mut other, mut calls) = ([0; 3], [0; 4], 0);
        let interrupted = |slices: &mut [IoSliceMut<'_>], offset: u64| {
            calls += 1;
            match calls {
                1 => Err(Errno::INTR),
                // And then it ends early.
                _ => rustix::io::preadv(&*file.file, &mut slices[..1], offset),
            }
        };
        file.scatter(2, &mut [&mut one, &mut other], interrupted).unwrap();
        assert_eq!((&one, &other, calls), (b"234", b"5678", 2));
        let broken = |_: &mut [IoSliceMut<'_>], _| Err(Errno::IO);
        let error = file.scatter(2, &mut [&mut one], broken).unwrap_err();
        assert!(matches!(error, Error::Io { doing: "read", .. }), "{error}");
    }
}
