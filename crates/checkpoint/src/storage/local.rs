//! A directory of this machine.

use std::{
    fs,
    fs::File,
    io::IoSliceMut,
    num::NonZeroU64,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Advice, fadvise},
    io::ReadWriteFlags,
};

use super::{ReadAt, Storage};
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
            let about = fs::metadata(entry.path()).map_err(failed())?;
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
        let size = file.metadata().map_err(Error::io("open", path.display().to_string()))?.len();
        Ok(Box::new(LocalFile { name: name.to_owned(), file, size }))
    }
}

struct LocalFile {
    name: String,
    file: File,
    size: u64,
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

    fn will_read(&self, offset: u64, bytes: u64) {
        let (Some(last), length) = (bytes.checked_sub(1), NonZeroU64::new(bytes)) else { return };
        // Where the last byte is in memory, the others most often are, too, and to ask for each of their pages takes longer than
        // this.
        let mut byte = [0];
        let mut pieces = [IoSliceMut::new(&mut byte)];
        let at = offset.saturating_add(last);
        if rustix::io::preadv2(&self.file, &mut pieces, at, ReadWriteFlags::NOWAIT).is_ok() {
            return;
        }
        // The system reads ahead of what is read in order. Ranks that read in turn jump over what others read, and with every jump it
        // begins anew.
        let _ = fadvise(&self.file, offset, length, Advice::WillNeed);
    }

    fn read_pieces_at(&self, mut offset: u64, pieces: &mut [&mut [u8]]) -> Result<()> {
        // As many as systems take in one call.
        for pieces in pieces.chunks_mut(1024) {
            let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut slices: Vec<IoSliceMut<'_>> =
                pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let read = rustix::io::preadv(&self.file, &mut slices, offset)
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
