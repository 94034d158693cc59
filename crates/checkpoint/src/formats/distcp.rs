//! PyTorch's classic distributed checkpoint: `.metadata`, a pickle, and `__{rank}_{i}.distcp`, archives one after the other.
//!
//! ```text
//! Metadata
//!   state_dict_metadata   name -> TensorStorageMetadata(properties, size, chunks = [ChunkStorageMetadata(offsets, sizes), ...])
//!                              or BytesStorageMetadata()
//!   storage_data          MetadataIndex(fqn, offset, index) -> _StorageInfo(relative_path, offset, length, transform_descriptors)
//!   planner_data          name -> path in the nested state; joined by dots it is the name, so that nothing is lost without it
//!   storage_meta, version
//! ```
//!
//! Bytes `offset..offset + length` of a `.distcp` file are a whole file of `torch.save`: the one tensor of a chunk, or any other
//! object. So the place of a chunk's elements is known only after a look into its archive, at both of its ends.

use std::{collections::BTreeSet, ops::Range};

use dtensor_layout::IndexBox;

use super::{
    budget::Budget,
    distcp_metadata::{Blob, Metadata},
    flatten::flatten,
    listing::Listing,
    pickle::{MAX_PICKLE, Place, parse},
    tensor_view::TensorView,
    torch_save::Saved,
    window::{Prefetched, Window, read},
};
use crate::{
    Catalog, Checksum, Chunk, Error, Format, ReadAt, Result, Storage, StoredType, TensorEntry,
    catalog::{Contents, insert},
    workers,
};

/// The file that makes a directory such a checkpoint.
pub(crate) const METADATA: &str = ".metadata";

/// Enough of either end of an archive of one tensor to know where its elements are.
const EDGE: u64 = 2048;
/// Archives that are read ahead together.
const BATCH: usize = 64;

/// What is in a checkpoint of these files.
pub(crate) fn open(storage: &dyn Storage, listing: &Listing) -> Result<Catalog> {
    let file = storage.open(METADATA)?;
    if file.size() > MAX_PICKLE {
        let what = format!("{} bytes, of at most {MAX_PICKLE}", file.size());
        return Err(Error::broken(METADATA, what));
    }
    let bytes = read(file.as_ref(), 0, file.size())?;
    let tree = parse(&bytes, Place { file: METADATA, start: 0 })?;
    let metadata = Metadata::read(&tree)?;
    let mut catalog = Catalog::new(Format::Distcp, files(&metadata, listing)?);
    let parts = parts(metadata, &mut catalog)?;
    let batches: Vec<&[Part<'_>]> = parts
        .chunk_by(|one, other| one.file == other.file)
        .flat_map(|of_file| of_file.chunks(BATCH))
        .collect();
    let budget = Budget::new();
    let found = workers::map(&batches, workers::readers(), |batch| {
        read_batch(storage, &catalog, batch, &budget)
    })?;
    for (part, found) in parts.iter().zip(found.into_iter().flatten()) {
        match found {
            Found::Chunk(chunk) => {
                if let Some(entry) = catalog.tensors.get_mut(part.name) {
                    entry.chunks.push(chunk);
                }
            }
            Found::Object(contents) => catalog.extend(contents)?,
        }
    }
    for (name, entry) in &catalog.tensors {
        entry.check_cover(name, METADATA)?;
    }
    Ok(catalog)
}

/// An archive in a file, and what it should hold.
struct Part<'t> {
    file: usize,
    range: Range<u64>,
    name: &'t str,
    content: Content,
}

enum Content {
    Chunk { stored: StoredType, index: IndexBox },
    Object,
}

enum Found {
    Chunk(Chunk),
    Object(Contents),
}

/// The files that the metadata mention, by name. All of them must be there, and nowhere else.
fn files(metadata: &Metadata<'_>, listing: &Listing) -> Result<Vec<crate::SourceFile>> {
    let chunks = metadata.tensors.iter().flat_map(|tensor| &tensor.chunks);
    let blobs = chunks.map(|(_, blob)| blob).chain(metadata.values.iter().map(|(_, blob)| blob));
    let names: BTreeSet<&str> = blobs.map(|blob| blob.path).collect();
    names.into_iter().map(|name| listing.get(name, METADATA).cloned()).collect()
}

