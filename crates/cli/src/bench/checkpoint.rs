//! `dtensor bench checkpoint`: saving and loading, beside plain writes and reads of the same bytes.

mod files;
mod line;
mod rank;

use std::{fs, path::PathBuf};

use clap::Args;
use dtensor::{Runner, World, WorldKind};
use dtensor_comm::is_launched;

use self::{
    files::is_in_memory,
    line::{Line, table},
    rank::{Rank, Setting},
};
use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

const EXAMPLES: &str = "\
Examples:
  1 GiB on 2 thread ranks, on the disk of the current directory:
    dtensor bench checkpoint
  In memory, one JSON line per case:
    dtensor bench checkpoint --dir /dev/shm --json
  Also loads and conversions of what PyTorch has saved of the same tensors:
    dtensor bench checkpoint --classic checkpoints/dcp

Cases: 16 tensors of SIZE x SIZE f32, cut in rows, are saved with and without fsync (nosync), in the background (async: until \
the call returns, until everything is written), and loaded into the same layout (S0), cut in columns (S1), and on one rank \
(world1); small_N are N tensors of 16,384 elements. hf_sharded is what dtensor saves, by PyTorch's name for this kind of \
files; hf_consolidated is the same made into one file of whole tensors afterwards, and that file loaded. dcp is the checkpoint of --classic: loaded, and converted to one file. Checksums are written and verified. `raw` \
writes or reads the same bytes to and from one file per rank and nothing else. `cold`: the files' pages were dropped from memory \
first (there are no such cases on file systems that live there). A sample is the time of the slowest rank; every result is \
checked. extra_mib is what a process had at the most during a call beyond what it had before. Under mpirun there are no cases \
on one rank.";

/// Saving and loading, beside plain writes and reads of the same bytes.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointArgs {
    /// Where to write; what is written is removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Rows and columns of each of the 16 tensors
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..1 << 16))]
    size: u32,
    /// Number of small tensors
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    small: u32,
    /// A .distcp checkpoint of the same 16 tensors, t0 to t15, that PyTorch has written
    #[arg(long, value_name = "DIR")]
    classic: Option<PathBuf>,
    /// Ranks, as threads of this process; under mpirun its processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// Times that all cases are run, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

/// Where everything is written, below the directory that was given.
const BASE: &str = "dtensor-bench-checkpoint";

type Outcome<T> = std::result::Result<T, dtensor_checkpoint::Error>;

/// What this process knows in the end.
struct Measured {
    lines: Vec<Line>,
    /// Whether it is the one that speaks.
    is_first: bool,
}

pub fn run(args: CheckpointArgs) -> Result<()> {
    let progress = Progress::new();
    let base = args.dir.join(BASE);
    let target = if is_in_memory(&args.dir) { "shm" } else { "disk" };
    let setting = Setting {
        size: args.size as usize,
        n_small: args.small as usize,
        ranks: usize::from(args.ranks),
        base: &base,
        classic: args.classic.as_deref(),
        progress: &progress,
    };
    let measured = rounds(&args, &setting);
    if !is_launched() {
        // What was written goes, whatever happened. Under mpirun rank 0 has done it.
        let _ = fs::remove_dir_all(&base);
    }
    let Measured { lines, is_first } = measured?;
    drop(progress);
    if !is_first {
        return Ok(());
    }
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json(target))),
        false => out.lines(table(&lines)),
    }
}

fn rounds(args: &CheckpointArgs, setting: &Setting<'_>) -> Result<Measured> {
    let mut measured = Measured { lines: Vec::new(), is_first: true };
    for round in 0..args.rounds {
        for ranks in [Some(setting.ranks), None] {
            let runner = Runner::new().ranks(ranks.unwrap_or(1));
            let reports = runner.run(|world| {
                let done = one_world(world, setting, round, ranks.is_none());
                if world.kind() == WorldKind::Mpi && world.rank() == 0 {
                    // Nobody else does, or one process would remove what another one still needs.
                    let _ = fs::remove_dir_all(setting.base);
                }
                done.map(|done| (world.kind(), world.rank(), done))
            });
            let reports = reports.map_err(|error| Error::failure(error.to_string()))?;
            let Some((kind, rank, done)) = reports.into_iter().next() else { continue };
            for line in done {
                match measured.lines.iter_mut().find(|known| known.case == line.case) {
                    Some(known) => known.extend(line),
                    None => measured.lines.push(line),
                }
            }
            measured.is_first = rank == 0;
            if kind == WorldKind::Mpi {
                // mpirun has said how many ranks there are; there is no world of one among them.
                break;
            }
        }
    }
    Ok(measured)
}

/// What the ranks of one world measure.
fn one_world(
    world: &World,
    setting: &Setting<'_>,
    round: u32,
    is_alone: bool,
) -> Outcome<Vec<Line>> {
    let mut rank = Rank::new(world, setting, round)?;
    match is_alone {
        false => rank.saves_and_loads()?,
        true => rank.on_one_rank()?,
    }
    // Until all are done, their files are needed.
    world.group().barrier()?;
    Ok(rank.done)
}
