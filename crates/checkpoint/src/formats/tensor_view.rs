//! Tensors in pickles: calls of PyTorch's rebuild functions, on storages that are records beside the pickle.
//!
//! ```text
//! _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks[, metadata])
//! _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, backward_hooks, dtype[, metadata])
//! _rebuild_parameter(tensor, requires_grad, backward_hooks)
//! storage = persistent id ("storage", class, key, device, number of elements), the record `data/{key}`
//! ```
//!
//! Offset and strides count elements. Storages of `_rebuild_tensor_v3` count bytes.

use dtensor_layout::IndexBox;

use super::{
    budget::Budget,
    pickle::{Call, Global, Node, Object, Tree},
    zip::Data,
};
use crate::{Checksum, Chunk, Error, Result, StoredType, TensorEntry};

/// A parameter may be of a type that wraps a tensor; more levels than this are a circle.
const MAX_WRAPPERS: usize = 8;

/// A tensor as a pickle describes it: elements of a storage.
#[derive(Clone, Debug)]
pub(crate) struct TensorView<'t> {
    pub stored: StoredType,
    pub shape: Vec<usize>,
    strides: Vec<usize>,
    /// Elements of the storage before the first.
    offset: u64,
    /// Of the record `data/{key}`.
    pub key: &'t str,
    /// What the pickle says that the record has.
    storage_bytes: u64,
}

impl<'t> TensorView<'t> {
    /// Whether a call is of one of the functions that make tensors.
    pub fn is_one(call: &Call) -> bool {
        matches!(
            call.callee,
            Global::RebuildTensor
                | Global::RebuildTensorV2
                | Global::RebuildTensorV3
                | Global::RebuildParameter
                | Global::RebuildParameterWithState
                | Global::RebuildFromType
        )
    }

    /// The tensor that such a call makes; `name` and `file` are for errors.
    pub fn read(tree: &Tree<'t>, call: &Call, name: &str, file: &str) -> Result<TensorView<'t>> {
        let (callee, arguments) = unwrapped(tree, call)
            .ok_or_else(|| Error::broken(file, format!("`{name}`: no tensor in a parameter")))?;
        let broken = |what: &str| Error::broken(file, format!("`{name}`: {what}"));
        let [storage, offset, size, stride, rest @ ..] = arguments else {
            return Err(broken("a tensor needs a storage, an offset, a size and strides"));
        };
        let (dtype, metadata) = match callee {
            // After `requires_grad` and the hooks.
            Global::RebuildTensorV3 => (rest.get(2).copied(), rest.get(3)),
            _ => (None, rest.get(2)),
        };
        refuse_pending(tree, metadata.copied(), name, file)?;
        let (stored, key, storage_bytes) = storage_of(tree, *storage, dtype)
            .ok_or_else(|| broken("its storage is not one that torch.save writes"))?;
        let view = TensorView {
            stored,
            shape: tree.sizes(*size).ok_or_else(|| broken("its size is no tuple of sizes"))?,
            strides: tree.sizes(*stride).ok_or_else(|| broken("its strides are no sizes"))?,
            offset: tree.size(*offset).ok_or_else(|| broken("its offset is no size"))?,
            key,
            storage_bytes,
        };
        match view.shape.len() == view.strides.len() {
            true => Ok(view),
            false => Err(broken("its size and its strides have different numbers of dims")),
        }
    }

    /// The chunk that this view is, at `index` of the whole tensor. `record` is its storage, whose archive begins at byte
    /// `archive` of the file at position `file`. Elements that a view repeats are paid for from the budget.
    pub fn chunk(
        &self,
        index: IndexBox,
        (record, archive, file): (&Data, u64, usize),
        budget: &Budget,
    ) -> Result<Chunk, String> {
        let size = self.stored.size() as u64;
        if record.bytes < self.storage_bytes {
            let (wanted, found) = (self.storage_bytes, record.bytes);
            return Err(format!("its storage has {wanted} bytes, and the record only {found}"));
        }
        let bytes = self.bytes().ok_or_else(|| format!("{:?} is beyond any file", self.shape))?;
        let end = self.end().ok_or("its strides are beyond any file")?;
        if end.checked_mul(size).is_none_or(|end| end > record.bytes) {
            return Err(format!(
                "its last element ends at {end} elements, and its storage has {} bytes",
                record.bytes
            ));
        }
        if !budget.pay(bytes.saturating_sub(record.bytes)) {
            return Err(
                "it repeats the elements of a small storage; save a `.clone()` of it".into()
            );
        }
        let start = archive + record.start;
        let checksum = match record.crc {
            Some(crc) => Checksum::Crc32 { start, bytes: record.bytes, crc },
            None => Checksum::None,
        };
        // An empty view may begin anywhere, even behind its storage.
        let offset = if bytes == 0 { start } else { start + self.offset * size };
        Ok(Chunk { index, file, offset, strides: self.uneven_strides(), checksum })
    }

    /// As a tensor that is whole in one file.
    pub fn entry(
        &self,
        record: (&Data, u64, usize),
        budget: &Budget,
    ) -> Result<TensorEntry, String> {
        let index = IndexBox::whole(&self.shape);
        let chunks = vec![self.chunk(index, record, budget)?];
        Ok(TensorEntry { stored: self.stored, shape: self.shape.clone(), chunks, layout: None })
    }

    fn bytes(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut sizes = self.shape.iter().map(|&size| size as u64);
        sizes.try_fold(self.stored.size() as u64, |bytes, size| bytes.checked_mul(size))
    }

    /// Where in the storage the last element ends, in elements.
    fn end(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut dims = self.shape.iter().zip(&self.strides);
        let last = dims.try_fold(self.offset, |last, (&size, &stride)| {
            last.checked_add((size as u64 - 1).checked_mul(stride as u64)?)
        });
        last?.checked_add(1)
    }

    /// The strides, unless elements lie in row-major order. Strides of dims of one element mean nothing.
    fn uneven_strides(&self) -> Option<Vec<usize>> {
        let mut expected = 1_usize;
        let mut row_major = true;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            row_major &= size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
        }
        (!row_major && !self.shape.contains(&0)).then(|| self.strides.clone())
    }
}

