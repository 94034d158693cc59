//! Files of `torch.save`: a zip archive with a pickle, and a record of bytes for each storage.
//!
//! ```text
//! {name}/data.pkl                    the pickle (protocol 2), in which storages are persistent ids: see `tensor_view`
//! {name}/.format_version             "1"
//! {name}/.storage_alignment          "64"
//! {name}/byteorder                   "little" or "big", since PyTorch 2.1
//! {name}/data/0, data/1, ...         the bytes of storages
//! {name}/version                     "3\n"
//! {name}/.data/serialization_id      40 digits
//! ```
//!
//! `{name}` is the stem of the file, or `archive`. Several tensors may be views of one storage.
//!
//! Of a ShardedTensor a file has the shards of the rank that saved it. The files of all ranks, in one directory, are one
//! checkpoint. What the ranks have saved as a whole is there once where they have saved the same, which the checksums of the archives
//! tell; what differs from rank to rank, such as the state of random numbers, has the stem of its file before its name: `rank1.rng`.

use std::collections::{BTreeSet, HashMap};

use super::{
    budget::Budget,
    flatten::{Flat, flatten},
    pickle::{MAX_PICKLE, Place, Tree, parse},
    rank_files::RankFiles,
    window::Window,
    zip::{Archive, Data},
};
use crate::{
    Catalog, Error, Format, ReadAt, Result, SourceFile, Storage, TensorEntry, catalog::Contents,
    workers,
};

/// The pickle of such a file, and where its storages are.
pub(crate) struct Saved {
    archive: Archive,
    /// Where the archive begins in the file.
    pub archive_start: u64,
    pickle: Vec<u8>,
    /// Where the pickle begins in the file.
    pickle_start: u64,
}

impl Saved {
    /// Reads the pickle. The archive is all of `window`.
    pub fn open(window: &Window<'_>) -> Result<Saved> {
        let archive = Archive::open(window)?;
        let unsupported = |what: &str, way_out| Error::Unsupported {
            what: what.to_owned(),
            place: window.name().to_owned(),
            way_out,
        };
        if archive.contains("constants.pkl") {
            return Err(unsupported(
                "a TorchScript program",
                "save its `state_dict()` with torch.save",
            ));
        }
        if archive.contains("byteorder") && archive.read(window, "byteorder", 16)?.1 != b"little" {
            return Err(unsupported(
                "big-endian byte order",
                "load and save it again with PyTorch on a little-endian machine",
            ));
        }
        let (data, pickle) = archive.read(window, "data.pkl", MAX_PICKLE)?;
        let archive_start = window.start();
        Ok(Saved { archive, archive_start, pickle, pickle_start: archive_start + data.start })
    }

    /// What the pickle says.
    pub fn tree(&self, file: &str, budget: &Budget) -> Result<Tree<'_>> {
        budget.grant(self.pickle.len() as u64);
        parse(&self.pickle, Place { file, start: self.pickle_start })
    }

    /// Where the bytes of a storage are in the archive.
    pub fn storage(&self, window: &Window<'_>, key: &str) -> Result<Data> {
        self.archive.locate(window, &format!("data/{key}"))
    }

    /// What the pickle holds, with the places of its tensors in the file, which is the one at position `file` of the catalog.
    pub fn contents(
        &self,
        flat: Flat<'_>,
        window: &Window<'_>,
        file: usize,
        budget: &Budget,
    ) -> Result<Contents> {
        let (mut contents, sharded) = self.parts(flat, window, file, budget)?;
        for (name, entry) in sharded {
            entry.check_cover(&name, window.name())?;
            contents.tensors.push((name, entry));
        }
        Ok(contents)
    }

    /// The same, with tensors apart of which there may be only some shards.
    fn parts(
        &self,
        flat: Flat<'_>,
        window: &Window<'_>,
        file: usize,
        budget: &Budget,
    ) -> Result<(Contents, Vec<(String, TensorEntry)>)> {
        // Of a storage with many views, the place is looked up once.
        let shards = flat.sharded.iter().flat_map(|(_, sharded)| &sharded.shards);
        let whole = flat.tensors.iter().map(|(_, view)| view);
        let keys: BTreeSet<&str> =
            whole.chain(shards.map(|(_, view)| view)).map(|view| view.key).collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        let found = workers::map(&keys, workers::readers(), |key| self.storage(window, key))?;
        let storages: HashMap<&str, Data> = keys.into_iter().zip(found).collect();
        let mut tensors = Vec::with_capacity(flat.tensors.len());
        for (name, view) in flat.tensors {
            let broken = |what| Error::broken(window.name(), format!("`{name}`: {what}"));
            let record = storages.get(view.key).ok_or_else(|| broken("no storage".to_owned()))?;
            let entry = view.entry((record, self.archive_start, file), budget).map_err(broken)?;
            entry.check_cover(&name, window.name())?;
            tensors.push((name, entry));
        }
        let mut sharded = Vec::with_capacity(flat.sharded.len());
        for (name, view) in flat.sharded {
            let broken = |what| Error::broken(window.name(), format!("`{name}`: {what}"));
            let mut chunks = Vec::with_capacity(view.shards.len());
            for (index, shard) in view.shards {
                let record = storages.get(shard.key);
                let record = record.ok_or_else(|| broken("no storage".to_owned()))?;
                let place = (record, self.archive_start, file);
                chunks.push(shard.chunk(index, place, budget).map_err(broken)?);
            }
            let (stored, shape) = (view.stored, view.shape);
            sharded.push((name, TensorEntry { stored, shape, chunks, layout: None }));
        }
        let (values, unreadable) = (flat.values, flat.unreadable);
        Ok((Contents { tensors, values, unreadable }, sharded))
    }
}

/// What is in these files of a place, which hold different parts of a state.
pub(crate) fn open(storage: &dyn Storage, files: Vec<SourceFile>) -> Result<Catalog> {
    let budget = Budget::new();
    let mut catalog = Catalog::new(Format::TorchSave, files);
    let mut of_ranks = RankFiles::default();
    for position in 0..catalog.files.len() {
        let name = catalog.files[position].name.clone();
        let file = storage.open(&name)?;
        let window = Window::whole(file.as_ref());
        let saved = Saved::open(&window)?;
        let tree = saved.tree(&name, &budget)?;
        // A tensor or a value alone has no name but that of the file.
        let alone = tree.dict(tree.root()).is_none() && tree.sequence(tree.root()).is_none();
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        let flat = flatten(&tree, if alone { stem } else { "" }, &name, &budget)?;
        let (contents, shards) = saved.parts(flat, &window, position, &budget)?;
        match shards.is_empty() {
            true => catalog.extend(contents)?,
            false => of_ranks.add(&name, stem, contents, shards)?,
        }
    }
    catalog.extend(of_ranks.together(&storage.place())?)?;
    Ok(catalog)
}

/// Whether a file has some shards of ShardedTensors. One that cannot be read has none.
pub(crate) fn has_shards(storage: &dyn Storage, name: &str) -> bool {
    let budget = Budget::new();
    let has = || -> Result<bool> {
        let file = storage.open(name)?;
        let saved = Saved::open(&Window::whole(file.as_ref()))?;
        let tree = saved.tree(name, &budget)?;
        Ok(!flatten(&tree, "", name, &budget)?.sharded.is_empty())
    };
    has().unwrap_or(false)
}
