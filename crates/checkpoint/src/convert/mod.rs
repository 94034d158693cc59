//! Checkpoints of one kind made into those of another, without a world and without having them in memory.
//!
//! Whatever is read is a [`Source`]: boxes of tensors by name. Whatever is written is a list of files, each with boxes
//! of tensors one after the other. What lies between is cut into pieces of a few MiB that are read, cast and written
//! by as many threads as one likes; the memory that this takes is bounded, and does not depend on the checkpoint.

mod cast;
mod native;
pub(crate) mod numbers;
pub(crate) mod pieces;
mod placements;
mod safetensors;
mod source;
#[cfg(feature = "object-store")]
mod store_target;
mod stream;
mod target;

use std::collections::BTreeMap;

use dtensor_comm::Group;

pub use self::{
    cast::Cast, native::to_native, placements::PlacementPlan, safetensors::to_safetensors,
    source::Source,
};

use crate::{Error, OnProgress, Result, Selection, SourceFile, StoredType, TensorEntry, Value};

/// How a checkpoint is converted.
#[derive(Clone, Default)]
pub struct ConvertOptions<'a> {
    /// Which tensors and values take part, and what they are called afterwards.
    pub select: Selection,
    /// Other types for tensors, by the names that they have in the source; the first that matches decides.
    pub casts: Vec<Cast>,
    /// The most bytes of tensors in a file of [`to_safetensors`]; a larger tensor has a file for itself. None: all in one.
    pub max_file_bytes: Option<u64>,
    /// Whether what is at the target may be replaced.
    pub overwrite: bool,
    /// Threads that read and write; 0 is as many as the machine has.
    pub threads: usize,
    /// Processes that share the work, on one file system: all of them call with the same arguments, and each writes some of
    /// the bytes, also where there is one file. In object stores, each writes some of the files. None: this process alone.
    pub group: Option<Group>,
    /// Told now and then how many bytes are done, of those that this process writes.
    pub progress: Option<&'a OnProgress<'a>>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of values beside them.
    pub values: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// The files, by name; where the target is one file, that one.
    pub files: Vec<SourceFile>,
}

/// What takes part in a conversion, under the new names.
struct Taken<'s> {
    tensors: BTreeMap<String, TakenTensor<'s>>,
    values: BTreeMap<String, Value>,
}

struct TakenTensor<'s> {
    /// The name in the source.
    source: &'s str,
    entry: &'s TensorEntry,
    /// The type that it will have.
    to: StoredType,
}

impl TakenTensor<'_> {
    fn bytes(&self) -> u64 {
        self.entry.bytes() / self.entry.stored.size() as u64 * self.to.size() as u64
    }
}

impl<'s> Taken<'s> {
    fn new(opened: &'s Source, options: &ConvertOptions<'_>) -> Result<Taken<'s>> {
        options.select.check(opened.names())?;
        let catalog = opened.catalog();
        cast::check(&options.casts, catalog.tensors.keys().map(String::as_str))?;
        let mut taken = Taken { tensors: BTreeMap::new(), values: BTreeMap::new() };
        for (name, source) in options.select.apply(opened.names())? {
            let refused = |what: String, way_out| {
                Err(Error::Unsupported { what, place: source.to_owned(), way_out })
            };
            opened.check_readable(source)?;
            if name == "__metadata__" {
                let way_out = "safetensors keeps its own texts under this name; give it another";
                return refused("the name `__metadata__`".into(), way_out);
            }
            if let Some(entry) = catalog.tensors.get(source) {
                let to = cast::type_after(&options.casts, source, entry.stored);
                if to == StoredType::C128 {
                    let way_out = "safetensors has no such elements; leave the tensor out";
                    return refused(format!("dtype {to}"), way_out);
                }
                taken.tensors.insert(name, TakenTensor { source, entry, to });
            } else if let Some(value) = catalog.values.get(source) {
                taken.values.insert(name, value.clone());
            }
        }
        Ok(taken)
    }

    fn bytes(&self) -> u64 {
        self.tensors.values().map(TakenTensor::bytes).sum()
    }
}
