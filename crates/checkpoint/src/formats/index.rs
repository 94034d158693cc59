//! `*.index.json` of repositories of models: which file holds which tensor.
//!
//! ```text
//! {"metadata": {"total_size": 123}, "weight_map": {"layer.weight": "model-00001-of-00002.safetensors", ...}}
//! ```
//!
//! The files that it names are the checkpoint, and no others. Its total is often wrong, and is not looked at.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{listing::Listing, safetensors::MAX_HEADER, window::read};
use crate::{Catalog, Error, Result, SourceFile, Storage};

/// What such a file says.
pub(crate) struct Index<'n> {
    name: &'n str,
    weight_map: serde_json::Map<String, Json>,
}

impl<'n> Index<'n> {
    pub fn read(storage: &dyn Storage, listing: &Listing, name: &'n str) -> Result<Index<'n>> {
        let size = listing.get(name, name)?.size;
        if size > MAX_HEADER {
            return Err(Error::broken(name, format!("{size} bytes, of at most {MAX_HEADER}")));
        }
        let bytes = read(storage.open(name)?.as_ref(), 0, size)?;
        let mut json: Json = serde_json::from_slice(&bytes)
            .map_err(|error| Error::broken(name, error.to_string()))?;
        match json.get_mut("weight_map").map(Json::take) {
            Some(Json::Object(weight_map)) => Ok(Index { name, weight_map }),
            _ => Err(Error::broken(name, "it has no `weight_map`")),
        }
    }

    /// The files that it names. All of them must be there.
    pub fn files(&self, listing: &Listing) -> Result<Vec<SourceFile>> {
        let mut names = BTreeSet::new();
        for (tensor, file) in &self.weight_map {
            names.insert(self.file_of(tensor, file)?);
        }
        names.into_iter().map(|name| listing.get(name, self.name).cloned()).collect()
    }

    /// Whether everything is where it says.
    pub fn check(&self, catalog: &Catalog) -> Result<()> {
        for (tensor, file) in &self.weight_map {
            let file = self.file_of(tensor, file)?;
            if catalog.unreadable.contains_key(tensor) {
                continue;
            }
            let chunks = catalog.tensors.get(tensor).map_or(&[][..], |entry| &entry.chunks);
            if !chunks.iter().any(|chunk| catalog.files[chunk.file].name == file) {
                let what = format!("it says that `{file}` holds `{tensor}`, which is not there");
                return Err(Error::broken(self.name, what));
            }
        }
        Ok(())
    }

    fn file_of<'j>(&self, tensor: &str, file: &'j Json) -> Result<&'j str> {
        let what = || Error::broken(self.name, format!("the file of `{tensor}` is no text"));
        file.as_str().ok_or_else(what)
    }
}
