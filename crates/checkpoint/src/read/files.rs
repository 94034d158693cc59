//! The files of a checkpoint, opened when they are needed.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Catalog, Error, ReadAt, Result, Storage};

/// As many files are open at a time, beside those that a place holds: systems allow a process about a thousand.
const MOST_OPEN: usize = 64;

/// The files of a checkpoint. Those that were used last are open.
pub(super) struct Files {
    storage: Arc<dyn Storage>,
    /// By position in the catalog; the one used last is at the end.
    open: Mutex<Vec<(usize, Arc<dyn ReadAt>)>>,
}

impl Files {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Files {
        Files { storage, open: Mutex::default() }
    }

    pub(super) fn get(&self, catalog: &Catalog, file: usize) -> Result<Arc<dyn ReadAt>> {
        if let Some(found) = self.take(file) {
            return Ok(found);
        }
        let Some(source) = catalog.files.get(file) else {
            return Err(Error::broken(self.storage.place(), format!("it has no file {file}")));
        };
        // Not under the lock: opening a file far away takes long. Two threads may open it at the same time.
        let opened: Arc<dyn ReadAt> = self.storage.open(&source.name)?.into();
        if opened.size() != source.size {
            let what = format!("it has {} bytes, and should have {}", opened.size(), source.size);
            return Err(Error::broken(&source.name, what));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST_OPEN {
            open.remove(0);
        }
        open.push((file, Arc::clone(&opened)));
        Ok(opened)
    }

    fn take(&self, file: usize) -> Option<Arc<dyn ReadAt>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let position = open.iter().rposition(|(number, _)| *number == file)?;
        let found = open.remove(position);
        let handle = Arc::clone(&found.1);
        open.push(found);
        Some(handle)
    }
}
