//! `dtensor train`: a transformer on a text, cut any way one likes.

mod config;
mod curve;
mod data;
mod golden;
mod model;
mod report;
mod run;
mod save;
mod step;
mod stop;
mod strategy;

pub use config::TrainArgs;

use std::error::Error as _;

use dtensor::RunError;
use dtensor_nn::Error as NnError;

use crate::error::{Error, Result};

pub fn run(args: TrainArgs) -> Result<()> {
    let config = config::Config::new(args)?;
    match &config.golden {
        Some(directory) => golden::run(&config, directory),
        None => run::run(&config),
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
}

impl From<dtensor::Error> for Failure {
    fn from(error: dtensor::Error) -> Failure {
        Failure::Model(error.into())
    }
}

/// What ended a run. Mistakes that all ranks have made alike are worded without what the first of them sent before.
fn readable(error: &RunError) -> Error {
    let source = error.source();
    let model = match source.and_then(|source| source.downcast_ref::<Failure>()) {
        Some(Failure::Checkpoint(own)) => return Error::failure(own.to_string()),
        Some(Failure::Model(own)) => Some(own),
        None => source.and_then(|source| source.downcast_ref::<NnError>()),
    };
    match model {
        None | Some(NnError::Tensor(dtensor::Error::Comm { .. })) => {
            Error::failure(error.to_string())
        }
        Some(own @ NnError::NotFinite { .. }) => Error::failure(own.to_string())
            .with_hint("--detect-anomaly names the operation and its module"),
        Some(own) => Error::failure(own.to_string()),
    }
}
