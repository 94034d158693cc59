//! Checkpoints in object stores.

use std::time::Duration;

use super::{ObjectFiles, names, upload::Upload};
use crate::{
    Destination, Error, MANIFEST_FILE, Manifest, NewCheckpoint, NewFile, Result,
    storage::leftovers::is_id,
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
        Box::new(NewObjects { files: self.clone(), id: id.to_owned() })
    }
}

struct NewObjects {
    files: ObjectFiles,
    id: String,
}

impl NewCheckpoint for NewObjects {
    fn place(&self) -> String {
        self.files.place.clone()
    }

    fn begin(&self) -> Result<()> {
        let found = self.files.children("")?;
        let objects = names(found.objects.iter().map(|object| &object.location));
        let folders = names(found.common_prefixes.iter());
        let is_ours = |folder: &String| is_id(folder.strip_prefix(NOTES).unwrap_or(folder));
        let other = objects.iter().find(|name| *name != MANIFEST_FILE);
        if let Some(other) = other.or_else(|| folders.iter().find(|folder| !is_ours(folder))) {
            return Err(Error::Occupied { path: self.place(), found: format!("`{other}`") });
        }
        // Whatever is not of the checkpoint that is there was left by saves that were killed.
        let current = self.current()?;
        let left = folders.iter().filter(|folder| Some(*folder) != current.as_ref());
        left.map(String::as_str).try_for_each(|folder| self.files.delete_children(folder))
    }

    fn create(&self, name: &str, size: u64) -> Result<Box<dyn NewFile>> {
        let name = self.final_name(name);
        let (path, place) = (self.files.path(&name), self.files.place_of(&name));
        Ok(Box::new(Upload::new(&self.files.stores, path, place, size)))
    }

    fn discard(&self, name: &str) {
        let _ = self.files.delete(&self.final_name(name));
    }

    fn final_name(&self, name: &str) -> String {
        format!("{}/{name}", self.id)
    }

    fn commit(&self, manifest: &[u8]) -> Result<()> {
        let old = self.current()?;
        self.files.put(MANIFEST_FILE, manifest)?;
        if let Some(old) = old {
            // If this fails the next save does it.
            let _ = self.files.delete_children(&old);
        }
        Ok(())
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

    /// The id of the checkpoint that is there.
    fn current(&self) -> Result<Option<String>> {
        let manifest = self.files.get(MANIFEST_FILE)?;
        let id = |bytes: Vec<u8>| Ok(Manifest::parse(MANIFEST_FILE, &bytes)?.id);
        manifest.map(id).transpose()
    }
}
