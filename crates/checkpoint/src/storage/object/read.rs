//! Reading from object stores.

use std::io::ErrorKind;

use object_store::{ObjectStoreExt as _, path::Path};

use super::{
    ObjectFiles, names,
    run::{begin, failed, run},
};
use crate::{
    Error, MANIFEST_FILE, Manifest, ReadAt, Result, SourceFile, Storage,
    storage::{
        leftovers::{ABANDONED, is_id},
        shelf::Shelf,
    },
};

/// Bytes of one request. A longer read is several requests at a time.
const REQUEST: usize = 8 << 20;

/// Requests at a time.
const REQUESTS: usize = 4;

impl Storage for ObjectFiles {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let objects = self.children("")?.objects;
        let file = |object: object_store::ObjectMeta| {
            Some(SourceFile { name: object.location.filename()?.to_owned(), size: object.size })
        };
        let mut files: Vec<SourceFile> = objects.into_iter().filter_map(file).collect();
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        let about = run(async move { objects.head(&path).await });
        let about = about.map_err(failed("open", self.place_of(name)));
        let size = about.map_err(|error| self.replaced_or(name, error))?.size;
        Ok(Box::new(Object {
            name: name.to_owned(),
            files: self.clone(),
            path: self.path(name),
            size,
        }))
    }
}

impl ObjectFiles {
    /// Why an object cannot be read: because its checkpoint was replaced, or for the reason that is given. Objects of a save lie under
    /// its id, and no other objects ever have their names. They are deleted after another save has put its manifest.
    fn replaced_or(&self, name: &str, error: Error) -> Error {
        let is_gone = matches!(&error, Error::Io { kind: ErrorKind::NotFound, .. });
        let Some((id, _)) = name.split_once('/').filter(|(id, _)| is_gone && is_id(id)) else {
            return error;
        };
        let now = self.get(MANIFEST_FILE).map(|manifest| {
            manifest.and_then(|bytes| Some(Manifest::parse(MANIFEST_FILE, &bytes).ok()?.id))
        });
        match now {
            Ok(now) if now.as_deref() != Some(id) => Error::Replaced { path: self.place.clone() },
            _ => error,
        }
    }
}

impl Shelf for ObjectFiles {
    fn checkpoints(&self) -> Result<Vec<String>> {
        Ok(names(self.children("")?.common_prefixes.iter()))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.get(name)
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        self.put(name, text)
    }

    fn remove(&self, name: &str) -> Result<()> {
        // Without its manifest it is no checkpoint.
        self.delete(&format!("{name}/{MANIFEST_FILE}"))?;
        for child in names(self.children(name)?.common_prefixes.iter()) {
            self.delete_children(&format!("{name}/{child}"))?;
        }
        self.delete_children(name)
    }

    fn clear(&self) -> Result<()> {
        // A save that was killed left its files under the name that it was for.
        Ok(())
    }

    fn remove_abandoned(&self, name: &str) -> Result<()> {
        let files = self.within(name);
        // A manifest that cannot be read may be damaged, or of a later version: nobody can say what it lists.
        match files.content()?.0.iter().any(|object| object == MANIFEST_FILE) {
            true => Ok(()),
            false => files.remove_abandoned(None, ABANDONED),
        }
    }
}

struct Object {
    name: String,
    files: ObjectFiles,
    path: Path,
    size: u64,
}

impl ReadAt for Object {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let cut_off = || {
            let (from, bytes) = (offset, into.len());
            Error::broken(
                &self.name,
                format!("it has no {bytes} bytes from {from} on: it has {}", self.size),
            )
        };
        let fits = offset.checked_add(into.len() as u64).is_some_and(|end| end <= self.size);
        if !fits {
            return Err(cut_off());
        }
        let mut at = offset;
        for stretch in into.chunks_mut(REQUEST * REQUESTS) {
            let requests: Vec<_> = stretch
                .chunks_mut(REQUEST)
                .map(|into| {
                    let range = at..at + into.len() as u64;
                    at = range.end;
                    let (objects, path) = (self.files.stores.objects.clone(), self.path.clone());
                    (into, begin(async move { objects.get_range(&path, range).await }))
                })
                .collect();
            for (into, request) in requests {
                let bytes = request.wait().map_err(failed("read", self.name.clone()));
                let bytes = bytes.map_err(|error| self.files.replaced_or(&self.name, error))?;
                match bytes.len() == into.len() {
                    true => into.copy_from_slice(&bytes),
                    false => {
                        let (got, want) = (bytes.len(), into.len());
                        let what = format!("a request for {want} bytes gave {got}");
                        return Err(Error::broken(&self.name, what));
                    }
                }
            }
        }
        Ok(())
    }
}
