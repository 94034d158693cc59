//! Sharded tensors in checkpoints: saved and loaded beside distributed tensors, and into each other.
//!
//! A checkpoint knows tensors by name, size and dtype, and not how they were cut by whoever saved them. So what
//! was saved as a sharded tensor is loaded as a sharded tensor of any other spec on any number of ranks, or as
//! a distributed tensor, and the other way round; and so are the sharded tensors in PyTorch's checkpoints.
//!
//! ```
//! use dtensor_checkpoint::{LoadOptions, SaveOptions, State, save};
//! use dtensor_sharded::{ChunkShardingSpec, DType, Error, Runner, checkpoint, rand, zeros};
//!
//! # let directory = tempfile::tempdir().unwrap();
//! # let place = directory.path().join("tables");
//! # let path = place.to_str().unwrap();
//! Runner::threads(3).run(|world| {
//!     // Two chunks of rows on rank 2 and one on rank 0.
//!     let table = rand(ChunkShardingSpec::over_ranks(0, [2, 0, 2])?, &[7, 4], DType::F32, world)?;
//!     let mut state = State::new();
//!     state.insert("step", 100)?;
//!     checkpoint::insert(&mut state, "table", &table)?;
//!     save(world, &state, path, &SaveOptions::default())?;
//!
//!     // Columns, on other ranks.
//!     let mut loaded = zeros(ChunkShardingSpec::over_ranks(1, [1, 0])?, &[7, 4], DType::F32, world)?;
//!     let mut rest = State::new();
//!     rest.insert("step", 0)?;
//!     checkpoint::load(world, &mut rest, &mut [("table", &mut loaded)], path, &LoadOptions::default())?;
//!     assert!(loaded.full_tensor()?.equal(&table.full_tensor()?)?);
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<(), dtensor_sharded::RunError>(())
//! ```
//!
//! # What moves
//!
//! Where the ranks that have shards have one each, and these are chunks of one dim in the order of the ranks, a
//! grid of chunks, or the whole tensor on one rank, every rank saves and loads its shard as it is: nothing is
//! copied, and nothing is sent. Everything else (several shards on a rank, boxes of any kind, chunks in another
//! order) passes through chunks over all ranks of the world, in one exchange in which every element is sent at
//! most once; that takes as much memory again as the tensor has.
//!
//! # Groups
//!
//! A checkpoint is a matter of the whole world: all of its ranks call these functions with the same names and
//! tensors. On a rank that is not in the group of a tensor, the tensor has no shards, and the call is the same.

mod form;

use dtensor::{DeviceMesh, World};
use dtensor_checkpoint::{Entry, LoadOptions, LoadReport, State};

use self::form::{Form, fill};
use crate::{
    Error, Result, ShardedTensor,
    module::{ModuleTensor, StateDict},
    ops::copies_beside,
};

/// Puts a sharded tensor into a state, to be saved, or to be loaded and [taken](take) out again. All ranks of
/// the world call it. The state has the elements as they are now: what changes the tensor later does not change
/// them.
pub fn insert(state: &mut State, name: impl Into<String>, tensor: &ShardedTensor) -> Result<()> {
    const OP: &str = "checkpoint insert";
    let name = name.into();
    // Found before anything is sent.
    if state.get(&name).is_some() {
        return Err(dtensor_checkpoint::Error::Twice { name }.into());
    }
    let form = Form::of(OP, tensor)?.filled(OP, tensor)?;
    Ok(state.insert(name, form)?)
}

/// Gives a sharded tensor the elements that a state has by this name, in place: it keeps its spec, its group
/// and its dtype. All ranks of the world call it. The state may have them in any layout, whoever
/// [inserted](insert) them.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, randn};
/// use dtensor_checkpoint::State;
/// use dtensor_sharded::{ChunkShardingSpec, Error, checkpoint, zeros};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = randn(&[3, 4], DType::F32, &mesh, &[Shard(1)])?;
///     let mut state = State::new();
///     state.insert("x", x.clone())?;
///     let mut y = zeros(ChunkShardingSpec::over_ranks(0, [1, 0])?, &[3, 4], DType::F32, world)?;
///     checkpoint::take(&state, "x", &mut y)?;
///     assert!(y.full_tensor()?.equal(&x.full_tensor()?)?);
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn take(state: &State, name: &str, tensor: &mut ShardedTensor) -> Result<()> {
    const OP: &str = "checkpoint take";
    tensor.check_values(OP)?;
    let found = match state.get(name) {
        Some(Entry::Tensor(found)) => found,
        Some(Entry::Value(_)) => {
            let what = format!("`{name}` is a value of the state");
            return Err(Error::refused(OP, what, "ask the state for it"));
        }
        None => return Err(Error::NoSuchName { op: OP.into(), path: name.into() }),
    };
    if found.shape() != tensor.size() {
        return Err(dtensor_checkpoint::Error::Misshapen {
            name: name.to_owned(),
            stored: found.shape().to_vec(),
            wanted: tensor.size().to_vec(),
        }
        .into());
    }
    fill(OP, tensor, found)
}

