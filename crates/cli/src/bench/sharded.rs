//! `dtensor bench sharded`: sharded tensors cut in another way and gathered, and what knowing every shard costs.

use std::time::Instant;

use clap::Args;
use dtensor::{DType, Runner, Tensor, World, WorldKind};
use dtensor_picture::{Align, Table, units::microseconds};
use dtensor_sharded::{
    ChunkShardingSpec, Device, EnumerableShardingSpec, Shard, ShardMetadata, ShardPlacement,
    ShardedTensor, ShardingSpec, TensorOptions, TensorProperties, check_no_overlap,
    rpc::{Options, init_rpc},
    shard_tensor,
};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

use super::samples::{Samples, of_slowest_rank};

const EXAMPLES: &str = "\
Examples:
  On 2 and on 4 thread ranks, as a table:
    dtensor bench sharded
  A quick look, one JSON line per case:
    dtensor bench sharded --size 512 --shards 1000 --rounds 3 --json
  Ranks as processes (build with --features mpi):
    mpirun -n 2 dtensor bench sharded --json

Cases of ranks: a tensor of SIZE x SIZE f32, 64 MiB, is resharded in place from chunks of rows to chunks of \
columns (reshard_rows_to_columns), back (reshard_columns_to_rows), and to rows in the opposite order of ranks and \
back (reshard_turned); gather_rows and gather_columns bring it to rank 0; memcpy copies the whole on rank 0, while the others \
wait; remote_fetch brings a shard with the whole tensor from rank 0 to rank 1, over gRPC on the loopback device. A sample is the time of the slowest rank; every result is checked once. GB/s are those of the whole tensor. Ranks that \
are threads share one copy of what one rank receives, and so a gather can be faster than the memcpy of one.

Cases without ranks: metadata_chunks and metadata_boxes make the metadata of SHARDS shards from a spec of chunks and \
from a list of boxes; overlap_rows, overlap_grid and overlap_3d look for two shards with common elements among that many that \
have none, cut along one, two and three dims.";

/// Sharded tensors: reshard, gather, metadata.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ShardedArgs {
    /// Ranks, as threads of this process; may be given several times [default: 2 and 4; under mpirun its
    /// processes]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Vec<u16>,
    /// Times that all cases are run, one after the other
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows and columns of the tensor
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..1 << 16))]
    size: u32,
    /// Shards of the cases without ranks
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    shards: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

/// A case and its times.
struct Line {
    world: usize,
    kind: &'static str,
    case: &'static str,
    of: Subject,
    samples: Samples,
}

/// What a case works on.
#[derive(Clone, Copy)]
enum Subject {
    /// A tensor of this many rows and columns.
    Tensor(usize),
    /// A list of shards.
    Shards(usize),
}

type Outcome<T> = std::result::Result<T, dtensor_sharded::Error>;

pub fn run(args: ShardedArgs) -> Result<()> {
    let progress = Progress::new();
    let ranks: Vec<usize> = match &*args.ranks {
        [] => vec![2, 4],
        ranks => ranks.iter().map(|ranks| usize::from(*ranks)).collect(),
    };
    let mut lines = Vec::new();
    for ranks in ranks {
        let reports = Runner::new().ranks(ranks).run(|world| moves(world, &args, &progress));
        let reports = reports.map_err(|error| Error::failure(error.to_string()))?;
        let Some((kind, rank, report)) = reports.into_iter().next() else { continue };
        if rank > 0 {
            // Of the processes of mpirun, the first one reports.
            return Ok(());
        }
        lines.extend(report);
        if kind == WorldKind::Mpi {
            // mpirun has said how many there are.
            break;
        }
    }
    let planned = planning(&args, &progress);
    lines.extend(planned.map_err(|error| Error::failure(error.to_string()))?);
    drop(progress);
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json())),
        false => out.lines(table(&lines)),
    }
}

/// What a rank does with the tensor that it is given, and leaves for the next case.
struct Move {
    case: &'static str,
    run: fn(&mut ShardedTensor) -> Outcome<()>,
}

/// In this order, so that each case leaves the tensor as the next one needs it.
const MOVES: [Move; 6] = [
    Move { case: "gather_rows", run: |x| x.gather(0).map(drop) },
    Move { case: "reshard_turned", run: |x| x.reshard(rows_turned(x)?) },
    Move { case: "reshard_turned", run: |x| x.reshard(chunks(x, 0)?) },
    Move { case: "reshard_rows_to_columns", run: |x| x.reshard(chunks(x, 1)?) },
    Move { case: "gather_columns", run: |x| x.gather(0).map(drop) },
    Move { case: "reshard_columns_to_rows", run: |x| x.reshard(chunks(x, 0)?) },
];

