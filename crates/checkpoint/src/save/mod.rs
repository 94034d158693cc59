//! Saving: every rank writes what it holds, once, and a new checkpoint takes the place of the old one in one step.

mod agree;
mod alongside;
mod assign;
mod finish;
mod limits;
mod meeting;
mod notes;
mod options;
mod plan;
mod write;

pub(crate) use agree::agree;
pub(crate) use assign::written_by_all;
pub(crate) use finish::{Summary, finish};
pub(crate) use limits::{check_cuts, check_values};
pub(crate) use meeting::settle;
pub(crate) use notes::{ByNotes, SignsOfLife};
pub use options::{SaveOptions, Saved};
pub(crate) use plan::{PlannedFile, by_file, file_name};
pub(crate) use write::{Give, Meter, write_file};

use std::hash::{BuildHasher, Hasher, RandomState};

use dtensor_comm::{World, WorldKind};

use crate::{
    Destination, Entry, Error, FileRecord, NewCheckpoint, Result, State,
    formats::native_write::Part,
    manifest::{ID_DIGITS, MAX_MANIFEST},
    storage,
};
use meeting::ByCalls;

/// Saves a state to a path or a URL. All ranks of the world call it, with the same state.
///
/// The new checkpoint appears in one step, after all ranks have written and synced their files. Whatever happens before,
/// be it that the machine stops, what was at `path` stays as it was; nothing else may be there but an older checkpoint, which is replaced.
/// If any rank fails, all ranks return an error. It takes as long as it takes: ranks that are done meet those that are still writing
/// from time to time, so that the deadline of the world is only about ranks that do not answer any more.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, arange};
/// use dtensor_checkpoint::{Error, SaveOptions, State, save};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("model");
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let mut state = State::new();
///     state.insert("weight", arange(0, 1000, 1, DType::F32, &mesh, &[Shard(0)])?)?;
///     state.insert("step", 100)?;
///     let saved = save(world, &state, path.to_str().unwrap(), &SaveOptions::default())?;
///     assert_eq!((saved.tensors, saved.bytes, saved.written), (1, 4000, 2000));
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn save(world: &World, state: &State, path: &str, options: &SaveOptions) -> Result<Saved> {
    save_then(world, state, path, options, &|| Ok(()))
}

/// Saves a state to any [`Destination`]: as [`save`], which finds it by its path.
pub fn save_to(
    world: &World,
    state: &State,
    destination: &dyn Destination,
    options: &SaveOptions,
) -> Result<Saved> {
    save_now(world, state, &destination.place(), Ok(destination), options, &|| Ok(()))
}

/// As [`save`]; rank 0 does something else after the commit, before anybody returns.
pub(crate) fn save_then(
    world: &World,
    state: &State,
    path: &str,
    options: &SaveOptions,
    after: &After<'_>,
) -> Result<Saved> {
    let destination = storage::destination(path);
    let destination = destination.as_deref().map_err(Error::clone);
    save_now(world, state, path, destination, options, after)
}

fn save_now(
    world: &World,
    state: &State,
    place: &str,
    destination: Result<&dyn Destination>,
    options: &SaveOptions,
    after: &After<'_>,
) -> Result<Saved> {
    let id = begin_agreement(world, place, state, None)?;
    let prepared = prepare(world, state, destination, options, &id, |new| new.begin())?;
    let Prepared { new, files, summary } = prepared;
    let meter = Meter::new(summary.written, options.progress.clone());
    let write = || {
        let write = |PlannedFile { name, plan, sources }: &PlannedFile| {
            let mut read =
                |position: usize, _: &Part, give: &mut Give<'_>| sources[position].read(give);
            write_file(&*new, name, plan, &mut read, &meter)
        };
        files.iter().map(write).collect::<Result<Vec<FileRecord>>>()
    };
    let mut meeting = ByCalls::new(&world.group());
    // Ranks that have less to write, or a faster disk, are waited with.
    let written = meeting.keep_company(write).inspect_err(|_| {
        // The others cannot be reached any more.
        if world.rank() == 0 {
            new.abandon();
        }
    })?;
    finish(&mut meeting, &*new, summary, written, after)
}

/// What rank 0 does after the commit.
pub(crate) type After<'a> = dyn Fn() -> Result<()> + Send + Sync + 'a;

