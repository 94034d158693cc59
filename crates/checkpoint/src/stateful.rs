//! Objects that have a state: models, optimizers, schedules, loaders, random numbers.

use std::fmt::{self, Debug, Display};

use dtensor::random::{self, RandomState};
use dtensor_comm::World;

use crate::{
    Entry, Error, LoadOptions, LoadReport, Result, SaveOptions, Saved, State, Value, agree::agree,
    load, save,
};

/// Something with a state that can be saved, and that can go on from one.
pub trait Stateful {
    /// What has to be saved.
    fn state(&self) -> Result<State>;

    /// Goes on from a state as [`state`](Stateful::state) gives it. Nothing is changed if there is an error.
    fn load_state(&mut self, state: &State) -> Result<()>;
}

/// The states of several objects as one, each with the object's name and a dot before its names.
pub fn gather_states(objects: &[(&str, &dyn Stateful)]) -> Result<State> {
    let mut all = State::new();
    for (name, object) in objects {
        all.insert_all(name, object.state()?)?;
    }
    Ok(all)
}

/// Gives several objects their parts of a state: the reverse of [`gather_states`]. Of objects after one that refuses, none is
/// changed.
pub fn scatter_states(objects: &mut [(&str, &mut dyn Stateful)], state: &State) -> Result<()> {
    for (name, object) in objects {
        object.load_state(&state.part(name))?;
    }
    Ok(())
}

/// Saves several objects as one checkpoint. All ranks call it.
///
/// ```
/// use dtensor::{Runner, random};
/// use dtensor_checkpoint::{Error, RandomNumbers, SaveOptions, State, save_objects};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("run");
/// Runner::threads(2).run(|world| {
///     random::manual_seed(7);
///     let mut loop_state = State::new();
///     loop_state.insert("step", 100)?;
///     let objects: [(&str, &dyn dtensor_checkpoint::Stateful); 2] =
///         [("loop", &loop_state), ("random", &RandomNumbers)];
///     save_objects(world, &objects, path.to_str().unwrap(), &SaveOptions::default())?;
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn save_objects(
    world: &World,
    objects: &[(&str, &dyn Stateful)],
    path: &str,
    options: &SaveOptions,
) -> Result<Saved> {
    // An object may refuse on one rank alone.
    let state = agree(&world.group(), gather_states(objects))?;
    save(world, &state, path, options)
}

/// Loads what [`save_objects`] has saved, or anything else with the same names, into several objects. All ranks call it, with
/// objects of the same names and layouts.
///
/// The objects say what they have, that is [`load`]ed, and they go on from it. Names that the checkpoint does not have are an
/// error, or with [`LoadOptions::partial`] stay as they are. An object that refuses its state on one rank is an error on all of
/// them; of objects after one that refuses, none is changed on that rank.
///
/// Since the objects keep their tensors until they are given the loaded ones, there are both for a moment. Whoever has no memory
/// for that fills the tensors of a [`State`] in place, by [`load`].
///
/// ```
/// use dtensor::{Runner, random};
/// use dtensor_checkpoint::{
///     Error, LoadOptions, RandomNumbers, SaveOptions, State, Stateful, load_objects, save_objects,
/// };
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("run");
/// let path = path.to_str().unwrap();
/// Runner::threads(2).run(|world| {
///     random::manual_seed(7);
///     let mut progress = State::new();
///     progress.insert("step", 100)?;
///     let objects: [(&str, &dyn Stateful); 2] = [("loop", &progress), ("random", &RandomNumbers)];
///     save_objects(world, &objects, path, &SaveOptions::default())?;
///
///     random::manual_seed(8);
///     let mut progress = State::new();
///     progress.insert("step", 0)?;
///     let objects: &mut [(&str, &mut dyn Stateful)] =
///         &mut [("loop", &mut progress), ("random", &mut RandomNumbers)];
///     load_objects(world, objects, path, &LoadOptions::default())?;
///     assert_eq!(progress.value("step"), Some(&100.into()));
///     assert_eq!(random::state().seed, 7);
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn load_objects(
    world: &World,
    objects: &mut [(&str, &mut dyn Stateful)],
    path: &str,
    options: &LoadOptions<'_>,
) -> Result<LoadReport> {
    let group = world.group();
    let own: Vec<(&str, &dyn Stateful)> =
        objects.iter().map(|(name, object)| (*name, &**object)).collect();
    let mut state = agree(&group, gather_states(&own))?;
    let report = load(world, &mut state, path, options)?;
    agree(&group, scatter_states(objects, &state))?;
    Ok(report)
}

