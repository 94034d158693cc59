//! Files in an object store.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::target::is_checkpoint_file;
use crate::{
    Error, NewFile, Result,
    storage::{ObjectFiles, claim::Claim},
};

/// Files that are uploaded to their place. Each appears when it is complete; what is not kept is deleted again.
///
/// Nothing can be renamed in a store, and there is no manifest in files of this kind. So a reader that comes in between may see some
/// of several files; the index, which lists them, is the last.
pub(super) struct StoreStaging {
    files: ObjectFiles,
    /// What was there, and is to be replaced.
    old: Vec<String>,
    /// What this process has begun.
    begun: Mutex<Vec<String>>,
    kept: AtomicBool,
    _claim: Option<Claim>,
}

impl StoreStaging {
    /// Refuses a place where something is, unless it may be replaced; and one with anything in it that is no file of a
    /// checkpoint.
    pub(super) fn new(folder: &str, file: Option<&str>, overwrite: bool) -> Result<StoreStaging> {
        let url = file.map_or(folder.to_owned(), |file| format!("{folder}/{file}"));
        let claim = Claim::new(url.clone())?;
        let mut staging = StoreStaging::of(folder)?;
        let (objects, folders) = staging.files.content()?;
        let old: Vec<String> = match file {
            Some(file) => objects.into_iter().filter(|object| object == file).collect(),
            None => objects,
        };
        let other = old.iter().find(|name| !is_checkpoint_file(name));
        let other = other.or(folders.first().filter(|_| file.is_none()));
        match (old.is_empty(), overwrite, other) {
            (_, true, Some(other)) => {
                return Err(Error::Occupied { path: url, found: format!("`{other}`") });
            }
            (true, _, None) | (_, true, None) => {}
            _ => return Err(Error::Exists { path: url }),
        }
        (staging.old, staging._claim) = (old, Some(claim));
        Ok(staging)
    }

    /// The one that another process has begun.
    pub(super) fn of(folder: &str) -> Result<StoreStaging> {
        Ok(StoreStaging {
            files: ObjectFiles::open(folder)?,
            old: Vec::new(),
            begun: Mutex::default(),
            kept: AtomicBool::new(false),
            _claim: None,
        })
    }

    pub(super) fn create(&self, name: &str, size: u64) -> Box<dyn NewFile> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        self.files.upload(name, size)
    }

    /// Deletes what was replaced by files of other names, of which `written` are there now.
    pub(super) fn commit(&self, written: &[&str]) -> Result<()> {
        let stale = self.old.iter().filter(|old| !written.contains(&old.as_str()));
        stale.map(String::as_str).try_for_each(|old| self.files.remove(old))
    }

    /// What was uploaded stays.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for StoreStaging {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) {
            let begun = self.begun.get_mut().unwrap_or_else(PoisonError::into_inner);
            begun.iter().for_each(|name| drop(self.files.remove(name)));
        }
    }
}
