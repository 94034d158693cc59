use clap::{Parser, Subcommand};

use crate::{
    bench::BenchArgs, ckpt::CkptArgs, layout::LayoutArgs, ops::OpsArgs, plan::PlanArgs,
    train::TrainArgs,
};

/// Distributed tensors: train models, convert checkpoints, look at layouts, plan redistributions, list
/// operations, measure.
#[derive(Parser)]
#[command(
    name = "dtensor",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage.\n`dtensor COMMAND --help` has examples."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Layout(LayoutArgs),
    Plan(PlanArgs),
    Ops(OpsArgs),
    // Large, because they have many options.
    Train(Box<TrainArgs>),
    Ckpt(Box<CkptArgs>),
    Bench(BenchArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