/// Anything as a [`Stateful`] object, by two functions: one gives its state, the other takes one. So objects of crates that know
/// nothing of checkpoints are saved.
///
/// ```
/// # use std::collections::BTreeMap;
/// use dtensor::DTensor;
/// use dtensor_checkpoint::{Adapter, State, Stateful};
///
/// # struct Model { weights: BTreeMap<String, DTensor> }
/// # impl Model {
/// #     fn state_dict(&self) -> BTreeMap<String, DTensor> { self.weights.clone() }
/// #     fn load_state_dict(&mut self, values: BTreeMap<String, DTensor>) -> Result<(), String> { self.weights = values; Ok(()) }
/// # }
/// # let mut model = Model { weights: BTreeMap::new() };
/// let adapted = Adapter::new(
///     &mut model,
///     |model: &&mut Model| State::from_tensors(model.state_dict()),
///     |model: &mut &mut Model, state: &State| model.load_state_dict(state.tensors().collect()),
/// );
/// assert!(adapted.state()?.is_empty());
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
pub struct Adapter<T, Get, Put> {
    object: T,
    get: Get,
    put: Put,
}

impl<T, Get, Put> Adapter<T, Get, Put> {
    /// Of an object, or of a reference to one. Errors of the functions become [`Error::Refused`], with their texts.
    pub fn new<E: Display, F: Display>(object: T, get: Get, put: Put) -> Adapter<T, Get, Put>
    where
        Get: Fn(&T) -> Result<State, E>,
        Put: FnMut(&mut T, &State) -> Result<(), F>,
    {
        Adapter { object, get, put }
    }
}

impl<T, Get, Put, E: Display, F: Display> Stateful for Adapter<T, Get, Put>
where
    Get: Fn(&T) -> Result<State, E>,
    Put: FnMut(&mut T, &State) -> Result<(), F>,
{
    fn state(&self) -> Result<State> {
        (self.get)(&self.object).map_err(refused)
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        (self.put)(&mut self.object, state).map_err(refused)
    }
}

impl<T: Debug, Get, Put> Debug for Adapter<T, Get, Put> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&self.object).finish()
    }
}

fn refused(error: impl Display) -> Error {
    Error::Refused { message: error.to_string() }
}

/// A state is one of itself.
impl Stateful for State {
    fn state(&self) -> Result<State> {
        Ok(self.clone())
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        let missing = self.iter().find(|(name, _)| state.get(name).is_none());
        if let Some((name, _)) = missing {
            return Err(missing_in(name, state));
        }
        for (name, entry) in self.iter_mut() {
            if let Some(loaded) = state.get(name) {
                *entry = loaded.clone();
            }
        }
        Ok(())
    }
}

/// The random numbers of this rank's thread, [`dtensor::random`]: a run that goes on from a checkpoint draws the same ones as one
/// that was never interrupted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomNumbers;

impl Stateful for RandomNumbers {
    fn state(&self) -> Result<State> {
        let RandomState { seed, offset } = random::state();
        let mut state = State::new();
        // The bits of the numbers, which may be too large for the type of values.
        state.insert("seed", seed.cast_signed())?;
        state.insert("offset", offset.cast_signed())?;
        Ok(state)
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        let number = |name: &str| match state.get(name) {
            Some(Entry::Value(Value::Int(number))) => Ok(number.cast_unsigned()),
            _ => Err(missing_in(name, state)),
        };
        random::set_state(RandomState { seed: number("seed")?, offset: number("offset")? });
        Ok(())
    }
}

fn missing_in(name: &str, state: &State) -> Error {
    let nearest = state.iter().next().map_or("none", |(name, _)| name).to_owned();
    Error::Missing { name: name.to_owned(), nearest }
}
