//! Directories of safetensors files: whole tensors, or boxes of them.
//!
//! A file says about itself in `__metadata__`, whose values are texts:
//!
//! ```text
//! DCP_SHARDING_INFO   {"layer.weight": {"saved_offsets": [2, 0]}, ...}    where each tensor of the file lies in the whole
//! DCP_VERSION         1.0
//! format              pt
//! dtensor.tensors     {"layer.weight": {"shape": [5, 3], "layout": "[S(0)] on (dp=2)", ...}, ...}    if this crate wrote it
//! ```
//!
//! Without the first, every tensor is whole. PyTorch does not write down global shapes: they are where the last chunk ends. So a
//! missing file shows if it leaves a hole, or if its name says how many there are, and cannot show if it held the end of each of its
//! tensors. With `model.safetensors.index.json`, the files that it names are the checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use dtensor_layout::IndexBox;
use serde_json::Value as Json;

use super::{
    index::Index,
    listing::Listing,
    safetensors::{
        Header, OWN_INFO, SHARDING_INFO, Stored, VALUES, index_at, parse_header, read_header_bytes,
        sizes,
    },
};
use crate::{
    Catalog, Checksum, Chunk, Error, Format, Result, SourceFile, Storage, TensorEntry, Value,
    catalog::Contents, manifest::value_from_json, workers,
};

/// How the names of files end.
pub(crate) const SUFFIX: &str = ".safetensors";

const INDEX: &str = "model.safetensors.index.json";
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// Whether a file of a directory is meant: not, if it is hidden, as what some systems leave beside each file.
pub(crate) fn is_one(file: &SourceFile) -> bool {
    file.name.ends_with(SUFFIX) && !file.name.starts_with('.')
}

/// Whether a file holds parts of tensors, by its name: `shard-{rank}-...`. Alone, it cannot tell how large they are.
pub(crate) fn is_shard(name: &str) -> bool {
    without_rank(name).is_some() && name.ends_with(SUFFIX)
}

/// What the files of a directory hold together.
pub(crate) fn open(storage: &dyn Storage, listing: &Listing) -> Result<Catalog> {
    let indexes: Vec<&str> = listing
        .iter()
        .map(|file| file.name.as_str())
        .filter(|name| name.ends_with(INDEX_SUFFIX))
        .collect();
    let index = match indexes.as_slice() {
        [only] => Some(*only),
        // Of several variants of a model, the one without a name of its own.
        several => several.contains(&INDEX).then_some(INDEX),
    };
    match index {
        Some(index) => {
            let promised = Index::read(storage, listing, index)?;
            let catalog = open_files(storage, promised.files(listing)?)?;
            promised.check(&catalog)?;
            Ok(catalog)
        }
        None => {
            let files = listing.iter().filter(|file| is_one(file));
            let files: Vec<SourceFile> = files.cloned().collect();
            check_numbers(&files)?;
            open_files(storage, files)
        }
    }
}

/// What these files hold together.
pub(crate) fn open_files(storage: &dyn Storage, files: Vec<SourceFile>) -> Result<Catalog> {
    let shards = workers::map(&files, workers::readers(), |file| Shard::read(storage, &file.name))?;
    let format = match shards.iter().any(|shard| shard.offsets.is_some()) {
        true => Format::ShardedSafetensors,
        false => Format::Safetensors,
    };
    let mut catalog = Catalog::new(format, files);
    let mut known_shapes = BTreeMap::new();
    for (position, shard) in shards.into_iter().enumerate() {
        let Shard { header, offsets, own, values } = shard;
        catalog.extend(Contents { values, ..Contents::default() })?;
        for packed in header.packed {
            // Each file may have a part of it.
            catalog.unreadable.entry(packed.name).or_insert(packed.reason);
        }
        for stored in header.tensors {
            let file = catalog.files[position].name.clone();
            if let Some(own) = own.as_ref().and_then(|own| own.get(&stored.name)) {
                note_shape(&mut known_shapes, &stored.name, own, &file)?;
            }
            let index = index_of(&stored, offsets.as_ref(), &file)?;
            add(&mut catalog, stored, index, position, offsets.is_some())?;
        }
    }
    if let Some(name) = catalog.unreadable.keys().find(|name| catalog.tensors.contains_key(*name)) {
        return Err(Error::Twice { name: name.clone() });
    }
    for (name, entry) in &mut catalog.tensors {
        let file = entry.chunks.first().map_or("", |chunk| &catalog.files[chunk.file].name);
        match known_shapes.remove(name) {
            Some(Own { shape, layout }) => (entry.shape, entry.layout) = (shape, layout),
            None => entry.shape = end_of(&entry.chunks),
        }
        entry.check_cover(name, file)?;
    }
    Ok(catalog)
}

/// A file of tensors.
struct Shard {
    header: Header,
    /// By name, if the file says so: where its tensors begin in the whole ones.
    offsets: Option<serde_json::Map<String, Json>>,
    /// What we have written about its tensors.
    own: Option<serde_json::Map<String, Json>>,
    /// What is no tensor, if we have kept it in this file.
    values: Vec<(String, Value)>,
}

