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

/// What ended a run. Mistakes that all ranks have made alike are worded without what the first of them sent before.
fn readable(error: &RunError) -> Error {
    let own = error.source().and_then(|source| source.downcast_ref::<NnError>());
    match own {
        None | Some(NnError::Tensor(dtensor::Error::Comm { .. })) => {
            Error::failure(error.to_string())
        }
        Some(own @ NnError::NotFinite { .. }) => Error::failure(own.to_string())
            .with_hint("--detect-anomaly names the operation and its module"),
        Some(own) => Error::failure(own.to_string()),
    }
}