/// Loads a state and sharded tensors from the checkpoint at a path, whatever wrote it, as
/// [`dtensor_checkpoint::load`] does. All ranks of the world call it.
///
/// Tensors keep their specs, groups and dtypes. They get their elements when all have been read: after an error
/// they are as they were, and so are those that a partial load reports as missing or misshapen. Until then both
/// old and new elements are in memory.
///
/// It is what [`insert`], `load` and [`take`] do, without sending the elements that are to be overwritten.
pub fn load(
    world: &World,
    state: &mut State,
    tensors: &mut [(&str, &mut ShardedTensor)],
    path: &str,
    options: &LoadOptions<'_>,
) -> Result<LoadReport> {
    const OP: &str = "checkpoint load";
    let mut blanks = Vec::with_capacity(tensors.len());
    for (position, (name, tensor)) in tensors.iter().enumerate() {
        let is_taken = tensors[..position].iter().any(|(other, _)| other == name);
        if is_taken || state.get(name).is_some() {
            return Err(dtensor_checkpoint::Error::Twice { name: (*name).to_owned() }.into());
        }
        blanks.push((*name, Form::of(OP, tensor)?.blank(tensor)?));
    }
    // The tensors of the state are moved, not shared: what is shared is copied before it is written.
    let n_entries = state.len();
    let mut all = std::mem::take(state);
    let mut inserted = Ok(());
    for (name, blank) in blanks {
        inserted = inserted.and_then(|()| all.insert(name, blank));
    }
    let report = inserted.and_then(|()| dtensor_checkpoint::load(world, &mut all, path, options));
    let mut loaded = Vec::with_capacity(tensors.len());
    for (position, (name, entry)) in all.into_iter().enumerate() {
        match (position < n_entries, entry) {
            (true, entry) => state.insert(name, entry)?,
            (false, Entry::Tensor(tensor)) => loaded.push(tensor),
            (false, Entry::Value(_)) => {}
        }
    }
    let report = report?;
    for ((name, tensor), loaded) in tensors.iter_mut().zip(loaded) {
        let is_missing = report.missing.iter().any(|missing| missing == name);
        if !is_missing && !report.misshapen.iter().any(|misshapen| misshapen.name == *name) {
            fill(OP, tensor, &loaded)?;
        }
    }
    Ok(report)
}

/// Puts all tensors of a state dict, of a module or an optimizer, into a state. Tensors that are whole on every
/// rank are saved once. All ranks of the world call it.
pub fn insert_all(world: &World, state: &mut State, dict: &StateDict) -> Result<()> {
    let mesh = DeviceMesh::of_world(world, "ranks")?;
    for (name, tensor) in dict {
        match tensor {
            ModuleTensor::Sharded(tensor) => insert(state, name, tensor)?,
            ModuleTensor::Plain(tensor) => {
                state.insert(name, copies_beside(tensor, &mesh)?)?;
            }
        }
    }
    Ok(())
}

/// Gives all tensors of a state dict the elements that a state has by their names: the reverse of
/// [`insert_all`]. All ranks of the world call it. A name that is missing, or of another size, is found before
/// anything is changed.
pub fn take_all(state: &State, dict: &mut StateDict) -> Result<()> {
    const OP: &str = "checkpoint take";
    for (name, tensor) in &*dict {
        let Some(found) = state.tensor(name) else {
            return Err(Error::NoSuchName { op: OP.into(), path: name.as_str().into() });
        };
        let size = match tensor {
            ModuleTensor::Plain(tensor) => tensor.shape(),
            ModuleTensor::Sharded(tensor) => tensor.size(),
        };
        if found.shape() != size {
            let (stored, wanted) = (found.shape().to_vec(), size.to_vec());
            let name = name.clone();
            return Err(dtensor_checkpoint::Error::Misshapen { name, stored, wanted }.into());
        }
    }
    for (name, tensor) in dict {
        match (tensor, state.tensor(name)) {
            (ModuleTensor::Sharded(tensor), _) => take(state, name, tensor)?,
            (ModuleTensor::Plain(own), Some(found)) => {
                *own = found.detach().full_tensor()?.to_dtype(own.dtype())?;
            }
            (ModuleTensor::Plain(_), None) => {}
        }
    }
    Ok(())
}
