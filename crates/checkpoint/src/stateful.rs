//! Objects that have a state: models, optimizers, schedules, loaders, random numbers.

use dtensor::random::{self, RandomState};
use dtensor_comm::World;

use crate::{Entry, Error, Result, SaveOptions, Saved, State, Value, save};

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
    save(world, &gather_states(objects)?, path, options)
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
