//! Checkpoints in object stores.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use object_store::UpdateVersion;

use super::{ObjectFiles, names};
use crate::{
    Destination, Error, MANIFEST_FILE, Manifest, NewCheckpoint, NewFile, Result,
    storage::{
        claim::Claim,
        leftovers::{ABANDONED, is_id},
    },
};

/// What the names of folders with notes begin with.
const NOTES: &str = "notes-";

/// The note that says that there may be others.
const OPEN: &str = "open";

impl Destination for ObjectFiles {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn new_checkpoint(&self, id: &str, _: bool) -> Box<dyn NewCheckpoint> {
        Box::new(NewObjects { files: self.clone(), id: id.to_owned(), begun: Mutex::default() })
    }
}

struct NewObjects {
    files: ObjectFiles,
    id: String,
    /// Of rank 0.
    begun: Mutex<Option<Begun>>,
}

/// A save that has begun.
struct Begun {
    _claim: Claim,
    /// The checkpoint that was there: its id, and what the store knows its manifest by.
    replaces: Option<(String, UpdateVersion)>,
}

impl NewCheckpoint for NewObjects {
    fn place(&self) -> String {
        self.files.place.clone()
    }

    fn begin(&self) -> Result<()> {
        let claim = Claim::new(self.place())?;
        let (objects, folders) = self.files.content()?;
        let other = objects.iter().find(|name| *name != MANIFEST_FILE);
        if let Some(other) = other.or_else(|| folders.iter().find(|folder| !is_of_a_save(folder))) {
            return Err(Error::Occupied { path: self.place(), found: format!("`{other}`") });
        }
        // Whatever is not of the checkpoint that is there was left by a save that was killed, or is being written by another process.
        let replaces = self.current()?;
        let current = replaces.as_ref().map(|(id, _)| id);
        self.files.remove_abandoned(current.map(String::as_str), ABANDONED)?;
        *self.begun() = Some(Begun { _claim: claim, replaces });
        Ok(())
    }

    fn create(&self, name: &str, size: u64) -> Result<Box<dyn NewFile>> {
        Ok(self.files.upload(&self.final_name(name), size))
    }

    fn discard(&self, name: &str) {
        let _ = self.files.delete(&self.final_name(name));
    }

    fn final_name(&self, name: &str) -> String {
        format!("{}/{name}", self.id)
    }

    fn commit(&self, manifest: &[u8]) -> Result<()> {
        let replaces = self.begun().as_mut().and_then(|begun| begun.replaces.take());
        let (old, version) = replaces.unzip();
        // If another process has put one meanwhile, this one may be older.
        let put = self.files.put_instead(MANIFEST_FILE, manifest, version);
        if !matches!(put, Ok(true)) {
            // A request that was made again because its answer was lost finds what it has written itself.
            let there = self.files.get(MANIFEST_FILE);
            if !matches!(there, Ok(Some(there)) if there == manifest) {
                return Err(put.err().unwrap_or(Error::Overtaken { path: self.place() }));
            }
        }
        if let Some(old) = old {
            // If this fails a later save does it.
            let _ = self.files.delete_children(&old);
        }
        Ok(())
    }

    fn is_committed(&self) -> bool {
        matches!(self.current(), Ok(Some((id, _))) if id == self.id)
    }

    fn abandon(&self) {
        let _ = self.files.delete_children(&self.id);
    }

    fn begin_notes(&self) -> Result<()> {
        self.post(OPEN, &[])
    }

    fn post(&self, note: &str, text: &[u8]) -> Result<()> {
        self.files.put(&self.note(note), text)
    }

    fn notes(&self) -> Result<Option<Vec<String>>> {
        let found = self.files.children(&format!("{NOTES}{}", self.id))?;
        let notes = names(found.objects.iter().map(|object| &object.location));
        Ok(notes.iter().any(|note| note == OPEN).then_some(notes))
    }

    fn read(&self, note: &str) -> Result<Vec<u8>> {
        let text = self.files.get(&self.note(note))?;
        text.ok_or_else(|| Error::broken(self.files.place_of(&self.note(note)), "it is gone"))
    }

    fn remove(&self, note: &str) {
        let _ = self.files.delete(&self.note(note));
    }

    fn remove_notes(&self) {
        let _ = self.files.delete_children(&format!("{NOTES}{}", self.id));
    }

    fn longest_nap(&self) -> Duration {
        Duration::from_secs(1)
    }
}

impl NewObjects {
    fn note(&self, note: &str) -> String {
        format!("{NOTES}{}/{note}", self.id)
    }

    fn begun(&self) -> MutexGuard<'_, Option<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of the checkpoint that is there, and what the store knows its manifest by.
    fn current(&self) -> Result<Option<(String, UpdateVersion)>> {
        let Some((bytes, version)) = self.files.get_version(MANIFEST_FILE)? else {
            return Ok(None);
        };
        Ok(Some((Manifest::parse(MANIFEST_FILE, &bytes)?.id, version)))
    }
}

impl ObjectFiles {
    /// Removes what saves that were killed have left here: folders of saves to which nothing was written for some time. The one of the
    /// checkpoint that is here stays.
    pub(super) fn remove_abandoned(&self, current: Option<&str>, age: Duration) -> Result<()> {
        let (_, folders) = self.content()?;
        let is_left = |folder: &&String| Some(folder.as_str()) != current && is_of_a_save(folder);
        for folder in folders.iter().filter(is_left) {
            let objects = self.children(folder)?.objects;
            let newest = objects.iter().map(|object| SystemTime::from(object.last_modified)).max();
            if newest.is_some_and(|newest| newest.elapsed().is_ok_and(|passed| passed >= age)) {
                self.delete_children(folder)?;
            }
        }
        Ok(())
    }
}

/// Whether a folder is named as those are that saves write to.
fn is_of_a_save(folder: &str) -> bool {
    is_id(folder.strip_prefix(NOTES).unwrap_or(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_save_has_left_is_removed_when_it_is_old_enough() {
        let files = ObjectFiles::open("memory://abandoned/step-00000001").unwrap();
        let (current, dead) = ("0123456789abcdef", "fedcba9876543210");
        let notes = format!("{NOTES}{dead}");
        for folder in [current, dead, &notes, "of-somebody-else"] {
            files.put(&format!("{folder}/object"), b"half").unwrap();
        }
        let folders = || files.content().unwrap().1;
        files.remove_abandoned(Some(current), ABANDONED).unwrap();
        assert_eq!(folders().len(), 4);
        files.remove_abandoned(Some(current), Duration::ZERO).unwrap();
        assert_eq!(folders(), [current, "of-somebody-else"]);
        files.remove_abandoned(None, Duration::ZERO).unwrap();
        assert_eq!(folders(), ["of-somebody-else"]);
    }
}
