//! Checkpoints of a run: what is learnt, what the optimizer remembers, and where the run is.

use std::path::Path;

use dtensor::{DType, DeviceMesh, Placement, World, distribute_tensor_from, random};
use dtensor_checkpoint::{
    Catalog, Entry, Error, LoadOptions, MANIFEST_FILE, SaveOptions, State, Value, load, save,
};
use dtensor_nn::{
    Error as NnError, StateDict, blank_optimizer_state_dict, load_optimizer_state_dict,
    load_state_dict, optimizer_state_dict, state_dict,
};

use super::{Outcome, args::TrainArgs, config::Config, data::Text, step::Trainer};
use crate::error::{Error as CliError, Result};

/// The names of what is saved begin with these.
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";
/// Values, and one tensor.
const SETTINGS: &str = "run.settings";
const CHARACTERS: &str = "run.characters";
const STEP: &str = "step";
const SEED: &str = "random.seed";
const OFFSET: &str = "random.offset";
const LOSSES: &str = "losses";

/// Where a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Steps that are done.
    pub step: u64,
    pub losses: Vec<f64>,
}

/// A checkpoint of a run that another one goes on from.
pub struct Earlier {
    path: String,
    catalog: Catalog,
}

impl Earlier {
    /// The checkpoint that is in the directory of a run, or that is the directory.
    pub fn find(directory: &Path) -> dtensor_checkpoint::Result<Earlier> {
        let path = match is_checkpoint(directory) {
            true => directory.display().to_string(),
            false => path(directory),
        };
        let (_, catalog) = Catalog::open_path(&path)?;
        Ok(Earlier { path, catalog })
    }

    /// The settings of the run.
    pub fn settings(&self) -> Result<TrainArgs> {
        match self.catalog.values.get(SETTINGS) {
            Some(Value::Text(text)) => serde_json::from_str(text).map_err(|error| {
                CliError::usage(format!("--resume: `{SETTINGS}` in {}: {error}", self.path))
            }),
            _ => Err(CliError::usage(format!("--resume: {} is no checkpoint of a run", self.path))
                .with_hint("`dtensor ckpt inspect` says what it is")),
        }
    }

    /// A text of other characters would be read as another one.
    pub fn check_characters(&self, text: &Text) -> Result<()> {
        let own: String = text.characters.iter().collect();
        let Some(Value::Text(known)) = self.catalog.values.get(CHARACTERS) else { return Ok(()) };
        if *known == own {
            return Ok(());
        }
        let differs = |of: &str, other: &str| of.chars().find(|c| !other.contains(*c));
        let first = match (differs(&own, known), differs(known, &own)) {
            (Some(new), _) => format!("{new:?} is new"),
            (None, Some(gone)) => format!("{gone:?} is missing"),
            (None, None) => "their order is another".to_owned(),
        };
        let message = format!(
            "--data: the text has {} different characters, and that of {} had {}; {first}",
            own.chars().count(),
            self.path,
            known.chars().count()
        );
        Err(CliError::usage(message).with_hint("give the text that the run began with"))
    }

    /// Names of a part that a model or its optimizer does not have.
    fn check_names(&self, part: &str, own: &StateDict) -> Outcome<()> {
        let names = self.catalog.tensors.keys().filter_map(|name| {
            let rest = name.strip_prefix(part)?.strip_prefix('.')?;
            (!own.contains_key(rest)).then_some(name)
        });
        match names.into_iter().next() {
            Some(name) => Err(NnError::Unexpected { name: name.clone() }.into()),
            None => Ok(()),
        }
    }
}

/// Whether a directory is a checkpoint, rather than that of a run.
pub fn is_checkpoint(directory: &Path) -> bool {
    directory.join(MANIFEST_FILE).is_file()
}

/// The step of the checkpoint that is in the directory of a run, if there is one.
pub fn step_of(directory: &Path) -> Option<u64> {
    let earlier = Earlier::find(directory).ok()?;
    match earlier.catalog.values.get(STEP) {
        Some(Value::Int(step)) => Some(*step as u64),
        _ => None,
    }
}

