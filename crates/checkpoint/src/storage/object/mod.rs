//! Prefixes of object stores.
//!
//! An object appears whole, when its upload is complete, and cannot be renamed. So the files of a checkpoint lie under the id of
//! their save, `prefix/ID/shard-...`, and what makes them the checkpoint is one object: the manifest, which lists them.
//! Putting a new manifest is the commit. Then the files of the old one are deleted.

mod place;
mod read;
mod run;
mod upload;
mod write;

use object_store::{ListResult, ObjectStoreExt as _, path::Path};

use crate::{Error, Result};
use place::Stores;
use run::{failed, run};

/// A prefix of an object store. Reads are ranged, uploads go in parts, several at a time.
#[derive(Clone)]
pub struct ObjectFiles {
    stores: Stores,
    prefix: Path,
    place: String,
}

impl ObjectFiles {
    /// The prefix that a URL names: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, each with the settings that
    /// the environment has for it (`AWS_REGION`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so on), or
    /// `memory://name/prefix`, which is memory of this process.
    pub fn open(url: &str) -> Result<ObjectFiles> {
        let (stores, prefix) = place::find(url)?;
        Ok(ObjectFiles { stores, prefix, place: url.trim_end_matches('/').to_owned() })
    }

    /// The object of this name, which may have several parts.
    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn place_of(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    /// What is directly under a name.
    fn children(&self, name: &str) -> Result<ListResult> {
        let prefix = if name.is_empty() { self.prefix.clone() } else { self.path(name) };
        let objects = self.stores.objects.clone();
        run(async move { objects.list_with_delimiter(Some(&prefix)).await })
            .map_err(failed("list", self.place_of(name)))
    }

    /// The content of a small object, if it is there.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        match run(async move { objects.get(&path).await?.bytes().await }) {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read", self.place_of(name))(error)),
        }
    }

    /// Writes a small object.
    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        let content = content.to_vec();
        let put = run(async move { objects.put(&path, content.into()).await });
        put.map(drop).map_err(failed("write", self.place_of(name)))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        match run(async move { objects.delete(&path).await }) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove", self.place_of(name))(error)),
        }
    }

    /// Deletes every object directly under a name.
    fn delete_children(&self, name: &str) -> Result<()> {
        let names = names(self.children(name)?.objects.iter().map(|object| &object.location));
        names.iter().try_for_each(|child| self.delete(&format!("{name}/{child}")))
    }
}

impl std::fmt::Debug for ObjectFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectFiles").field(&self.place).finish()
    }
}

/// The last parts of paths.
fn names<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    paths.filter_map(|path| path.filename().map(str::to_owned)).collect()
}

/// An error about a URL.
fn no_such_place(url: &str, found: impl Into<String>) -> Error {
    Error::NoCheckpoint { path: url.to_owned(), found: found.into() }
}
