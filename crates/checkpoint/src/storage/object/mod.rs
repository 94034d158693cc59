//! Prefixes of object stores.
//!
//! An object appears whole, when its upload is complete, and cannot be renamed. So the files of a checkpoint lie under the id of
//! their save, `prefix/ID/shard-...`, and what makes them the checkpoint is one object: the manifest, which lists them.
//! Putting a new manifest is the commit. Then the files of the old one are deleted. So PyTorch, which knows no manifest, is given
//! `prefix/ID`, where the safetensors files are; this crate is given `prefix`.
//!
//! Stores have no locks. Of two processes that save to one prefix at a time, the one that commits last gets
//! `Error::Overtaken` wherever the store can put an object on a condition, and nothing of the other is touched.

mod place;
mod read;
mod run;
mod upload;
mod write;

use object_store::{ListResult, ObjectStoreExt as _, PutMode, UpdateVersion, path::Path};

use crate::{Error, NewFile, Result};
use place::Stores;
use run::{failed, run};
use upload::Upload;

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

    /// A new object, which appears when all of it is there.
    pub(crate) fn upload(&self, name: &str, size: u64) -> Box<dyn NewFile> {
        Box::new(Upload::new(&self.stores, self.path(name), self.place_of(name), size))
    }

    /// The names of the objects and folders directly in it.
    pub(crate) fn content(&self) -> Result<(Vec<String>, Vec<String>)> {
        let found = self.children("")?;
        let objects = names(found.objects.iter().map(|object| &object.location));
        Ok((objects, names(found.common_prefixes.iter())))
    }

    /// Deletes an object, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.delete(name)
    }

    /// The object of this name, which may have several parts.
    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// A place inside of this one.
    fn within(&self, name: &str) -> ObjectFiles {
        let (prefix, place) = (self.path(name), self.place_of(name));
        ObjectFiles { stores: self.stores.clone(), prefix, place }
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
        Ok(self.get_version(name)?.map(|(bytes, _)| bytes))
    }

    /// The same, and what the store knows just this content by.
    fn get_version(&self, name: &str) -> Result<Option<(Vec<u8>, UpdateVersion)>> {
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        let get = async move {
            let found = objects.get(&path).await?;
            let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
            Ok((found.bytes().await?.to_vec(), UpdateVersion { e_tag, version }))
        };
        match run(get) {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read", self.place_of(name))(error)),
        }
    }

    /// Writes a small object in the place of the one that is known by `old`, or where there is none. False if another one is there
    /// by now. A store that cannot look writes it anyway.
    fn put_instead(&self, name: &str, content: &[u8], old: Option<UpdateVersion>) -> Result<bool> {
        use object_store::Error::{AlreadyExists, NotImplemented, NotSupported, Precondition};
        let (objects, path) = (self.stores.objects.clone(), self.path(name));
        let bytes = content.to_vec();
        let mode = match old {
            None => PutMode::Create,
            Some(UpdateVersion { e_tag: None, version: None }) => PutMode::Overwrite,
            Some(old) => PutMode::Update(old),
        };
        match run(async move { objects.put_opts(&path, bytes.into(), mode.into()).await }) {
            Ok(_) => Ok(true),
            Err(AlreadyExists { .. } | Precondition { .. }) => Ok(false),
            Err(NotImplemented { .. } | NotSupported { .. }) => {
                self.put(name, content).map(|()| true)
            }
            Err(error) => Err(failed("write", self.place_of(name))(error)),
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
