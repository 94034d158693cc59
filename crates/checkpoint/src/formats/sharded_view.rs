//! ShardedTensors in pickles: every rank saves the shards that it has, and the metadata of all.
//!
//! ```text
//! _rebuild_from_type_v2(_rebuild_wrapper_subclass, ShardedTensor, (class, dtype, size, ...), state)
//! state = (local shards, ShardedTensorMetadata, ProcessGroupState, spec, whether there are references)
//! Shard = tensor, metadata; ShardMetadata = shard_offsets, shard_sizes, placement
//! ```
//!
//! What is read are the shards that are there, at their offsets. Whether those of all files make up the tensor is for who puts the
//! files together; on which ranks they lay, and by which spec, is of no use to who reads them.

use dtensor_layout::IndexBox;

use super::{
    pickle::{Call, Global, Object, Tree},
    tensor_view::TensorView,
};
use crate::{Error, Result, StoredType};

/// The shards of one tensor in one pickle.
#[derive(Debug)]
pub(crate) struct ShardedView<'t> {
    pub stored: StoredType,
    /// Of the whole tensor.
    pub shape: Vec<usize>,
    /// Those with elements, at their place in the whole tensor.
    pub shards: Vec<(IndexBox, TensorView<'t>)>,
}

impl<'t> ShardedView<'t> {
    /// Whether a call makes such a tensor.
    pub fn is_one(tree: &Tree<'t>, call: &Call) -> bool {
        parts(tree, call).is_some()
    }

    /// The tensor that such a call makes; `name` and `file` are for errors.
    pub fn read(tree: &Tree<'t>, call: &Call, name: &str, file: &str) -> Result<ShardedView<'t>> {
        let broken = |what: &str| Error::broken(file, format!("`{name}`: {what}"));
        let state = parts(tree, call).and_then(|(arguments, state)| {
            let [_, Object::Global(Global::DType(stored)), ..] = tree.tuple(arguments)? else {
                return None;
            };
            let [shards, metadata, ..] = tree.tuple(state)? else { return None };
            Some((*stored, tree.sequence(*shards)?, *metadata))
        });
        let (stored, local, metadata) =
            state.ok_or_else(|| broken("a ShardedTensor has a dtype, shards and metadata"))?;
        let shape = tree
            .attribute(metadata, Global::ShardedTensorMetadata, "size")
            .and_then(|size| tree.sizes(size))
            .ok_or_else(|| broken("the size of a ShardedTensor is no tuple of sizes"))?;
        let mut shards = Vec::new();
        for shard in local {
            let of_shard = |name| tree.attribute(*shard, Global::Shard, name);
            let sizes = |name| {
                tree.sizes(tree.attribute(of_shard("metadata")?, Global::ShardMetadata, name)?)
            };
            let (Some(call), Some(offsets), Some(sizes)) = (
                of_shard("tensor").and_then(|tensor| tree.call(tensor)),
                sizes("shard_offsets"),
                sizes("shard_sizes"),
            ) else {
                return Err(broken("a shard has a tensor, offsets and sizes"));
            };
            if !TensorView::is_one(call) || ShardedView::is_one(tree, call) {
                let what = format!("a shard of `{name}` that is no plain tensor");
                let way_out = "save the tensors within it by themselves";
                return Err(Error::Unsupported { what, place: file.to_owned(), way_out });
            }
            let view = TensorView::read(tree, call, name, file)?;
            if view.stored != stored || view.shape != sizes || offsets.len() != sizes.len() {
                return Err(broken("a shard is not what its metadata say"));
            }
            // Those without elements may begin beyond the tensor.
            if sizes.contains(&0) {
                continue;
            }
            let ranges = offsets
                .iter()
                .zip(&sizes)
                .map(|(offset, size)| Some(*offset..offset.checked_add(*size)?));
            let index = ranges.collect::<Option<_>>().map(IndexBox);
            shards.push((index.ok_or_else(|| broken("a shard lies beyond any tensor"))?, view));
        }
        Ok(ShardedView { stored, shape, shards })
    }
}

/// The arguments and the state of a call that makes a ShardedTensor.
fn parts(tree: &Tree<'_>, call: &Call) -> Option<(Object, Object)> {
    let arguments = tree.tuple(call.arguments).filter(|_| call.callee == Global::RebuildFromType);
    match arguments? {
        [
            Object::Global(Global::RebuildWrapper),
            Object::Global(Global::ShardedTensor),
            arguments,
            state,
        ] => Some((*arguments, *state)),
        _ => None,
    }
}
