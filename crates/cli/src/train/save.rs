//! Checkpoints of a run: what is learnt, what the optimizer remembers, and where the run is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use dtensor::{World, random};
use dtensor_nn::{
    Error, Optimizer, Result, StateDict, load_tensors, read_safetensors, state_dict,
    write_safetensors,
};
use serde_json::{Value, json};

use super::step::Trainer;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const RUN: &str = "run.json";

/// Where a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Steps that are done.
    pub step: u64,
    pub losses: Vec<f64>,
}

/// Writes a checkpoint into a directory; all ranks call it. What was there is replaced as a whole: the new one is written
/// beside it and takes its place by renaming.
pub fn write(directory: &Path, trainer: &Trainer, place: &Place, world: &World) -> Result<()> {
    let whole = directory.join("checkpoint");
    let (new, old) = (directory.join("checkpoint.new"), directory.join("checkpoint.old"));
    let file = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| Error::File { path, why: error.to_string() }
    };
    let first = world.rank() == 0;
    if first {
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new).map_err(file(&new))?;
    }
    write_safetensors(&new.join(MODEL), &state_dict(trainer.model.module()))?;
    write_safetensors(&new.join(OPTIMIZER), &trainer.optimizer.state_dict()?)?;
    if first {
        let state = random::state();
        let run = json!({
            "step": place.step,
            "losses": place.losses,
            "random": { "seed": state.seed, "offset": state.offset },
        });
        let path = new.join(RUN);
        fs::write(&path, run.to_string()).map_err(file(&path))?;
        // What a run that was killed between two renamings has left is the only whole one, until the new one is there.
        if whole.exists() {
            let _ = fs::remove_dir_all(&old);
            fs::rename(&whole, &old).map_err(file(&whole))?;
        }
        fs::rename(&new, &whole).map_err(file(&new))?;
        let _ = fs::remove_dir_all(&old);
    }
    Ok(())
}

/// Where the checkpoint in a directory is.
pub fn find(directory: &Path) -> Result<PathBuf> {
    let places = [directory.join("checkpoint"), directory.join("checkpoint.old"), directory.into()];
    let found = places.into_iter().find(|place| place.join(RUN).is_file());
    found.ok_or_else(|| Error::File {
        path: directory.display().to_string(),
        why: "there is no checkpoint".to_owned(),
    })
}

/// Goes on from the checkpoint in a directory, in the layouts of the trainer.
pub fn read(directory: &Path, trainer: &mut Trainer) -> Result<Place> {
    let directory = find(directory)?;
    let path = directory.join(RUN);
    let broken = |why: String| Error::File { path: path.display().to_string(), why };
    let text = fs::read_to_string(&path).map_err(|error| broken(error.to_string()))?;
    let run: Value = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    let number = |value: &Value, name: &str| {
        value[name].as_u64().ok_or_else(|| broken(format!("`{name}` is missing")))
    };
    let place = Place {
        step: number(&run, "step")?,
        losses: run["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect(),
    };
    load_tensors(trainer.model.module(), &read_safetensors(&directory.join(MODEL))?)?;
    let mesh = match trainer.parameters.first() {
        Some(parameter) => parameter.value().mesh().clone(),
        None => return Ok(place),
    };
    let copies = vec![dtensor::Placement::Replicate; mesh.n_axes()];
    let mut state = StateDict::new();
    for (name, tensor) in read_safetensors(&directory.join(OPTIMIZER))? {
        let value = dtensor::distribute_tensor_from(&tensor, &mesh, &copies, None)?;
        state.insert(name, value);
    }
    trainer.optimizer.load_state_dict(&state)?;
    let (seed, offset) = (number(&run["random"], "seed")?, number(&run["random"], "offset")?);
    random::set_state(random::RandomState { seed, offset });
    Ok(place)
}
