//! Checkpoints of a run: what is learnt, what the optimizer remembers, and where the run is.

use std::{io::ErrorKind, path::Path};

use dtensor::{DType, DeviceMesh, Placement, World, distribute_tensor_from, random};
use dtensor_checkpoint::{
    Catalog, Entry, Error, LoadOptions, MANIFEST_FILE, SaveOptions, State, Value, load, save,
    storage,
};
use dtensor_nn::{Optimizer, StateDict, load_state_dict, state_dict};

use super::step::Trainer;

/// The names of what is saved begin with these.
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";
/// Values, and one tensor.
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

/// What the checkpoint in the directory of a run holds.
pub fn catalog(directory: &Path) -> dtensor_checkpoint::Result<Catalog> {
    let path = find(directory);
    match storage::open(&path).and_then(|storage| Catalog::open(&*storage)) {
        Err(Error::Io { kind: ErrorKind::NotFound, why, .. }) => {
            Err(Error::NoCheckpoint { path, found: why })
        }
        other => other,
    }
}

/// Writes a checkpoint into the directory of a run; all ranks call it. What was there is replaced as a whole.
pub fn write(
    directory: &Path,
    trainer: &Trainer,
    place: &Place,
    world: &World,
) -> super::Outcome<()> {
    let mut state = State::new();
    for (prefix, part) in
        [(MODEL, state_dict(trainer.model.module())), (OPTIMIZER, trainer.optimizer.state_dict()?)]
    {
        for (name, tensor) in part {
            state.insert(format!("{prefix}.{name}"), tensor)?;
        }
    }
    let losses = dtensor::Tensor::from_slice(&place.losses, &[place.losses.len()]);
    let losses = losses.map_err(dtensor::Error::from)?;
    let mesh = trainer.mesh();
    state.insert(LOSSES, distribute_tensor_from(&losses, mesh, &copies(mesh), None)?)?;
    let random = random::state();
    // Their bits: values of checkpoints have a sign.
    for (name, number) in [(STEP, place.step), (SEED, random.seed), (OFFSET, random.offset)] {
        state.insert(name, number as i64)?;
    }
    std::fs::create_dir_all(directory).map_err(|error| Error::Io {
        doing: "make",
        path: directory.display().to_string(),
        kind: error.kind(),
        why: error.to_string(),
    })?;
    save(world, &state, &path(directory), &SaveOptions::default())?;
    Ok(())
}

/// Goes on from the checkpoint in the directory of a run, in the layouts of the trainer. Every rank looks at the headers, to find out
/// what there is; what it holds is then loaded as any state.
pub fn read(directory: &Path, trainer: &mut Trainer, world: &World) -> super::Outcome<Place> {
    let (path, catalog) = (find(directory), catalog(directory)?);
    let mut state = State::new();
    for (name, tensor) in state_dict(trainer.model.module()) {
        state.insert(format!("{MODEL}.{name}"), tensor.empty_like()?)?;
    }
    for (name, tensor) in trainer.optimizer.blank_state_dict()? {
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
    load(world, &mut state, &path, &LoadOptions::default())?;
    let tensors = |prefix: &str| -> StateDict {
        let part = state.part(prefix).into_iter();
        part.filter_map(|(name, entry)| match entry {
            Entry::Tensor(tensor) => Some((name, tensor)),
            Entry::Value(_) => None,
        })
        .collect()
    };
    load_state_dict(trainer.model.module(), &tensors(MODEL), true)?;
    trainer.optimizer.load_state_dict(&tensors(OPTIMIZER))?;
    let number = |name: &str| match state.value(name) {
        Some(Value::Int(number)) => Ok(*number as u64),
        _ => Err(Error::Broken { file: path.clone(), what: format!("`{name}` is no number") }),
    };
    let losses = state.tensor(LOSSES).map(|losses| losses.to_vec::<f64>()).transpose()?;
    let place = Place { step: number(STEP)?, losses: losses.unwrap_or_default() };
    random::set_state(random::RandomState { seed: number(SEED)?, offset: number(OFFSET)? });
    Ok(place)
}

/// Where the checkpoint of a run is that is in a directory, or that is the directory.
fn find(directory: &Path) -> String {
    match directory.join(MANIFEST_FILE).is_file() {
        true => directory.display().to_string(),
        false => path(directory),
    }
}

fn path(directory: &Path) -> String {
    directory.join("checkpoint").display().to_string()
}

fn copies(mesh: &DeviceMesh) -> Vec<Placement> {
    vec![Placement::Replicate; mesh.n_axes()]
}