/// One rank's part of what needs ranks. All measure; which kind of world it is and which rank, they tell.
fn moves(
    world: &World,
    args: &ShardedArgs,
    progress: &Progress,
) -> Outcome<(WorldKind, usize, Vec<Line>)> {
    let n = args.size as usize;
    let whole = Tensor::arange(0, (n * n) as i64, 1, DType::I64)?.rem_scalar(1024)?;
    let whole = whole.to_dtype(DType::F32)?.reshape(&[n, n])?;
    let rows = ChunkShardingSpec::over_ranks(0, 0..world.size())?;
    let mut x = shard_tensor(&whole, rows, 0, world)?;
    // What a rank that only waits copies is nothing.
    let source = if world.rank() == 0 { whole.clone() } else { Tensor::empty(&[0], DType::F32)? };
    let mut buffer = source.copied();
    let mut lines: Vec<Line> = Vec::new();
    let mut note = |case: &'static str, microseconds: f64| match lines
        .iter_mut()
        .find(|line| line.case == case)
    {
        Some(line) => line.samples.push(microseconds),
        None => lines.push(Line {
            world: world.size(),
            kind: world.kind().name(),
            case,
            of: Subject::Tensor(n),
            samples: Samples::new(vec![microseconds]),
        }),
    };
    // The first round is for the check, and to have memory that has been used before.
    for round in 0..=args.rounds {
        for Move { case, run } in &MOVES {
            if world.rank() == 0 {
                let of = format!("{} ranks, {case}", world.size());
                progress.say(&format!("{of}, round {round} of {}", args.rounds));
            }
            let microseconds = sample(world, || run(&mut x))?;
            match round {
                0 => check(case, &x, &whole, world)?,
                _ => note(case, microseconds),
            }
        }
        let microseconds = sample(world, || Ok(buffer.copy_from(&source)?))?;
        if round > 0 {
            note("memcpy", microseconds);
        }
    }
    if world.size() > 1 {
        lines.push(fetches(world, args, &whole, progress)?);
    }
    Ok((world.kind(), world.rank(), lines))
}

/// One shard with the whole tensor on rank 0, of which rank 1 fetches a copy while the others wait.
fn fetches(
    world: &World,
    args: &ShardedArgs,
    whole: &Tensor,
    progress: &Progress,
) -> Outcome<Line> {
    const CASE: &str = "remote_fetch";
    let rank = world.rank();
    let failed = |source| dtensor_sharded::Error::Rpc { op: CASE.into(), source: Box::new(source) };
    let agent = init_rpc(world, &format!("rank{rank}"), Options::default()).map_err(failed)?;
    let own = match rank {
        0 => vec![Shard::from_tensor_and_offsets(whole.clone(), &[0, 0], 0)?],
        _ => Vec::new(),
    };
    let options = TensorOptions::on(world).init_rrefs(&agent);
    let x = ShardedTensor::from_local_shards(own, whole.shape(), options)?;
    let mut samples = Samples::default();
    for round in 0..=args.rounds {
        if rank == 0 {
            let of = format!("{} ranks, {CASE}", world.size());
            progress.say(&format!("{of}, round {round} of {}", args.rounds));
        }
        let mut fetched = None;
        let microseconds = sample(world, || {
            if rank == 1 {
                let shards = x.remote_shards()?.get(&0).and_then(|shards| shards.first());
                fetched = shards.map(|shard| shard.to_here(None)).transpose()?;
            }
            Ok(())
        })?;
        match (round, rank, fetched) {
            (0, 1, Some(shard)) if !shard.tensor().equal(whole)? => return Err(wrong(CASE)),
            (0, 1, None) => return Err(wrong(CASE)),
            (0, ..) => {}
            _ => samples.push(microseconds),
        }
    }
    drop(x);
    agent.shutdown().map_err(failed)?;
    let (world, kind) = (world.size(), world.kind().name());
    Ok(Line { world, kind, case: CASE, of: Subject::Tensor(args.size as usize), samples })
}

