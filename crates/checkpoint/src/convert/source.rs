//! A checkpoint that is read.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use dtensor_layout::IndexBox;

use crate::{Catalog, Error, Reader, Result, Storage, formats, storage};

/// A checkpoint that was opened: what it holds, and where its bytes are.
///
/// Whatever is read of its tensors is verified, as far as the checkpoint has checksums.
pub struct Source {
    storage: Arc<dyn Storage>,
    reader: Reader,
    path: Option<PathBuf>,
    /// Where it is in an object store, if it is.
    #[cfg(feature = "object-store")]
    url: Option<String>,
}

impl Source {
    /// The checkpoint that a path or a URL names, a directory or one file: see [`storage::open`].
    pub fn open(place: &str) -> Result<Source> {
        let (storage, catalog) = formats::open_place(place)?;
        let path = storage::local_path(place).map(PathBuf::from);
        #[cfg(feature = "object-store")]
        let url = path.is_none().then(|| place.trim_end_matches('/').to_owned());
        Ok(Source {
            path,
            #[cfg(feature = "object-store")]
            url,
            ..Source::new(storage, catalog)
        })
    }

    /// The checkpoint whose catalog was read from this place.
    pub fn new(storage: Arc<dyn Storage>, catalog: Catalog) -> Source {
        let reader = Reader::new(Arc::clone(&storage), Arc::new(catalog));
        Source {
            storage,
            reader,
            path: None,
            #[cfg(feature = "object-store")]
            url: None,
        }
    }

    /// The same checkpoint, of which no checksums are compared if `verify` is false.
    #[must_use]
    pub fn verifying(self, verify: bool) -> Source {
        Source { reader: self.reader.verifying(verify), ..self }
    }

    /// What it holds.
    pub fn catalog(&self) -> &Arc<Catalog> {
        self.reader.catalog()
    }

    /// The place that its files are in.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Where it is on this machine, if it is.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Where it is in an object store, if it is.
    #[cfg(feature = "object-store")]
    pub(super) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// The names of all that it holds.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.catalog().names()
    }

    /// Refuses what cannot be read, and so cannot be taken over or compared.
    pub(crate) fn check_readable(&self, name: &str) -> Result<()> {
        match self.catalog().unreadable.get(name) {
            None => Ok(()),
            Some(reason) => Err(Error::Unreadable {
                name: name.to_owned(),
                reason: format!("{reason}. To go on without it, exclude `{name}`"),
            }),
        }
    }

    /// Boxes of a tensor, one after the other.
    pub(crate) fn read(&self, name: &str, boxes: &[IndexBox], mut into: &mut [u8]) -> Result<()> {
        let size = self.catalog().tensors.get(name).map_or(0, |entry| entry.stored.size());
        for index in boxes {
            let bytes = into.split_off_mut(..index.numel() * size).unwrap_or_default();
            self.reader.read_box(name, index, bytes)?;
        }
        Ok(())
    }
}
