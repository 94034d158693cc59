//! The pickle `.metadata` of a classic distributed checkpoint.

use std::collections::HashMap;

use dtensor_layout::IndexBox;

use super::{
    distcp::METADATA,
    pickle::{Global, Object, Tree},
};
use crate::{Error, Result, StoredType};

/// What the pickle says, in its order.
pub(super) struct Metadata<'t> {
    pub tensors: Vec<Tensor<'t>>,
    /// What is no tensor, by name.
    pub values: Vec<(&'t str, Blob<'t>)>,
}

pub(super) struct Tensor<'t> {
    pub name: &'t str,
    pub stored: StoredType,
    pub shape: Vec<usize>,
    pub chunks: Vec<(IndexBox, Blob<'t>)>,
}

/// Bytes of a file.
#[derive(Clone, Copy)]
pub(super) struct Blob<'t> {
    pub path: &'t str,
    pub offset: u64,
    pub length: u64,
}

/// Where what is: by name, and by the offset of a chunk in its tensor.
type Places<'t> = HashMap<(&'t str, Option<Vec<usize>>), Blob<'t>>;

impl<'t> Metadata<'t> {
    /// Understands the tree.
    pub fn read(tree: &Tree<'t>) -> Result<Metadata<'t>> {
        let attribute = |name: &str| {
            let object = tree.attribute(tree.root(), Global::Metadata, name);
            object.ok_or_else(|| broken(format!("it is no `Metadata` with `{name}`")))
        };
        let places = places(tree, attribute("storage_data")?)?;
        let items = attribute("state_dict_metadata")?;
        let items = tree.dict(items).ok_or_else(|| broken("`state_dict_metadata` is no dict"))?;
        let mut metadata = Metadata { tensors: Vec::new(), values: Vec::new() };
        for (name, about) in items {
            let name = tree.text(*name).ok_or_else(|| broken("a name is no text"))?;
            match tree.call(*about).map(|call| call.callee) {
                Some(Global::TensorStorageMetadata) => {
                    metadata.tensors.push(tensor(tree, name, *about, &places)?)
                }
                Some(Global::BytesStorageMetadata) => {
                    metadata.values.push((name, find(&places, name, None)?))
                }
                _ => return Err(broken(format!("`{name}` is neither tensor nor bytes"))),
            }
        }
        Ok(metadata)
    }
}

fn tensor<'t>(
    tree: &Tree<'t>,
    name: &'t str,
    about: Object,
    places: &Places<'t>,
) -> Result<Tensor<'t>> {
    let missing = |what: &str| broken(format!("`{name}` has no {what}"));
    let attribute = |what: &str| {
        tree.attribute(about, Global::TensorStorageMetadata, what).ok_or_else(|| missing(what))
    };
    let stored = stored_type(tree, name, attribute("properties")?)?;
    let shape = tree.sizes(attribute("size")?).ok_or_else(|| missing("size"))?;
    let mut chunks = Vec::new();
    for chunk in tree.sequence(attribute("chunks")?).ok_or_else(|| missing("chunks"))? {
        let sizes = |what: &str| {
            let sizes = tree.attribute(*chunk, Global::ChunkStorageMetadata, what);
            let sizes = sizes.and_then(|sizes| tree.sizes(sizes));
            sizes.filter(|sizes| sizes.len() == shape.len()).ok_or_else(|| missing(what))
        };
        let (offsets, sizes) = (sizes("offsets")?, sizes("sizes")?);
        let range = |(&start, &size): (&usize, &usize)| Some(start..start.checked_add(size)?);
        let index: Option<Vec<_>> = offsets.iter().zip(&sizes).map(range).collect();
        let index = index.ok_or_else(|| broken(format!("`{name}`: a chunk beyond any tensor")))?;
        chunks.push((IndexBox(index), find(places, name, Some(offsets))?));
    }
    Ok(Tensor { name, stored, shape, chunks })
}

/// `TensorProperties`, whose state is the tuple (dtype, layout, requires_grad, memory format, pin_memory[, strides]).
fn stored_type(tree: &Tree<'_>, name: &str, properties: Object) -> Result<StoredType> {
    let call = tree.call(properties).filter(|call| call.callee == Global::TensorProperties);
    let state = call.and_then(|call| tree.tuple(call.state?));
    let Some([Object::Global(Global::DType(stored)), layout, ..]) = state else {
        return Err(broken(format!("`{name}` has no dtype")));
    };
    let layout = tree.call(*layout).and_then(|layout| tree.tuple(layout.arguments));
    match layout.and_then(|arguments| tree.text(*arguments.first()?)) {
        Some("torch.strided") => Ok(*stored),
        layout => Err(Error::Unsupported {
            what: format!("`{name}` of layout {}", layout.unwrap_or("unknown")),
            place: METADATA.to_owned(),
            way_out: "save it as a dense tensor: `tensor.to_dense()`",
        }),
    }
}

fn places<'t>(tree: &Tree<'t>, storage: Object) -> Result<Places<'t>> {
    let items = tree.dict(storage).ok_or_else(|| broken("`storage_data` is no dict"))?;
    let mut places = Places::with_capacity(items.len());
    for (index, info) in items {
        let name = tree.attribute(*index, Global::MetadataIndex, "fqn");
        let name = name.and_then(|name| tree.text(name));
        let name = name.ok_or_else(|| broken("a key of `storage_data` has no name"))?;
        let offset = match tree.attribute(*index, Global::MetadataIndex, "offset") {
            None | Some(Object::Nothing) => None,
            Some(offset) => {
                let offset = tree.sizes(offset);
                Some(offset.ok_or_else(|| broken(format!("`{name}`: an offset is no size")))?)
            }
        };
        let blob = blob(tree, name, *info)?;
        if places.insert((name, offset), blob).is_some() {
            return Err(broken(format!("`{name}` is at two places")));
        }
    }
    Ok(places)
}

fn blob<'t>(tree: &Tree<'t>, name: &str, info: Object) -> Result<Blob<'t>> {
    let attribute = |what: &str| tree.attribute(info, Global::StorageInfo, what);
    // Absent in older versions.
    let transforms = attribute("transform_descriptors");
    match transforms {
        None | Some(Object::Nothing) => {}
        Some(list) if tree.sequence(list).is_some_and(<[_]>::is_empty) => {}
        Some(_) => {
            return Err(Error::Unsupported {
                what: format!("`{name}`, transformed by an extension such as compression,"),
                place: METADATA.to_owned(),
                way_out: "save again with a FileSystemWriter without `_extensions`",
            });
        }
    }
    let path = attribute("relative_path").and_then(|path| tree.text(path));
    let number = |what: &str| tree.size::<u64>(attribute(what)?);
    match (path, number("offset"), number("length")) {
        (Some(path), Some(offset), Some(length)) => Ok(Blob { path, offset, length }),
        _ => Err(broken(format!("`{name}` has no path, offset and length in `storage_data`"))),
    }
}

fn find<'t>(places: &Places<'t>, name: &'t str, offset: Option<Vec<usize>>) -> Result<Blob<'t>> {
    let key = (name, offset);
    match places.get(&key) {
        Some(blob) => Ok(*blob),
        None => {
            let chunk = key.1.map_or(String::new(), |offset| format!(", chunk at {offset:?},"));
            Err(broken(format!("`{name}`{chunk} is not in `storage_data`")))
        }
    }
}

fn broken(what: impl Into<String>) -> Error {
    Error::broken(METADATA, what)
}