/// What a rank knows when a save may begin to write.
pub(crate) struct Prepared {
    pub new: Box<dyn NewCheckpoint>,
    pub files: Vec<PlannedFile>,
    pub summary: Summary,
}

/// The ranks agree on what is saved; gives the id of the save.
pub(crate) fn begin_agreement(
    world: &World,
    place: &str,
    state: &State,
    busy: Option<&str>,
) -> Result<String> {
    if world.kind() == WorldKind::Fake {
        return Err(unsupported(
            "a fake world",
            place,
            "its tensors have no values; save in a real world",
        ));
    }
    let id = agree(world, place, state, random_number(), busy)?;
    // What follows from the state alone is the same on every rank, and needs no meeting.
    for (name, entry) in state.iter() {
        let Entry::Tensor(tensor) = entry else { continue };
        if tensor.layout().is_partial() {
            let layout = tensor.layout().to_string();
            return Err(Error::Partial { name: name.to_owned(), layout });
        }
        if name == "__metadata__" {
            return Err(unsupported(
                "the name of a tensor",
                name,
                "the format needs it for itself",
            ));
        }
        check_cuts(name, tensor.layout())?;
    }
    let values = state.iter().filter_map(|(name, entry)| match entry {
        Entry::Value(value) => Some((name, value)),
        Entry::Tensor(_) => None,
    });
    check_values(values, MAX_MANIFEST)?;
    Ok(format!("{id:0ID_DIGITS$x}"))
}

/// Every rank finds out what it has to write; then rank 0 makes room for it (`begin`).
pub(crate) fn prepare(
    world: &World,
    state: &State,
    destination: Result<&dyn Destination>,
    options: &SaveOptions,
    id: &str,
    begin: impl FnOnce(&dyn NewCheckpoint) -> Result<()> + Send,
) -> Result<Prepared> {
    let mine = || {
        check(world, state)?;
        let new = destination?.new_checkpoint(id, options.sync);
        let files = plan::files_of(world.rank(), world.size(), state)?;
        let summary = Summary::new(world, state, &files, id, new.place());
        Ok(Prepared { new, files, summary })
    };
    let mine: Result<Prepared> = mine();
    let ready = mine.as_ref().map(|_| Vec::new()).map_err(Error::clone);
    let new = mine.as_ref().ok().map(|mine| &*mine.new);
    settle(&mut ByCalls::new(&world.group()), ready, |all| match (all, new) {
        (Some(_), Some(new)) => begin(new).inspect_err(|_| new.abandon()),
        _ => Ok(()),
    })?;
    mine
}

/// An id that no other save has.
pub(crate) fn new_id() -> String {
    format!("{:0ID_DIGITS$x}", random_number())
}

pub(crate) fn random_number() -> u64 {
    // The standard library seeds its hash maps with numbers from the system that nobody can guess.
    RandomState::new().build_hasher().finish()
}

/// What a rank alone may find wrong with its tensors.
fn check(world: &World, state: &State) -> Result<()> {
    for (name, entry) in state.iter() {
        let Entry::Tensor(tensor) = entry else { continue };
        if !tensor.mesh().world().is_same(world) {
            return Err(unsupported("a tensor of another world", name, "save it in its own world"));
        }
        if tensor.to_local().is_meta() {
            return Err(unsupported("a tensor without values", name, "give it values first"));
        }
    }
    Ok(())
}

fn unsupported(what: &str, place: &str, way_out: &'static str) -> Error {
    Error::Unsupported { what: what.to_owned(), place: place.to_owned(), way_out }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, zeros};

    use super::{meeting::HEARTBEAT, *};

    #[test]
    fn what_rank_0_does_at_the_end_may_take_longer_than_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model").display().to_string();
        let deadline = 4 * HEARTBEAT;
        let saved = Runner::threads(2).deadline(deadline).run(|world| {
            let mesh = DeviceMesh::of_world(world, "x")?;
            let mut state = State::new();
            state.insert("w", zeros(&[6], DType::F32, &mesh, &[Shard(0)])?)?;
            let slow = || {
                thread::sleep(deadline + Duration::from_secs(2));
                Ok(())
            };
            save_then(world, &state, &path, &SaveOptions::default(), &slow)
        });
        assert_eq!(saved.unwrap()[1].bytes, 24);
    }
}