/// The innermost call, and its arguments: what wraps it says nothing about elements.
fn unwrapped<'c>(tree: &'c Tree<'_>, call: &'c Call) -> Option<(Global, &'c [Object])> {
    let mut callee = call.callee;
    let mut arguments = tree.tuple(call.arguments)?;
    for _ in 0..MAX_WRAPPERS {
        match callee {
            Global::RebuildTensor | Global::RebuildTensorV2 | Global::RebuildTensorV3 => {
                return Some((callee, arguments));
            }
            Global::RebuildParameter | Global::RebuildParameterWithState => {
                let inner = tree.call(*arguments.first()?)?;
                (callee, arguments) = (inner.callee, tree.tuple(inner.arguments)?);
            }
            Global::RebuildFromType => match arguments {
                [Object::Global(function), Object::Global(Global::TensorClass), inner, _] => {
                    (callee, arguments) = (*function, tree.tuple(*inner)?);
                }
                _ => return None,
            },
            _ => return None,
        }
    }
    None
}

/// Type, key and bytes of a storage. Storages of bytes take the type of the tensor.
fn storage_of<'t>(
    tree: &Tree<'t>,
    storage: Object,
    dtype: Option<Object>,
) -> Option<(StoredType, &'t str, u64)> {
    let Node::Persistent(id) = tree.node(storage)? else { return None };
    let [kind, Object::Global(class), key, _device, count] = tree.tuple(*id)? else { return None };
    let (stored, unit) = match (class, dtype) {
        (Global::Storage(stored), None) => (*stored, stored.size() as u64),
        (Global::UntypedStorage, Some(Object::Global(Global::DType(stored)))) => (stored, 1),
        _ => return None,
    };
    let bytes = tree.size::<u64>(*count)?.checked_mul(unit)?;
    (tree.text(*kind) == Some("storage")).then_some((stored, tree.text(*key)?, bytes))
}

/// Elements that are conjugated or negated when they are read are not what the bytes say.
fn refuse_pending(tree: &Tree<'_>, metadata: Option<Object>, name: &str, file: &str) -> Result<()> {
    let pending = metadata.and_then(|metadata| tree.dict(metadata)).unwrap_or_default();
    match pending.iter().any(|(_, on)| matches!(on, Object::Bool(true))) {
        false => Ok(()),
        true => Err(Error::Unsupported {
            what: format!("the lazily conjugated or negated tensor `{name}`"),
            place: file.to_owned(),
            way_out: "save `tensor.resolve_conj().resolve_neg()`",
        }),
    }
}
