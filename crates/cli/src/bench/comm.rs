//! `dtensor bench comm`: collectives beside a memcpy of the same bytes, in one run.

use std::error::Error as _;

use clap::Args;
use dtensor_comm::{CommError, RunError, Runner, World, WorldKind};
use dtensor_picture::units;

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
    parse,
};

use super::{
    buffers::{Buffers, Counts, Shape, available_memory},
    cases::{Bench, Case},
    latency,
    plain_mpi::PlainMpi,
    report::{Line, Report},
};

const EXAMPLES: &str = "\
Examples:
  Two ranks, 64 MiB, as a table:
    dtensor bench comm --ranks 2
  A quick look, one JSON line per case:
    dtensor bench comm --ranks 2 --bytes 1MiB --repeat 3 --json
  Ranks as processes (build with --features mpi), beside the plain MPI calls:
    mpirun -n 2 dtensor bench comm --json

Cases: all_gather (everybody gets the whole vector), all_to_all (everybody sends and receives as much as \
the whole vector), all_reduce (of the whole vector, in place), reduce_scatter (everybody keeps a piece), \
memcpy (of the whole vector, by all ranks at once), memcpy_piece (of one rank's piece), and \
all_reduce_latency (8 bytes).

A sample is the time of the slowest rank. Cases take turns, buffers are reused and in the same state \
before every sample, the minimum is the figure to use. The memcpy is the system's: collectives that write \
past the caches can be faster than it. `uneven` is a matrix whose rows do not divide by the ranks.";

/// Collectives beside a memcpy of the same bytes.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CommArgs {
    /// Ranks, as threads of this process [default: DTENSOR_RANKS, or one per core; under mpirun its
    /// processes]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Size of the whole vector
    #[arg(long, default_value = "64MiB", value_parser = parse::bytes)]
    bytes: usize,
    /// Samples of every case
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Whether ranks compare their calls before data moves (on threads they always do)
    /// [default: as DTENSOR_CHECKS says, else not in release builds]
    #[arg(long, value_name = "BOOL")]
    checks: Option<bool>,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

/// Why a rank could not measure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error(
        "the ranks need {} of memory, {} are available; lower --bytes or --ranks",
        units::bytes(*needed as f64),
        units::bytes(*available as f64)
    )]
    Memory { needed: usize, available: usize },
    #[error(
        "--ranks {asked}, but the world has {got}; leave --ranks out, or make it agree with mpirun and DTENSOR_RANKS"
    )]
    Ranks { asked: usize, got: usize },
    #[error("{} ({}) gave a wrong result; please report this", case.name(), shape.name())]
    Wrong { case: Case, shape: Shape },
}

pub fn run(args: CommArgs) -> Result<()> {
    if args.ranks == Some(0) {
        return Err(Error::usage("--ranks 0: a world has at least one rank"));
    }
    let mut runner = Runner::new();
    if let Some(ranks) = args.ranks {
        runner = runner.ranks(ranks);
    }
    if let Some(checks) = args.checks {
        runner = runner.checks(checks);
    }
    let progress = Progress::new();
    let reports = runner.run(|world| measure(world, &args, &progress)).map_err(readable)?;
    drop(progress);
    // Under mpirun every process has one report, of which rank 0's is the one to print.
    let Some(report) = reports.into_iter().flatten().next() else { return Ok(()) };
    let mut out = Out::new();
    match args.json {
        true => report.json().iter().try_for_each(|line| out.json(line)),
        false => out.lines(report.table()),
    }
}

/// One rank's part. All ranks measure; rank 0 reports.
fn measure(
    world: &World,
    args: &CommArgs,
    progress: &Progress,
) -> Result<Option<Report>, BenchError> {
    let group = world.group().tag("bench");
    let (rank, ranks) = (group.rank(), group.size());
    if let Some(asked) = args.ranks.filter(|asked| *asked != ranks) {
        return Err(BenchError::Ranks { asked, got: ranks });
    }
    let elements = (args.bytes / size_of::<f32>()).max(ranks);
    let counts = Shape::ALL.map(|shape| (shape, Counts::new(shape, elements, ranks)));
    let largest = counts.iter().map(|(_, counts)| counts.largest()).max().unwrap_or(0);
    check_memory(world, largest)?;
    // Nobody takes memory before everybody has seen that there is enough.
    group.barrier()?;
    let mut buffers = Buffers::new(largest);
    let plain_mpi = PlainMpi::of(world);
    let mut lines = Vec::new();
    for (shape, counts) in &counts {
        let mut bench = Bench { group: &group, counts, buffers: &mut buffers };
        let mut of_shape = Vec::new();
        for case in Case::ALL {
            bench.check(case, *shape)?;
            of_shape.push(Line::new(*shape, case, counts, false));
            if plain_mpi.as_ref().is_some_and(|plain| plain.has(case, *shape)) {
                of_shape.push(Line::new(*shape, case, counts, true));
            }
        }
        for round in 0..args.repeat {
            for line in &mut of_shape {
                if rank == 0 {
                    let case = line.case.name();
                    progress.say(&format!("{} {case}, round {}", shape.name(), round + 1));
                }
                let plain = plain_mpi.as_ref().filter(|_| line.is_plain_mpi);
                line.samples.push(bench.sample(|bench| match plain {
                    Some(plain) => {
                        plain.call(line.case, *shape, bench.counts, bench.buffers);
                        Ok(())
                    }
                    None => bench.call(line.case, *shape),
                })?);
            }
        }
        lines.append(&mut of_shape);
    }
    if rank == 0 {
        progress.say("latency");
    }
    let latency = latency::all_reduce(&group)?;
    let plain_latency =
        plain_mpi.map(|plain| latency::plain_all_reduce(&group, &plain)).transpose()?;
    let report = Report::new(world, args.checks, lines).with_latency(latency, plain_latency);
    Ok((rank == 0).then_some(report))
}

/// Whether two buffers fit for each rank that shares this process's memory. Asked before, because
/// a system that promises more memory than it has ends programs instead of refusing.
fn check_memory(world: &World, elements: usize) -> Result<(), BenchError> {
    let here = if world.kind() == WorldKind::Mpi { 1 } else { world.size() };
    let needed = elements.saturating_mul(2 * size_of::<f32>()).saturating_mul(here);
    match available_memory() {
        Some(available) if needed > available => Err(BenchError::Memory { needed, available }),
        _ => Ok(()),
    }
}

/// What the bench itself refused needs no flight recorder to be understood.
fn readable(error: RunError) -> Error {
    match error.source().and_then(|source| source.downcast_ref()) {
        Some(BenchError::Comm(_)) | None => Error::failure(error.to_string()),
        Some(refused) => Error::failure(refused.to_string()),
    }
}
