//! Checkpoints of one run, by step.

use dtensor_comm::World;

use crate::{
    AsyncSave, AsyncSaver, Error, MANIFEST_FILE, Manifest, Result, SaveOptions, Saved, State, save,
    storage,
};

/// The small file that names the newest checkpoint.
const LATEST: &str = "latest";

/// Checkpoints of one run in one directory: `step-00000100`, `step-00000200`, and a small text file `latest` with the name of the
/// newest.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, zeros};
/// use dtensor_checkpoint::{Error, SaveOptions, Series, State};
///
/// let directory = tempfile::tempdir().unwrap();
/// let series = Series::new(directory.path().to_str().unwrap()).keep(2);
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let mut state = State::new();
///     state.insert("weight", zeros(&[10], DType::F32, &mesh, &[Shard(0)])?)?;
///     for step in [100, 200, 300] {
///         series.save(world, &state, step, &SaveOptions::default())?;
///     }
///     assert_eq!(series.latest_of(world)?, Some(300));
///     Ok::<_, Error>(())
/// })?;
/// assert_eq!(series.steps()?, [200, 300]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Series {
    place: String,
    keep: Option<usize>,
}

impl Series {
    /// The series in this directory, given as a path or a URL. All checkpoints are kept.
    pub fn new(place: impl Into<String>) -> Series {
        Series { place: place.into(), keep: None }
    }

    /// With only the last `n` checkpoints kept, and at least one. Older ones are removed after a save.
    ///
    /// What counts is when they were saved, and not their steps: a run that went back to an earlier step keeps what it saves from
    /// there on, and what it had saved beyond goes.
    #[must_use]
    pub fn keep(mut self, n: usize) -> Series {
        self.keep = Some(n.max(1));
        self
    }

    /// Where the checkpoint of a step is, or would be.
    pub fn path(&self, step: u64) -> String {
        format!("{}/{}", self.place.trim_end_matches('/'), name_of(step))
    }

    /// Saves the checkpoint of a step. All ranks call it.
    ///
    /// When the checkpoint is in its place, `latest` is written and old steps are removed. If that cannot be done, all ranks get
    /// [`Error::AfterCommit`]: the step is saved and whole, and [`steps`](Series::steps) has it; only `latest` may name an older
    /// step, or there may be more steps than are to be kept. The next save of the series does both again.
    pub fn save(
        &self,
        world: &World,
        state: &State,
        step: u64,
        options: &SaveOptions,
    ) -> Result<Saved> {
        save::save_then(world, state, &self.path(step), options, &|| self.advance(step))
    }

    /// Saves the checkpoint of a step in the background. All ranks call it. Errors after the commit are as those of
    /// [`save`](Series::save).
    pub fn async_save(
        &self,
        saver: &mut AsyncSaver,
        world: &World,
        state: &State,
        step: u64,
        options: &SaveOptions,
    ) -> Result<AsyncSave> {
        let series = self.clone();
        let after = Box::new(move || series.advance(step));
        saver.save_then(world, state, &self.path(step), options, after)
    }

    /// The steps with a complete checkpoint, ascending.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let steps = steps_of(&*storage::shelf(&self.place)?)?;
        let mut steps: Vec<u64> =
            steps.into_iter().filter_map(|(time, step)| time.map(|_| step)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The step of the newest checkpoint: the one that `latest` names, and if that is not complete the one that was saved last of
    /// those that are.
    pub fn latest(&self) -> Result<Option<u64>> {
        let shelf = storage::shelf(&self.place)?;
        let named =
            shelf.read(LATEST)?.and_then(|text| step_of(str::from_utf8(&text).ok()?.trim()));
        match named {
            Some(step) if saved_at(&*shelf, step)?.is_some() => Ok(Some(step)),
            // What is not complete has no time, and is before all that have one.
            _ => Ok(steps_of(&*shelf)?.pop().and_then(|(time, step)| time.map(|_| step))),
        }
    }

    /// The same, as rank 0 sees it, on all ranks. They all call it.
    pub fn latest_of(&self, world: &World) -> Result<Option<u64>> {
        let group = world.group().tag("checkpoint latest");
        let found = (world.rank() == 0).then(|| self.latest());
        let message = found.as_ref().map(|found| match found {
            Ok(None) => Vec::new(),
            Ok(Some(step)) => step.to_le_bytes().to_vec(),
            // Longer than a step, whatever the text.
            Err(error) => format!("{error:<9}").into_bytes(),
        });
        let message = group.broadcast_list(message, 0)?;
        match (found, <[u8; 8]>::try_from(&message[..])) {
            (Some(found), _) => found,
            (None, Ok(step)) => Ok(Some(u64::from_le_bytes(step))),
            (None, Err(_)) if message.is_empty() => Ok(None),
            (None, Err(_)) => {
                let message = String::from_utf8_lossy(&message).into_owned();
                Err(Error::OnRank { rank: 0, message })
            }
        }
    }

    /// After the checkpoint of a step is there: it is the latest, and older ones go.
    fn advance(&self, step: u64) -> Result<()> {
        let shelf = storage::shelf(&self.place)?;
        shelf.write(LATEST, format!("{}\n", name_of(step)).as_bytes())?;
        shelf.clear()?;
        let Some(keep) = self.keep else { return Ok(()) };
        let mut complete = Vec::new();
        for (time, other) in steps_of(&*shelf)? {
            match time {
                // The one just saved stays, whatever the clocks of others said.
                _ if other == step => {}
                Some(_) => complete.push(other),
                // It is none of those that are kept: nothing could be loaded from it.
                None => shelf.remove_abandoned(&name_of(other))?,
            }
        }
        let n_gone = (complete.len() + 1).saturating_sub(keep);
        complete[..n_gone].iter().try_for_each(|&old| shelf.remove(&name_of(old)))
    }
}

fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

/// All steps, each with the time when it was saved if it is complete; the oldest first. Within one second the step decides.
fn steps_of(shelf: &dyn storage::Shelf) -> Result<Vec<(Option<u64>, u64)>> {
    let steps = shelf.checkpoints()?;
    let steps = steps.iter().filter_map(|name| step_of(name));
    let mut steps =
        steps.map(|step| Ok((saved_at(shelf, step)?, step))).collect::<Result<Vec<_>>>()?;
    steps.sort_unstable();
    Ok(steps)
}

/// When the step was saved, if it has a manifest that can be believed. Whoever wrote that had written everything else before.
fn saved_at(shelf: &dyn storage::Shelf, step: u64) -> Result<Option<u64>> {
    let manifest = shelf.read(&format!("{}/{MANIFEST_FILE}", name_of(step)))?;
    Ok(manifest
        .and_then(|bytes| Manifest::parse(MANIFEST_FILE, &bytes).ok())
        .map(|manifest| manifest.time))
}
