//! Loading: from whatever layout a checkpoint was saved in to the layouts that tensors have.

mod buffer;
mod disordered;
mod grid;
mod landing;
mod memory;
mod open;
mod own;
mod packing;
mod place;
mod plan;
mod round;
mod run;
mod schedule;
mod source;
mod target;

use std::{collections::BTreeSet, sync::Arc};

use dtensor::World;
use dtensor_comm::Group;

use self::{memory::Memory, plan::Plan, target::Targets};
use crate::{
    Catalog, Entry, OnProgress, Reader, Result, State, Storage, agree::Intention, read::missing,
    storage::held,
};

/// How [`load`] loads.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Whether what is read is compared with its checksums. It is, by default.
    pub verify: bool,
    /// Whether names that the checkpoint does not have, or has in another shape, or that cannot be read of it, are left as they are and reported. By
    /// default they are an error, and nothing is loaded.
    pub partial: bool,
    /// Told now and then how many bytes this rank has of its tensors, of all that it will hold.
    pub progress: Option<&'a OnProgress<'a>>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        LoadOptions { verify: true, partial: false, progress: None }
    }
}

/// What was loaded, and what was not. The same on every rank, but for the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors that were loaded.
    pub tensors: usize,
    /// Values that were loaded.
    pub values: usize,
    /// Bytes of this rank's parts of those tensors.
    pub bytes: u64,
    /// Names of the state that the checkpoint does not have.
    pub missing: Vec<String>,
    /// Names of the checkpoint that the state does not have.
    pub unexpected: Vec<String>,
    /// Names of the state that the checkpoint has, and of which it cannot be read: see [`Catalog::unreadable`].
    pub unreadable: Vec<String>,
    /// Tensors that have another shape in the checkpoint.
    pub misshapen: Vec<Misshapen>,
}

/// A tensor that has another shape in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshapen {
    /// Of the tensor.
    pub name: String,
    /// Its shape in the checkpoint.
    pub stored: Vec<usize>,
    /// Its shape in the state.
    pub wanted: Vec<usize>,
}

/// Fills the tensors and values of a state from the checkpoint at a path, whatever wrote it and on however many ranks. All
/// ranks call it, with states of the same names and layouts.
///
/// Tensors keep their layouts and dtypes: mesh, placements, order of cuts and number of ranks may be others than those of the
/// save, and elements are converted as [`Tensor::to_dtype`](dtensor::Tensor::to_dtype) does. Every rank gets what it holds. Every
/// byte is read by one rank and passed on to those who need it; the exception are tensors that `torch.save` wrote as views.
///
/// What is read is compared with its checksums. A native checkpoint has some of every byte; PyTorch's files of `torch.save` and
/// `.distcp` have such of their tensors; safetensors files of others have none, and what was changed in them is not found.
///
/// # While it is replaced
///
/// A save may put another checkpoint there at any time. What is loaded is the old one or the new one, on all ranks the same: files of
/// the old one that are open are read to their end, and if one of them is gone before it was opened, loading begins again. Only
/// if that happens many times it is [`Error::Replaced`](crate::Error::Replaced).
///
/// # Errors
///
/// An error is the same on all ranks, or [`Error::OnRank`](crate::Error::OnRank) where another rank has it. What can be known from
/// names, shapes and layouts is found before anything is changed: names that are missing, shapes that do not fit, pending
/// reductions, types without an equal. *After an error while tensors are being read (a file that is damaged, or cannot be
/// read) the state must not be used*: its tensors hold old values, new ones, or some of each; its values are as before. Load
/// another checkpoint into it, or make a new one.
///
/// # Memory
///
/// Beside the state, a rank takes up to 50 MiB for buffers, and what the headers take. A tensor whose memory is shared with
/// another handle first gets its own, so that the other does not change: drop handles that are not needed.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, zeros};
/// use dtensor_checkpoint::{LoadOptions, State, load};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/four_ranks/hf");
/// // Written by PyTorch on four ranks; loaded on two, cut along another dim.
/// let norms = Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "tp")?;
///     let mut state = State::new();
///     state.insert("embed.weight", zeros(&[13, 8], DType::F32, &mesh, &[Shard(1)])?)?;
///     let report = load(world, &mut state, path, &LoadOptions::default())?;
///     assert_eq!((report.tensors, report.unexpected.len()), (1, 6));
///     let embed = state.tensor("embed.weight").unwrap();
///     Ok::<_, dtensor_checkpoint::Error>(embed.square()?.sum(&[], false)?.item::<f32>()?)
/// })?;
/// assert_eq!(norms[0], norms[1]);
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn load(
    world: &World,
    state: &mut State,
    path: &str,
    options: &LoadOptions<'_>,
) -> Result<LoadReport> {
    let mut begun = Begun::default();
    held::retry(|| {
        let (storage, catalog) = open::open_path(&world.group(), path)?;
        load_catalog(world, state, storage, catalog, options, &mut begun)
    })
}

/// As [`load`], from a checkpoint whose files lie in `storage`.
pub fn load_from(
    world: &World,
    state: &mut State,
    storage: Arc<dyn Storage>,
    options: &LoadOptions<'_>,
) -> Result<LoadReport> {
    let mut begun = Begun::default();
    held::retry(|| {
        let (storage, catalog) = open::open(&world.group(), &storage)?;
        load_catalog(world, state, storage, catalog, options, &mut begun)
    })
}

/// The names of the tensors that were being filled when a checkpoint was replaced.
type Begun = BTreeSet<String>;

fn load_catalog(
    world: &World,
    state: &mut State,
    storage: Arc<dyn Storage>,
    catalog: Catalog,
    options: &LoadOptions<'_>,
    begun: &mut Begun,
) -> Result<LoadReport> {
    let catalog = Arc::new(catalog);
    check_same(&world.group(), state)?;
    let Targets { tensors, values, mut report } =
        Targets::find(world, state, &catalog, options.partial)?;
    // What holds something of the checkpoint that was replaced, and is not in this one, cannot be made as it was.
    let now: BTreeSet<&str> = tensors.iter().map(|target| target.name).collect();
    let lost = begun.iter().find(|name| !now.contains(name.as_str()));
    if let Some(name) = lost {
        return Err(missing(&catalog, name));
    }
    let plan = Plan::new(&catalog, &tensors, world.rank(), world.size())?;
    begun.extend(tensors.iter().map(|target| target.name.to_owned()));
    let reader = Reader::new(storage, Arc::clone(&catalog)).verifying(options.verify);
    let mut memory = Memory::new(state, &tensors, options.progress);
    run::run(&world.group(), &reader, &tensors, &plan, &mut memory)?;
    report.bytes = memory.done;
    let mut values = values.into_iter().peekable();
    for (position, (_, entry)) in state.iter_mut().enumerate() {
        if let Some((_, value)) = values.next_if(|(place, _)| *place == position) {
            *entry = Entry::Value(value);
        }
    }
    Ok(report)
}

/// Whether all ranks load into states of the same names and layouts: what they do follows from those. Costs one call with 16
/// bytes of each rank.
fn check_same(group: &Group, state: &State) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let intention = Intention::new(None, state, false);
    let mut checksums = vec![0; 16 * group.size()];
    group.all_gather(&intention.checksum(), &mut checksums)?;
    let mut checksums = checksums.chunks(16);
    let first = checksums.clone().next();
    match checksums.position(|other| Some(other) != first) {
        Some(rank) => Err(intention.difference(group, rank)?),
        None => Ok(()),
    }
}
