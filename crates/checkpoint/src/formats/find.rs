//! Which kind of checkpoint is at a place.

use std::{fs, io::ErrorKind, path::Path, sync::Arc};

use super::{
    distcp::{self, METADATA},
    index::Index,
    listing::Listing,
    native,
    sharded::{self, SUFFIX},
    torch_save, zip,
};
use crate::{
    Catalog, Error, LocalFiles, MANIFEST_FILE, ReadAt, Result, SourceFile, Storage,
    storage::{self, held, leftovers},
};

/// How files of `torch.save` are called.
const TORCH_SUFFIXES: [&str; 4] = [".pt", ".pth", ".bin", ".ckpt"];
/// The name of such a file in a repository of models, and of the index of several.
const TORCH_MODEL: &str = "pytorch_model.bin";
const TORCH_INDEX: &str = "pytorch_model.bin.index.json";
/// How a pickle of PyTorch before 1.6 begins: protocol 2, and a magic number.
const TORCH_LEGACY: [u8; 14] =
    [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// The checkpoint at a place.
pub(crate) fn open(storage: &dyn Storage) -> Result<Catalog> {
    let listing = Listing::of(storage)?;
    if listing.contains(MANIFEST_FILE) {
        return native::open(storage);
    }
    if listing.contains(METADATA) {
        return distcp::open(storage, &listing);
    }
    if listing.iter().any(sharded::is_one) {
        return sharded::open(storage, &listing);
    }
    if listing.contains(TORCH_INDEX) {
        let index = Index::read(storage, &listing, TORCH_INDEX)?;
        let catalog = torch_save::open(storage, index.files(&listing)?)?;
        index.check(&catalog)?;
        return Ok(catalog);
    }
    let is_torch = |file: &&SourceFile| TORCH_SUFFIXES.iter().any(|end| file.name.ends_with(end));
    let torch: Vec<&SourceFile> = listing.iter().filter(is_torch).collect();
    match torch.as_slice() {
        [only] => return open_file(storage, &only.name),
        several if several.iter().any(|file| file.name == TORCH_MODEL) => {
            return open_file(storage, TORCH_MODEL);
        }
        // One of every rank.
        [first, ..] if torch_save::has_shards(storage, &first.name) => {
            return torch_save::open(storage, torch.into_iter().cloned().collect());
        }
        _ => {}
    }
    if listing.contains("__0.metadata") {
        return Err(Error::Unsupported {
            what: "metadata of every rank for itself".to_owned(),
            place: storage.place(),
            way_out: "save with `use_collectives=True`",
        });
    }
    let found = match (torch.len(), listing.iter().any(|file| file.name.ends_with(".distcp"))) {
        (_, true) => {
            format!("a save was not finished, `{METADATA}` is missing beside {}", listing.shown())
        }
        (0 | 1, false) => listing.shown(),
        _ => format!("choose one of the files: {}", listing.shown()),
    };
    Err(Error::NoCheckpoint { path: storage.place(), found })
}

/// The checkpoint that is one file of a place.
pub(crate) fn open_file(storage: &dyn Storage, name: &str) -> Result<Catalog> {
    if sharded::is_shard(name) {
        return Err(Error::Unsupported {
            what: "one shard of a checkpoint".to_owned(),
            place: name.to_owned(),
            way_out: "open the directory that it is in",
        });
    }
    let file = storage.open(name)?;
    let mut start = [0; 14];
    let known = file.size().min(start.len() as u64) as usize;
    file.read_at(0, &mut start[..known])?;
    let files = vec![SourceFile { name: name.to_owned(), size: file.size() }];
    // A header of safetensors is a JSON object after its length. The length may happen to be the magic number of another format.
    if start[8] == b'{' || name.ends_with(SUFFIX) {
        return sharded::open_files(storage, files);
    }
    if start.starts_with(&zip::MAGIC) {
        return torch_save::open(storage, files);
    }
    if start == TORCH_LEGACY || is_tar(file.as_ref())? {
        return Err(Error::Unsupported {
            what: "the format of PyTorch before 1.6".to_owned(),
            place: name.to_owned(),
            way_out: "load it and torch.save it again with a newer PyTorch",
        });
    }
    let found = format!("`{name}` is neither a safetensors file nor one of torch.save");
    Err(Error::NoCheckpoint { path: storage.place(), found })
}

/// Where a checkpoint is: in a place, or in one file of it. It is held: what takes its place later is not seen.
pub(crate) struct Found {
    pub storage: Arc<dyn Storage>,
    file: Option<String>,
}

impl Found {
    /// What it holds, as read from `storage`: its own place, or one that gives the same.
    pub(crate) fn open_in(&self, storage: &dyn Storage) -> Result<Catalog> {
        match &self.file {
            Some(file) => open_file(storage, file),
            None => open(storage),
        }
    }

    fn open(self) -> Result<(Arc<dyn Storage>, Catalog)> {
        let catalog = self.open_in(&*self.storage)?;
        Ok((self.storage, catalog))
    }
}

/// The checkpoint that a path or a URL names, a directory or a file, and the place that its files are in, held.
pub(crate) fn open_place(place: &str) -> Result<(Arc<dyn Storage>, Catalog)> {
    held::retry(|| find(place)?.open())
}

/// The checkpoint at a path of this machine. If nothing is there because a machine stopped just while a checkpoint was
/// replaced, it is the old one.
pub(crate) fn open_path(path: &Path) -> Result<(Arc<dyn Storage>, Catalog)> {
    held::retry(|| find_path(path)?.open())
}

/// Where the checkpoint is that a path or a URL names.
pub(crate) fn find(place: &str) -> Result<Found> {
    if let Some(path) = storage::local_path(place) {
        return find_path(Path::new(path));
    }
    // What a store holds under a name is only known for files, so the name decides.
    let is_file =
        |name: &str| name.ends_with(SUFFIX) || TORCH_SUFFIXES.iter().any(|end| name.ends_with(end));
    let file = place.rsplit_once('/').filter(|(_, name)| is_file(name));
    let storage = storage::open(file.map_or(place, |(folder, _)| folder))?.into();
    Ok(Found { storage, file: file.map(|(_, name)| name.to_owned()) })
}

fn find_path(path: &Path) -> Result<Found> {
    let path = &*leftovers::old_if_missing(path);
    let shown = path.display().to_string();
    let about = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::NoCheckpoint { path: shown.clone(), found: "nothing is there".to_owned() }
        }
        _ => Error::io("open", shown.as_str())(error),
    })?;
    if about.is_dir() {
        let storage = LocalFiles::new(path).hold_directory().map_err(gone(path))?;
        return Ok(Found { storage, file: None });
    }
    let (Some(parent), Some(name)) =
        (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        let found = "the name of the file is no UTF-8".to_owned();
        return Err(Error::NoCheckpoint { path: shown, found });
    };
    // The parent of a lone name is the empty path, which is no directory.
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    // A part of a checkpoint is no checkpoint, though each of its files can be named in a hurry.
    if matches!(name, MANIFEST_FILE | METADATA) {
        return find_path(parent);
    }
    let storage = LocalFiles::new(parent).hold_file(name).map_err(gone(path))?;
    Ok(Found { storage, file: Some(name.to_owned()) })
}

/// For `map_err`: what was there a moment ago is just being replaced.
fn gone(path: &Path) -> impl FnOnce(Error) -> Error {
    let path = path.display().to_string();
    move |error| match error {
        Error::Io { kind: ErrorKind::NotFound, .. } => Error::Replaced { path },
        error => error,
    }
}

/// Until PyTorch 0.1.9, files were tar archives.
fn is_tar(file: &dyn ReadAt) -> Result<bool> {
    let mut magic = [0; 5];
    if file.size() < 512 {
        return Ok(false);
    }
    file.read_at(257, &mut magic)?;
    Ok(&magic == b"ustar")
}
