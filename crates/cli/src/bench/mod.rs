//! `dtensor bench`: how long things take on this machine.

mod buffers;
mod cases;
mod checkpoint;
mod comm;
mod dispatch;
mod kernel_cases;
mod kernels;
mod latency;
#[cfg_attr(not(feature = "mpi"), path = "no_mpi.rs")]
mod plain_mpi;
mod redistribute;
mod report;
mod samples;
mod scale;
mod sharded;
mod train;

use clap::{Args, Subcommand};

use crate::error::Result;

/// Measure communication, kernels and planning on this machine.
#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Checkpoint(checkpoint::CheckpointArgs),
    Comm(comm::CommArgs),
    Dispatch(dispatch::DispatchArgs),
    Kernels(kernels::KernelsArgs),
    Redistribute(redistribute::RedistributeArgs),
    Scale(scale::ScaleArgs),
    Sharded(sharded::ShardedArgs),
    Train(train::TrainArgs),
}

pub fn run(args: BenchArgs) -> Result<()> {
    match args.subject {
        Subject::Checkpoint(args) => checkpoint::run(args),
        Subject::Comm(args) => comm::run(args),
        Subject::Dispatch(args) => dispatch::run(args),
        Subject::Kernels(args) => kernels::run(args),
        Subject::Redistribute(args) => redistribute::run(args),
        Subject::Scale(args) => scale::run(args),
        Subject::Sharded(args) => sharded::run(args),
        Subject::Train(args) => train::run(args),
    }
}