/// Writes a checkpoint into the directory of a run; all ranks call it. What was there is replaced as a whole.
pub fn write(
    config: &Config,
    text: &Text,
    trainer: &Trainer,
    place: &Place,
    world: &World,
) -> Outcome<()> {
    let mut state = State::new();
    let module = trainer.model.module();
    for (prefix, part) in [
        (MODEL, state_dict(module)),
        (OPTIMIZER, optimizer_state_dict(module, &trainer.optimizer)?),
    ] {
        for (name, tensor) in part {
            state.insert(format!("{prefix}.{name}"), tensor)?;
        }
    }
    let losses = dtensor::Tensor::from_slice(&place.losses, &[place.losses.len()]);
    let losses = losses.map_err(dtensor::Error::from)?;
    let mesh = trainer.mesh();
    state.insert(LOSSES, distribute_tensor_from(&losses, mesh, &copies(mesh), None)?)?;
    // Not as TOML, in which seeds may be too large.
    let settings = serde_json::to_value(config.settings()).unwrap_or_default();
    state.insert(SETTINGS, settings.to_string())?;
    state.insert(CHARACTERS, text.characters.iter().collect::<String>())?;
    let random = random::state();
    // Their bits: values of checkpoints have a sign.
    for (name, number) in [(STEP, place.step), (SEED, random.seed), (OFFSET, random.offset)] {
        state.insert(name, number as i64)?;
    }
    save(world, &state, &path(&config.out), &SaveOptions::default())?;
    Ok(())
}

/// Goes on from an earlier checkpoint, in the layouts of the trainer; all ranks call it.
pub fn read(earlier: &Earlier, trainer: &mut Trainer, world: &World) -> Outcome<Place> {
    let Earlier { path, catalog } = earlier;
    let mut state = State::new();
    let own = state_dict(trainer.model.module());
    earlier.check_names(MODEL, &own)?;
    for (name, tensor) in own {
        state.insert(format!("{MODEL}.{name}"), tensor.empty_like()?)?;
    }
    let blank = blank_optimizer_state_dict(trainer.model.module(), &trainer.optimizer)?;
    earlier.check_names(OPTIMIZER, &blank)?;
    for (name, tensor) in blank {
        let name = format!("{OPTIMIZER}.{name}");
        // Nothing is remembered of a parameter that had no gradient yet.
        if catalog.tensors.contains_key(&name) {
            state.insert(name, tensor)?;
        }
    }
    let mesh = trainer.mesh();
    let n_losses = catalog.tensors.get(LOSSES).map_or(&[0][..], |losses| &losses.shape);
    state.insert(LOSSES, dtensor::zeros(n_losses, DType::F64, mesh, &copies(mesh))?)?;
    for name in [STEP, SEED, OFFSET] {
        state.insert(name, 0_i64)?;
    }
    load(world, &mut state, path, &LoadOptions::default())?;
    let tensors = |prefix: &str| -> StateDict {
        let part = state.part(prefix).into_iter();
        part.filter_map(|(name, entry)| match entry {
            Entry::Tensor(tensor) => Some((name, tensor)),
            Entry::Value(_) => None,
        })
        .collect()
    };
    let module = trainer.model.module();
    load_state_dict(module, &tensors(MODEL), true)?;
    load_optimizer_state_dict(module, &mut trainer.optimizer, &tensors(OPTIMIZER))?;
    let number = |name: &str| match state.value(name) {
        Some(Value::Int(number)) => Ok(*number as u64),
        _ => Err(Error::Broken { file: path.clone(), what: format!("`{name}` is no number") }),
    };
    let losses = state.tensor(LOSSES).map(|losses| losses.to_vec::<f64>()).transpose()?;
    let place = Place { step: number(STEP)?, losses: losses.unwrap_or_default() };
    random::set_state(random::RandomState { seed: number(SEED)?, offset: number(OFFSET)? });
    Ok(place)
}

fn path(directory: &Path) -> String {
    directory.join("checkpoint").display().to_string()
}

fn copies(mesh: &DeviceMesh) -> Vec<Placement> {
    vec![Placement::Replicate; mesh.n_axes()]
}
