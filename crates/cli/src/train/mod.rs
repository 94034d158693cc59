//! `dtensor train`: a transformer on a text, cut any way one likes.

mod config;
mod curve;
mod data;
mod golden;
mod inspect;
mod model;
mod report;
mod run;
mod save;
mod step;
mod stop;
mod strategy;

pub use config::TrainArgs;

use crate::error::Result;

pub fn run(args: TrainArgs) -> Result<()> {
    let config = config::Config::new(args)?;
    match &config.golden {
        Some(directory) => golden::run(&config, directory),
        None => run::run(&config),
    }
}
