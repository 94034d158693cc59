//! Where files lie: to be read from ([`Storage`]), and to be written to ([`Destination`]).

pub(crate) mod claim;
mod destination;
pub(crate) mod held;
pub(crate) mod leftovers;
mod local;
mod local_write;
#[cfg(feature = "object-store")]
mod object;
pub(crate) mod replace;
mod shelf;
mod write_behind;

pub use destination::{Destination, NewCheckpoint, NewFile, WriteAt};
pub use local::LocalFiles;
#[cfg(feature = "object-store")]
pub use object::ObjectFiles;

#[cfg(feature = "object-store")]
pub(crate) use destination::one_writer;
pub(crate) use local_write::LocalNewFile;
pub(crate) use shelf::{Shelf, shelf};

use std::sync::Arc;

use crate::{Result, SourceFile};

/// A place with files in it: a directory, or a prefix of an object store.
pub trait Storage: Send + Sync {
    /// For people, and for errors.
    fn place(&self) -> String;

    /// The files directly in it, by name.
    fn list(&self) -> Result<Vec<SourceFile>>;

    /// A file to read from.
    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>>;

    /// The same place with what is in it now: whatever takes its place afterwards is not seen by way of it, and files that are
    /// gone since are [`Error::Replaced`](crate::Error::Replaced). None, which is the default, where a file of a checkpoint never
    /// has the name of another one, and for a place that is held already.
    fn hold(&self) -> Result<Option<Arc<dyn Storage>>> {
        Ok(None)
    }

    /// [`Error::Replaced`](crate::Error::Replaced), if this was given by [`hold`](Storage::hold) and something else is there by now.
    fn check_held(&self) -> Result<()> {
        Ok(())
    }
}

/// A file that can be read anywhere.
pub trait ReadAt: Send + Sync {
    /// Its name, for errors.
    fn name(&self) -> &str;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `into` from byte `offset` on; an error if the file ends before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// As [`read_at`](ReadAt::read_at), into several pieces of memory, one after the other.
    fn read_pieces_at(&self, offset: u64, pieces: &mut [&mut [u8]]) -> Result<()> {
        let mut bytes = vec![0; pieces.iter().map(|piece| piece.len()).sum()];
        self.read_at(offset, &mut bytes)?;
        let mut rest = bytes.as_slice();
        for piece in pieces {
            let (part, after) = rest.split_at(piece.len());
            piece.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    }
}

/// The place that a path or a URL names, to read from.
///
/// A path is a directory of this machine. URLs are `file:///path`, and with the feature `object-store` also
/// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` (each with the settings that the environment has
/// for it) and `memory://name/prefix`, which is memory of this process.
///
/// If a machine stopped just while an old checkpoint was replaced, on a file system that cannot exchange two directories
/// in one step, the old one lies beside its place under another name; then it is that one which is opened.
pub fn open(place: &str) -> Result<Box<dyn Storage>> {
    match local_path(place) {
        Some(path) => Ok(Box::new(LocalFiles::new(leftovers::old_if_missing(path.as_ref())))),
        #[cfg(feature = "object-store")]
        None => Ok(Box::new(ObjectFiles::open(place)?)),
        #[cfg(not(feature = "object-store"))]
        None => Err(no_object_stores(place)),
    }
}

/// The place that a path or a URL names, to write a checkpoint to: as [`open`].
///
/// In a directory the files of a checkpoint lie beside its manifest. In an object store, where nothing can be renamed, they lie under
/// the id of their save, `prefix/ID/shard-...`, and the manifest at `prefix` lists them. This crate is given `prefix`; PyTorch, which
/// knows no manifest, is given `prefix/ID`.
pub fn destination(place: &str) -> Result<Box<dyn Destination>> {
    match local_path(place) {
        Some(path) => Ok(Box::new(LocalFiles::new(path))),
        #[cfg(feature = "object-store")]
        None => Ok(Box::new(ObjectFiles::open(place)?)),
        #[cfg(not(feature = "object-store"))]
        None => Err(no_object_stores(place)),
    }
}

/// The path that this names, if it is one of this machine.
pub(crate) fn local_path(place: &str) -> Option<&str> {
    match place.split_once("://") {
        Some(("file", path)) => Some(path),
        Some(_) => None,
        None => Some(place),
    }
}

#[cfg(not(feature = "object-store"))]
fn no_object_stores(place: &str) -> crate::Error {
    crate::Error::Unsupported {
        what: "a URL of an object store".into(),
        place: place.to_owned(),
        way_out: "build with the feature `object-store`",
    }
}
