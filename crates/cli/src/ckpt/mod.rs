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

use crate::{
    agree::{agree, said_once},
    error::{Error, Result},
};

const NOTES: &str = "\
A checkpoint is a directory or a file: what dtensor saves, sharded or plain safetensors (with an index or without), \
PyTorch's distributed checkpoints (.metadata and .distcp), and files of torch.save (.pt, .pth, .bin). Reading needs \
no Python, runs nothing that a file says, and keeps no more than some MiB in memory.

In patterns of names, `*` stands for any text, dots included.

Under mpirun (build with --features mpi), processes that see the same file system share the work of everything but inspect: \
each reads, compares or writes some of the bytes, also of one file. The first of them speaks for all.";

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
            _ => Error::SaidByAnother(Box::new(error)),
        });
        Ok::<_, CommError>(outcome)
    });
    let outcomes = outcomes.map_err(|error| said_once(&error, Error::failure(error.to_string())));
    outcomes?.into_iter().collect()
}

impl Task {
    /// Does it, or this process's part of what a group shares.
    fn run(&self, group: Option<Group>) -> Result<()> {
        let is_first = is_first(group.as_ref());
        match self {
            Task::Convert(args) => convert::run(args, group),
            Task::Consolidate(args) => convert::consolidate(args, group),
            Task::Reshard(args) => convert::reshard(args, group),
            Task::Verify(args) => verify::run(args, group),
            Task::Diff(args) => diff::run(args, group),
            Task::Inspect(_) if !is_first => Ok(()),
            Task::Inspect(args) => inspect::run(args),
        }
    }
}

/// Whether this process speaks for all.
fn is_first(group: Option<&Group>) -> bool {
    group.is_none_or(|group| group.rank() == 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_cannot_read_is_the_same_error_for_all() {
        let errors = Runner::threads(3).run(|world| {
            let own = match world.rank() {
                0 => Ok(()),
                rank => Err(Error::usage(format!("no plan on {rank}")).with_hint("write one")),
            };
            let agreed = agree(Some(&world.group()), own);
            // The world can still be used: nobody was left behind.
            world.group().barrier()?;
            Ok::<_, CommError>(agreed.unwrap_err())
        });
        for error in errors.unwrap() {
            let Error::Usage { message, hint } = error else { panic!("{error:?}") };
            assert_eq!((message.as_str(), hint.as_deref()), ("no plan on 1", Some("write one")));
        }
    }

    #[test]
    fn where_nobody_fails_each_has_its_own() {
        let ranks = Runner::threads(2).run(|world| {
            let own = agree(Some(&world.group()), Ok(world.rank()));
            Ok::<_, CommError>(own.unwrap())
        });
        assert_eq!(ranks.unwrap(), [0, 1]);
    }
}
