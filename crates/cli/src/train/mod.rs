//! `dtensor train`: a transformer on a text, cut any way one likes.

mod args;
mod config;
mod curve;
mod data;
mod finite;
mod golden;
mod lines;
mod model;
mod profile;
mod report;
mod run;
mod save;
mod step;
mod stop;
mod strategy;

pub use args::TrainArgs;

use std::error::Error as _;

use dtensor::{Mesh, RunError, World};
use dtensor_nn::Error as NnError;

use self::{config::Config, golden::Known, run::Prepared, save::Earlier};
use crate::{
    agree::{alike, said_once},
    error::{Error, Result},
};

pub fn run(args: TrainArgs) -> Result<()> {
    // What is wrong is found by every process for itself, and said by one.
    let task = alike(|_| Task::prepare(args.clone()))?;
    match task {
        Task::Train(prepared) => run::run(&prepared),
        Task::Replay(config, known) => golden::run(&config, &known),
    }
}

/// What is to be done, with everything that it needs.
enum Task {
    Train(Box<Prepared>),
    Replay(Box<Config>, Box<Known>),
}

impl Task {
    fn prepare(args: TrainArgs) -> Result<Task> {
        let args = args.with_file()?;
        if let Some(directory) = args.golden.clone() {
            args.check_golden()?;
            let config = Config::new(args)?;
            let known = Known::read(&config, &directory)?;
            return Ok(Task::Replay(Box::new(config), Box::new(known)));
        }
        let Some(directory) = args.resume.clone() else {
            return Ok(Task::Train(Box::new(Prepared::new(Config::new(args)?, None)?)));
        };
        let earlier = Earlier::find(&directory);
        let earlier = earlier.map_err(|error| Error::usage(format!("--resume: {error}")))?;
        let args = args.going_on(earlier.settings()?, &directory)?;
        Ok(Task::Train(Box::new(Prepared::new(Config::new(args)?, Some(earlier))?)))
    }
}

/// What a rank of a run gives.
type Outcome<T> = std::result::Result<T, Failure>;

/// Why a rank could not go on.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Model(#[from] NnError),
    #[error(transparent)]
    Checkpoint(#[from] dtensor_checkpoint::Error),
    #[error("step {step}: {source}")]
    Step { step: u64, source: NnError },
    #[error("before step {step} parameter `{name}` is NaN or infinite")]
    Parameter { step: u64, name: String },
    #[error("the mesh {mesh} is for {}, and there are {ranks}", plural(mesh.size(), "rank"))]
    Ranks { mesh: Mesh, ranks: usize },
    #[error("{0}")]
    Known(String),
}

impl From<dtensor::Error> for Failure {
    fn from(error: dtensor::Error) -> Failure {
        Failure::Model(error.into())
    }
}

/// A world of another size than the mesh is refused by all of its ranks.
fn check_ranks(world: &World, mesh: &Mesh) -> Outcome<()> {
    match world.size() == mesh.size() {
        true => Ok(()),
        false => Err(Failure::Ranks { mesh: mesh.clone(), ranks: world.size() }),
    }
}

/// A run does not go on with what is no number.
fn check_finite(step: u64, loss: f64, grad_norm: f64) -> Outcome<()> {
    for (what, value) in [("loss", loss), ("length of the gradient", grad_norm)] {
        if !value.is_finite() {
            return Err(NnError::NotFinite { what, step, value }.into());
        }
    }
    Ok(())
}

/// What ended a run, said once. Mistakes that all ranks have made alike are worded without what the first of them sent before.
fn readable(error: &RunError, config: &Config) -> Error {
    said_once(error, worded(error, config))
}

fn worded(error: &RunError, config: &Config) -> Error {
    let source = error.source();
    let Some(failure) = source.and_then(|source| source.downcast_ref::<Failure>()) else {
        return Error::failure(error.to_string());
    };
    let own = Error::failure(failure.to_string());
    match failure {
        Failure::Model(NnError::Tensor(dtensor::Error::Comm { .. }))
        | Failure::Step { source: NnError::Tensor(dtensor::Error::Comm { .. }), .. } => {
            Error::failure(error.to_string())
        }
        Failure::Model(NnError::NotFinite { .. }) if !config.detect_anomaly => {
            own.with_hint("--detect-anomaly names the operation and its module")
        }
        Failure::Parameter { .. } => own.with_hint(
            "the step before was too long, or it was so in the checkpoint: a lower --lr may help",
        ),
        Failure::Ranks { ranks, .. } => {
            own.with_hint(format!("give a --mesh of {}", plural(*ranks, "rank")))
        }
        _ => own,
    }
}

/// A number of things.
fn plural(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
