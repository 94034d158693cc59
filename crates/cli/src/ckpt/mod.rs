//! `dtensor ckpt`: look into checkpoints, and make them into others.

mod convert;
mod diff;
mod inspect;
mod names;
mod progress;
mod tree;
mod verify;

use std::time::Duration;

use clap::{Args, Subcommand};
use dtensor::{Runner, World};
use dtensor_checkpoint::{Error as CheckpointError, Source};
use dtensor_comm::{CommError, Group, is_launched};

use crate::error::{Error, Result};

const NOTES: &str = "\
A checkpoint is a directory or a file: what dtensor saves, sharded or plain safetensors (with an index or without), \
PyTorch's distributed checkpoints (.metadata and .distcp), and files of torch.save (.pt, .pth, .bin). Reading needs \
no Python, runs nothing that a file says, and keeps no more than some MiB in memory.

In patterns of names, `*` stands for any text, dots included.

Under mpirun (build with --features mpi), processes that see the same file system share the files that convert, consolidate \
and reshard write; everything else is done by the first of them.";

/// Processes wait for each other as long as a conversion of any size takes.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Look into checkpoints, verify, compare and convert them: dtensor's and PyTorch's, of any size.
#[derive(Args)]
#[command(after_help = NOTES)]
pub struct CkptArgs {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Diff(diff::DiffArgs),
    Convert(convert::ConvertArgs),
    Consolidate(convert::ConsolidateArgs),
    Reshard(convert::ReshardArgs),
}

pub fn run(args: CkptArgs) -> Result<()> {
    if !is_launched() {
        return args.task.run(None);
    }
    let outcomes = Runner::new().deadline(PATIENCE).run(|world: &World| {
        let outcome = args.task.run(Some(world.group()));
        // The first process speaks for all.
        let outcome = outcome.map_err(|error| match world.rank() {
            0 => error,
            _ => Error::AlreadyReported,
        });
        Ok::<_, CommError>(outcome)
    });
    outcomes.map_err(|error| Error::failure(error.to_string()))?.into_iter().collect()
}

impl Task {
    /// Does it, or this process's part of what a group shares.
    fn run(&self, group: Option<Group>) -> Result<()> {
        let is_first = group.as_ref().is_none_or(|group| group.rank() == 0);
        match self {
            Task::Convert(args) => convert::run(args, group),
            Task::Consolidate(args) => convert::consolidate(args, group),
            Task::Reshard(args) => convert::reshard(args, group),
            _ if !is_first => Ok(()),
            Task::Inspect(args) => inspect::run(args),
            Task::Verify(args) => verify::run(args),
            Task::Diff(args) => diff::run(args),
        }
    }
}

/// How checkpoints are read.
#[derive(Args)]
struct ReadArgs {
    /// Threads that read and write [default: as many as there are processors]
    #[arg(
        long,
        visible_alias = "ranks",
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    /// Do not compare checksums
    #[arg(long)]
    no_verify: bool,
}

impl ReadArgs {
    fn open(&self, path: &str) -> Result<Source> {
        Ok(Source::open(path)?.verifying(!self.no_verify))
    }
}

impl From<CheckpointError> for Error {
    /// What was asked for makes no sense, or went wrong.
    fn from(error: CheckpointError) -> Error {
        let message = error.to_string();
        match error {
            CheckpointError::Exists { .. } => {
                Error::failure(message).with_hint("--force replaces it")
            }
            CheckpointError::BadText { .. }
            | CheckpointError::NoMatch { .. }
            | CheckpointError::RenamedAlike { .. }
            | CheckpointError::SamePlace { .. } => Error::usage(message),
            _ => Error::failure(message),
        }
    }
}