/// What follows from specs alone.
fn planning(args: &ShardedArgs, progress: &Progress) -> Outcome<Vec<Line>> {
    let n = args.shards as usize;
    let side = n.isqrt();
    // As near to that many shards as a grid can be.
    let rows = grid(&[n])?;
    let squares = grid(&[side, n.div_ceil(side)])?;
    let layer = (n / 10).isqrt().max(1);
    let cubes = grid(&[layer, layer, n.div_ceil(layer * layer)])?;
    let chunks = ChunkShardingSpec::over_ranks(0, 0..n)?;
    let boxes = EnumerableShardingSpec::new(squares.clone())?;
    let size = [2 * side, 2 * n.div_ceil(side)];
    let properties = TensorProperties::new(DType::F32);
    let cases: [(&'static str, &dyn Fn() -> Outcome<()>); 5] = [
        ("metadata_chunks", &|| chunks.build_metadata(&[4 * n, 8], &properties).map(drop)),
        ("metadata_boxes", &|| boxes.build_metadata(&size, &properties).map(drop)),
        ("overlap_rows", &|| check_no_overlap(&rows)),
        ("overlap_grid", &|| check_no_overlap(&squares)),
        ("overlap_3d", &|| check_no_overlap(&cubes)),
    ];
    let mut lines = Vec::new();
    for (case, run) in cases {
        progress.say(&format!("{n} shards, {case}"));
        let mut samples = Samples::default();
        for round in 0..=args.rounds {
            let start = Instant::now();
            run()?;
            if round > 0 {
                samples.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        lines.push(Line { world: 1, kind: "none", case, of: Subject::Shards(n), samples });
    }
    Ok(lines)
}

/// Boxes of size 2 in every dim, so many in each, every one on a rank of its own.
fn grid(parts: &[usize]) -> Outcome<Vec<ShardMetadata>> {
    let sizes = vec![2; parts.len()];
    let at = |number: usize| {
        let mut rest = number;
        let mut offsets = vec![0; parts.len()];
        for (offset, parts) in offsets.iter_mut().zip(parts).rev() {
            *offset = 2 * (rest % parts);
            rest /= parts;
        }
        let placement = ShardPlacement::on_rank(number, Device::CPU);
        ShardMetadata::new(&offsets, &sizes, Some(placement))
    };
    (0..parts.iter().product()).map(at).collect()
}

/// Chunks of a dim on all ranks, in their order.
fn chunks(x: &ShardedTensor, dim: isize) -> Outcome<ChunkShardingSpec> {
    ChunkShardingSpec::over_ranks(dim, 0..x.process_group().size())
}

/// Chunks of rows on all ranks, in the opposite order.
fn rows_turned(x: &ShardedTensor) -> Outcome<ChunkShardingSpec> {
    ChunkShardingSpec::over_ranks(0, (0..x.process_group().size()).rev())
}

/// The time of the slowest rank, in microseconds.
fn sample(world: &World, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let comm = |source| dtensor_sharded::Error::Comm {
        op: "bench".into(),
        source: std::sync::Arc::new(source),
    };
    of_slowest_rank(world, comm, work)
}

/// Every element, against the whole tensor, cut in the same way.
fn check(case: &'static str, x: &ShardedTensor, whole: &Tensor, world: &World) -> Outcome<()> {
    let want = shard_tensor(whole, x.sharding_spec(), 0, world)?;
    let gathered = match (case.starts_with("gather"), x.gather(0)?) {
        (true, Some(gathered)) => gathered.equal(whole)?,
        _ => true,
    };
    match x.equal(&want)? && gathered {
        true => Ok(()),
        false => Err(wrong(case)),
    }
}

fn wrong(case: &str) -> dtensor_sharded::Error {
    dtensor_sharded::Error::Unsupported {
        op: "bench sharded".into(),
        what: format!("{case} gave a wrong result").into(),
        way_out: "please report this".into(),
    }
}

impl Line {
    fn gigabytes_per_s(&self) -> Option<f64> {
        match self.of {
            Subject::Tensor(n) => Some((n * n * 4) as f64 / self.samples.min() / 1e3),
            Subject::Shards(_) => None,
        }
    }

    fn json(&self) -> Value {
        let milliseconds = |us: f64| us.round() / 1e3;
        let mut line = json!({
            "bench": "sharded",
            "world": self.world,
            "kind": self.kind,
            "case": self.case,
            "min_ms": milliseconds(self.samples.min()),
            "median_ms": milliseconds(self.samples.median()),
            "n": self.samples.len(),
        });
        let (key, value) = match self.of {
            Subject::Tensor(n) => ("dims", json!([n, n])),
            Subject::Shards(n) => ("shards", json!(n)),
        };
        line[key] = value;
        if let Some(rate) = self.gigabytes_per_s() {
            line["GBps"] = json!((rate * 1e3).round() / 1e3);
        }
        line
    }
}

fn table(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(&[
        ("ranks", Align::Right),
        ("case", Align::Left),
        ("of", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
        ("GB/s", Align::Right),
    ]);
    for line in lines {
        let of = match line.of {
            Subject::Tensor(n) => format!("{n} x {n}"),
            Subject::Shards(n) => format!("{n} shards"),
        };
        table.row([
            line.world.to_string(),
            line.case.to_string(),
            of,
            microseconds(line.samples.min()),
            microseconds(line.samples.median()),
            line.gigabytes_per_s().map_or_else(String::new, |rate| format!("{rate:.1}")),
        ]);
    }
    table.lines()
}