impl Shard {
    fn read(storage: &dyn Storage, name: &str) -> Result<Shard> {
        let file = storage.open(name)?;
        let header = parse_header(name, &read_header_bytes(file.as_ref())?, file.size())?;
        let object = |key: &str| match header.metadata.get(key) {
            None => Ok(None),
            Some(text) => match serde_json::from_str(text) {
                Ok(Json::Object(object)) => Ok(Some(object)),
                _ => Err(Error::broken(name, format!("its `{key}` is no JSON object"))),
            },
        };
        let (offsets, own) = (object(SHARDING_INFO)?, object(OWN_INFO)?);
        let value = |(key, json): (String, Json)| match value_from_json(&json) {
            Some(value) => Ok((key, value)),
            None => Err(Error::broken(name, format!("`{key}` is none of the kinds of value"))),
        };
        let values = object(VALUES)?.into_iter().flatten().map(value).collect::<Result<_>>()?;
        Ok(Shard { header, offsets, own, values })
    }
}

/// What we write down and PyTorch does not.
#[derive(PartialEq)]
struct Own {
    shape: Vec<usize>,
    layout: Option<String>,
}

/// Every file that holds a part of a tensor says the same about the whole, or they are of different saves.
fn note_shape(
    known: &mut BTreeMap<String, Own>,
    name: &str,
    json: &Json,
    file: &str,
) -> Result<()> {
    let broken = |what: &str| Error::broken(file, format!("`{name}`: {what}"));
    let shape = sizes(&json["shape"]).ok_or_else(|| broken("its global shape is no list"))?;
    let own = Own { shape, layout: json["layout"].as_str().map(str::to_owned) };
    match known.get(name) {
        Some(before) if *before != own => Err(broken(
            "another file says another global shape or layout; files of two saves are mixed",
        )),
        Some(_) => Ok(()),
        None => {
            known.insert(name.to_owned(), own);
            Ok(())
        }
    }
}

/// Where a tensor of a file lies in the whole.
fn index_of(
    stored: &Stored,
    offsets: Option<&serde_json::Map<String, Json>>,
    file: &str,
) -> Result<IndexBox> {
    let broken = |what: &str| Error::broken(file, format!("`{}`: {what}", stored.name));
    let offsets = match offsets.and_then(|offsets| offsets.get(&stored.name)) {
        None => vec![0; stored.shape.len()],
        Some(json) => sizes(&json["saved_offsets"])
            .filter(|offsets| offsets.len() == stored.shape.len())
            .ok_or_else(|| broken("its `saved_offsets` are not one number per dim"))?,
    };
    index_at(&offsets, &stored.shape)
        .ok_or_else(|| broken("its `saved_offsets` are beyond any tensor"))
}

/// Adds a chunk to its tensor; the shape comes when all are there.
fn add(
    catalog: &mut Catalog,
    stored: Stored,
    index: IndexBox,
    position: usize,
    sharded: bool,
) -> Result<()> {
    let Stored { name, stored, offset, .. } = stored;
    let chunk = Chunk { index, file: position, offset, strides: None, checksum: Checksum::None };
    let Some(entry) = catalog.tensors.get_mut(&name) else {
        let entry = TensorEntry { stored, shape: Vec::new(), chunks: vec![chunk], layout: None };
        catalog.tensors.insert(name, entry);
        return Ok(());
    };
    let (here, other) = (&catalog.files[position].name, entry.chunks.first());
    let there = other.map_or("", |other| &catalog.files[other.file].name);
    let n_dims = other.map_or(0, |other| other.index.0.len());
    let what = if !sharded {
        format!("`{name}` is in `{there}` as well; remove what is stale, or open one of the files")
    } else if entry.stored != stored || n_dims != chunk.index.0.len() {
        let (dtype, dims) = (entry.stored, chunk.index.0.len());
        format!(
            "`{name}` is {stored} of {dims} dims, and {dtype} of {n_dims} dims in `{there}`; files of two saves are mixed"
        )
    } else {
        entry.chunks.push(chunk);
        return Ok(());
    };
    Err(Error::broken(here.as_str(), what))
}

/// The largest end of any chunk in each dim.
fn end_of(chunks: &[Chunk]) -> Vec<usize> {
    let mut ends = vec![0; chunks.first().map_or(0, |chunk| chunk.index.0.len())];
    for chunk in chunks {
        for (end, range) in ends.iter_mut().zip(&chunk.index.0) {
            *end = range.end.max(*end);
        }
    }
    ends
}

/// Files are called `{anything}-00002-of-00005.safetensors`: whether all five are there. Of shards, each rank has its own series,
/// and none of them need be complete, but together they are.
fn check_numbers(files: &[SourceFile]) -> Result<()> {
    let mut series: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
    for file in files {
        if let Some((stem, number, count)) = numbered(&file.name) {
            series.entry((stem, count)).or_default().insert(number);
        }
    }
    for ((stem, count), numbers) in series {
        // Some tools count from zero.
        let first = u32::from(!numbers.contains(&0));
        let mut wanted = first..first.saturating_add(count);
        if let Some(missing) = wanted.find(|number| !numbers.contains(number)) {
            let name = format!("{stem}-{missing:05}-of-{count:05}{SUFFIX}");
            return Err(Error::broken(
                name,
                format!("it is missing; {} others are there", numbers.len()),
            ));
        }
    }
    Ok(())
}

/// `model`, 2 and 5 of `shard-00007-model-00002-of-00005.safetensors`.
fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (stem, count) = name.strip_suffix(SUFFIX)?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let stem = without_rank(stem).unwrap_or(stem);
    Some((stem, number.parse().ok()?, count.parse().ok()?))
}

/// `model` of `shard-00007-model`.
fn without_rank(name: &str) -> Option<&str> {
    let (rank, name) = name.strip_prefix("shard-")?.split_once('-')?;
    rank.parse::<u32>().is_ok().then_some(name)
}