/// Puts the tensors into the catalog, without their chunks, and says where to look for these: by file and offset.
fn parts<'t>(metadata: Metadata<'t>, catalog: &mut Catalog) -> Result<Vec<Part<'t>>> {
    let mut parts = Vec::new();
    for tensor in metadata.tensors {
        let (name, stored) = (tensor.name, tensor.stored);
        let mut chunks = Vec::new();
        for (index, blob) in tensor.chunks {
            let (file, range) = place(catalog, name, &blob)?;
            if index.is_empty() {
                // There is nothing to look up.
                let (offset, strides, checksum) = (range.start, None, Checksum::None);
                chunks.push(Chunk { index, file, offset, strides, checksum });
            } else {
                parts.push(Part { file, range, name, content: Content::Chunk { stored, index } });
            }
        }
        let entry = TensorEntry { stored, shape: tensor.shape, chunks, layout: None };
        insert(&mut catalog.tensors, name.to_owned(), entry)?;
    }
    for (name, blob) in metadata.values {
        let (file, range) = place(catalog, name, &blob)?;
        parts.push(Part { file, range, name, content: Content::Object });
    }
    parts.sort_by_key(|part| (part.file, part.range.start));
    for pair in parts.windows(2) {
        let [one, other] = pair else { continue };
        if one.file == other.file && other.range.start < one.range.end {
            let what = format!(
                "`{}` is at bytes {:?} of `{}`, and `{}` at {:?}",
                one.name, one.range, catalog.files[one.file].name, other.name, other.range
            );
            return Err(Error::broken(METADATA, what));
        }
    }
    Ok(parts)
}

/// Position of the file, and bytes of it.
fn place(catalog: &Catalog, name: &str, blob: &Blob<'_>) -> Result<(usize, Range<u64>)> {
    let found = catalog.files.binary_search_by(|file| file.name.as_str().cmp(blob.path));
    let end = blob.offset.checked_add(blob.length);
    let size = found.ok().and_then(|file| catalog.files.get(file)).map(|file| file.size);
    match (found, end) {
        (Ok(file), Some(end)) if Some(end) <= size => Ok((file, blob.offset..end)),
        _ => {
            let Blob { path, offset, length } = blob;
            let what = format!(
                "it has {} bytes, and {length} bytes from byte {offset} on should be `{name}`; it is cut off",
                size.unwrap_or_default()
            );
            Err(Error::broken(*path, what))
        }
    }
}

/// What some archives of one file hold, one after the other.
fn read_batch(
    storage: &dyn Storage,
    catalog: &Catalog,
    batch: &[Part<'_>],
    budget: &Budget,
) -> Result<Vec<Found>> {
    let Some(source) = batch.first().and_then(|part| catalog.files.get(part.file)) else {
        return Ok(Vec::new());
    };
    let file = storage.open(&source.name)?;
    let edges = batch.iter().flat_map(|Part { range, .. }| {
        let head = range.start..range.end.min(range.start.saturating_add(EDGE));
        [head, range.end.saturating_sub(EDGE).max(range.start)..range.end]
    });
    let file = Prefetched::new(file.as_ref(), edges.collect())?;
    batch.iter().map(|part| read_part(&file, part, budget)).collect()
}

fn read_part(file: &dyn ReadAt, part: &Part<'_>, budget: &Budget) -> Result<Found> {
    let Range { start, end } = part.range;
    let window = Window::new(file, start, end - start)?;
    let saved = Saved::open(&window)?;
    let tree = match (saved.tree(file.name(), budget), &part.content) {
        // Each object is a pickle of its own: what is wrong with one does not touch the others.
        (Err(error @ Error::ForbiddenGlobal { .. }), Content::Object) => {
            let unreadable = vec![(part.name.to_owned(), error.to_string())];
            return Ok(Found::Object(Contents { unreadable, ..Contents::default() }));
        }
        (tree, _) => tree?,
    };
    let Content::Chunk { stored, index } = &part.content else {
        let flat = flatten(&tree, part.name, file.name(), budget)?;
        return Ok(Found::Object(saved.contents(flat, &window, part.file, budget)?));
    };
    let broken = |what| Error::broken(file.name(), format!("`{}` {index}: {what}", part.name));
    let call = tree.call(tree.root()).filter(|call| TensorView::is_one(call));
    let call = call.ok_or_else(|| broken(format!("byte {start} begins something else")))?;
    let view = TensorView::read(&tree, call, part.name, file.name())?;
    if view.stored != *stored || view.shape != index.shape() {
        let (found, shape) = (view.stored, view.shape);
        let what = format!("{found} {shape:?}, and the metadata say {stored} {:?}", index.shape());
        return Err(broken(what));
    }
    let record = saved.storage(&window, view.key)?;
    let record = (&record, saved.archive_start, part.file);
    Ok(Found::Chunk(view.chunk(index.clone(), record, budget).map_err(broken)?))
}
