//! Checkpoints of distributed tensors: saved on any mesh, loaded on any other; PyTorch's files without Python.
//!
//! Whatever a checkpoint was written by, its headers are read into a [`Catalog`]: which tensors there are, and which bytes
//! of which file hold which box of them. Everything else (loading, verifying, comparing, converting) works on that.
//!
//! # Saving
//!
//! A [`State`] is tensors and values by name. All ranks save it together: each writes what it holds, into one file, and of what
//! several hold one of them writes it. Nothing is gathered on one rank, neither tensors nor plans.
//!
//! ```
//! use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones, zeros};
//! use dtensor_checkpoint::{Error, SaveOptions, State, save};
//!
//! let directory = tempfile::tempdir().unwrap();
//! let path = directory.path().join("model");
//! Runner::threads(4).run(|world| {
//!     let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
//!     let mut model = State::new();
//!     model.insert("embed", ones(&[1000, 64], DType::F32, &mesh, &[Shard(0), Shard(1)])?)?;
//!     model.insert("norm", zeros(&[64], DType::Bf16, &mesh, &[Replicate, Replicate])?)?;
//!
//!     let mut state = State::new();
//!     state.insert_all("model", model)?;     // `model.embed`, `model.norm`
//!     state.insert("step", 100)?;
//!     let saved = save(world, &state, path.to_str().unwrap(), &SaveOptions::default())?;
//!     assert_eq!(saved.bytes, 1000 * 64 * 4 + 64 * 2);
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<(), dtensor::RunError>(())
//! ```
//!
//! - [`async_save`] and [`AsyncSaver`] take a copy and write it while the program goes on.
//! - [`Series`] keeps the last checkpoints of a run, by step.
//! - [`Stateful`] objects, such as models and optimizers, are saved together ([`save_objects`]) and loaded together
//!   ([`load_objects`]); [`RandomNumbers`] is one, and [`Adapter`] makes one of anything that lists its tensors.
//! - [`Nested`] lists and dicts are flattened: their parts have dotted names.
//! - Places are directories, and with the feature `object-store` also `s3://`, `gs://` and `az://` ([`storage`]).
//!
//! ## Old or new, never mixed
//!
//! A checkpoint is written beside its place, synced, and put there in one step, after all ranks have said that they are done: two
//! directories are exchanged, or one object is put. Whatever happens before that step, on any rank, what was there
//! stays. Whatever fails, fails on all ranks: one of them has the error, and the others have [`Error::OnRank`].
//!
//! A place has one writer at a time. A save to a place where another one is under way is [`Error::Busy`], on all ranks: in this
//! process, and in others where the file system knows locks. Object stores know none; there a save that was overtaken
//! is given up ([`Error::Overtaken`]).
//!
//! ## What is written
//!
//! The files are the sharded safetensors files of PyTorch's distributed checkpoint, which its `HuggingFaceStorageReader` loads: one per
//! rank that has something to write, with the same names, order and headers as PyTorch's for the same state. In the headers
//! there are two more texts, `dtensor.version` and `dtensor.tensors`, with global shapes, layouts, and a checksum of every
//! MiB. Beside them lies [`dtensor.manifest.json`](Manifest), with the values, which have no place in safetensors, and
//! the checksums of headers. So every byte has a checksum.
//!
//! # Loading
//!
//! [`load`] fills the tensors of a [`State`] where they are: each keeps its mesh, placements and dtype, whatever the checkpoint
//! was saved with. From the catalog and the layouts every rank derives, alone, who reads what:
//!
//! * Each byte is read by one rank, which verifies it. What only that rank needs goes straight into the memory of its tensor.
//! * What several ranks need is passed on in rounds of a few MiB per rank, so that it is still in a cache when it is copied. Where
//!   what comes is consecutive in the tensor it goes into, it comes straight there.
//! * Small tensors that lie next to each other are read and passed on together.
//!
//! Verification costs about a sixth of the time of reading from the page cache, and nothing that could be noticed where a disk or
//! a network is slower than that. [`Reader`] reads any box of a tensor without a world, and [`verify_at`] all of a checkpoint.
//!
//! # Converting
//!
//! [`convert`] makes any of them into safetensors files of whole tensors, or into what the ranks of another mesh would have saved;
//! [`diff`](diff()) compares two. Both work in pieces of some MiB, whatever the size of the model.
//!
//! # Trade-offs
//!
//! - *A tensor with a pending reduction is refused.* Saving is no place for communication that nobody asked for.
//! - *A directory is replaced as a whole*, and what is no checkpoint of ours is not: files that were put beside the tensors are in
//!   the way of the next save, which says so.
//! - *Both checkpoints are on the disk for a moment*, the old one and the new one.
//! - *Checksums are no signatures*: they find every accident, and no forgery.

#![forbid(unsafe_code)]

mod agree;
mod async_save;
mod catalog;
pub mod convert;
mod convert_type;
mod diff;
mod error;
mod formats;
pub mod hash;
mod load;
mod manifest;
mod nested;
mod progress;
mod read;
mod save;
mod select;
mod series;
mod state;
mod stateful;
pub mod storage;
mod stored_type;
mod team;
mod value;
mod verify;
mod whole;
mod workers;

pub use crate::{
    async_save::{AsyncSave, AsyncSaver, WhenBusy, async_save},
    catalog::{Catalog, Checksum, Chunk, Format, SourceFile, TensorEntry},
    convert::Source,
    diff::{Diff, DiffOptions, Difference, TensorDiff, TensorInfo, Tolerance, Verdict, diff},
    error::{Error, Result},
    load::{LoadOptions, LoadReport, Misshapen, load, load_from},
    manifest::{FileRecord, MANIFEST_FILE, MANIFEST_VERSION, Manifest},
    nested::Nested,
    progress::{OnProgress, Progress},
    read::Reader,
    save::{SaveOptions, Saved, save, save_to},
    select::{Pattern, Rename, Selection},
    series::Series,
    state::{Entry, State},
    stateful::{
        Adapter, RandomNumbers, Stateful, gather_states, load_objects, save_objects, scatter_states,
    },
    storage::{Destination, LocalFiles, NewCheckpoint, NewFile, ReadAt, Storage, WriteAt},
    stored_type::StoredType,
    value::Value,
    verify::{VerifyOptions, VerifyReport, verify, verify_at},
    whole::read_tensors,
};
