//! `dtensor bench redistribute`: a tensor from one layout to another, beside a memcpy of the same bytes.

use clap::Args;
use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Runner, Tensor, World, WorldKind, distribute_tensor_from,
};
use dtensor_picture::{Align, Table, units::microseconds};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

use super::samples::{Samples, of_slowest_rank};

const EXAMPLES: &str = "\
Examples:
  On 2 and on 4 thread ranks, as a table:
    dtensor bench redistribute
  Ranks as processes (build with --features mpi), one JSON line per case:
    mpirun -n 2 dtensor bench redistribute --json

Cases: S0->R (all-gather), R->S0 (local), S0->S1 (all-to-all), P->R (all-reduce), P->S0 (reduce-scatter) of \
64 MiB of f32, 4096 x 4096 and, uneven, 4097 x 4095. memcpy_clone takes new memory, memcpy_copy writes to \
memory that is there; `alone` is by rank 0 only, `all` by every rank at once. A sample is the time of the \
slowest rank; every result is checked once. GB/s are those of the whole tensor.";

/// A tensor from one layout to another, beside a memcpy of the same bytes.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RedistributeArgs {
    /// Ranks, as threads of this process; may be given several times [default: 2 and 4; under mpirun its
    /// processes]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Vec<u16>,
    /// Samples of every case
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Rows and columns of the even shape; the uneven one has one row more and one column less
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..1 << 20))]
    size: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

/// What is measured.
struct Case {
    name: &'static str,
    from: Placement,
    to: Placement,
}

const CASES: [Case; 5] = [
    Case { name: "S0->R", from: Shard(0), to: Replicate },
    Case { name: "R->S0", from: Replicate, to: Shard(0) },
    Case { name: "S0->S1", from: Shard(0), to: Shard(1) },
    Case { name: "P->R", from: Partial(ReduceOp::Sum), to: Replicate },
    Case { name: "P->S0", from: Partial(ReduceOp::Sum), to: Shard(0) },
];

/// A case of one world and shape.
struct Line {
    world: usize,
    kind: WorldKind,
    shape: &'static str,
    dims: [usize; 2],
    case: &'static str,
    samples: Samples,
    /// What was called, for cases that are no memcpy.
    comms: Option<Map<String, Value>>,
}

pub fn run(args: RedistributeArgs) -> Result<()> {
    let progress = Progress::new();
    let ranks: Vec<usize> = match &*args.ranks {
        [] => vec![2, 4],
        ranks => ranks.iter().map(|ranks| usize::from(*ranks)).collect(),
    };
    let mut lines = Vec::new();
    for ranks in ranks {
        let runner = Runner::new().ranks(ranks);
        let reports = runner.run(|world| measure(world, &args, &progress));
        let reports = reports.map_err(|error| Error::failure(error.to_string()))?;
        let Some((kind, report)) = reports.into_iter().next() else { continue };
        lines.extend(report);
        if kind == WorldKind::Mpi {
            // mpirun has said how many there are.
            break;
        }
    }
    drop(progress);
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json())),
        false => out.lines(table(&lines)),
    }
}

/// One rank's part. All ranks measure, and know what kind of world it is; rank 0 reports.
fn measure(
    world: &World,
    args: &RedistributeArgs,
    progress: &Progress,
) -> Result<(WorldKind, Vec<Line>), dtensor::Error> {
    let n = args.size as usize;
    let mesh = DeviceMesh::of_world(world, "x")?;
    let mut lines = Vec::new();
    for (shape, dims) in [("even", [n, n]), ("uneven", [n + 1, n - 1])] {
        let full = Tensor::arange(0, (dims[0] * dims[1]) as i64, 1, DType::I64)?;
        let full = full.rem_scalar(1024)?.to_dtype(DType::F32)?.reshape(&dims)?;
        let scaled = full.mul_scalar((world.rank() + 1) as f64)?;
        let mut of_shape = Vec::new();
        for case in &CASES {
            let source = match case.from {
                Partial(_) => DTensor::from_local_with_shape(&scaled, &mesh, &[case.from], &dims)?,
                _ => distribute_tensor_from(&full, &mesh, &[case.from], None)?,
            };
            let (moved, comm) = CommDebug::record(|| source.redistribute(&[case.to]));
            check(case, &moved?, &full, world)?;
            let mut comms = Map::new();
            for event in &comm.events {
                let times = comms.get(event.kind.name()).and_then(Value::as_u64).unwrap_or(0);
                comms.insert(event.kind.name().to_string(), json!(times + 1));
            }
            let line = Line {
                world: world.size(),
                kind: world.kind(),
                shape,
                dims,
                case: case.name,
                samples: Samples::default(),
                comms: Some(comms),
            };
            of_shape.push((line, Work::Move { source, to: case.to }));
        }
        let copies = [
            ("memcpy_clone_all", true, true),
            ("memcpy_copy_all", false, true),
            ("memcpy_clone_alone", true, false),
            ("memcpy_copy_alone", false, false),
        ];
        for (case, anew, all) in copies {
            let (world, kind) = (world.size(), world.kind());
            let samples = Samples::default();
            let line = Line { world, kind, shape, dims, case, samples, comms: None };
            of_shape.push((line, Work::Copy { anew, all }));
        }
        let mut buffer = full.copied();
        for round in 0..args.repeat {
            for (line, work) in &mut of_shape {
                if world.rank() == 0 {
                    let of = format!("{} ranks, {shape}, {}", world.size(), line.case);
                    progress.say(&format!("{of}, round {} of {}", round + 1, args.repeat));
                }
                line.samples.push(sample(world, || work.run(world, &full, &mut buffer))?);
            }
        }
        lines.extend(of_shape.into_iter().map(|(line, _)| line));
    }
    let report = if world.rank() == 0 { lines } else { Vec::new() };
    Ok((world.kind(), report))
}

enum Work {
    Move { source: DTensor, to: Placement },
    Copy { anew: bool, all: bool },
}

impl Work {
    fn run(&self, world: &World, full: &Tensor, buffer: &mut Tensor) -> Result<(), dtensor::Error> {
        match self {
            Work::Move { source, to } => {
                source.redistribute(&[*to])?;
            }
            Work::Copy { all: false, .. } if world.rank() != 0 => {}
            Work::Copy { anew: true, .. } => drop(full.copied()),
            Work::Copy { anew: false, .. } => buffer.copy_from(full)?,
        }
        Ok(())
    }
}

/// The time of the slowest rank, in microseconds.
fn sample(
    world: &World,
    work: impl FnOnce() -> Result<(), dtensor::Error>,
) -> Result<f64, dtensor::Error> {
    let comm = |source| dtensor::Error::Comm { op: "bench", source: std::sync::Arc::new(source) };
    of_slowest_rank(world, comm, work)
}

/// Every element, against the whole tensor that every rank has.
fn check(case: &Case, moved: &DTensor, full: &Tensor, world: &World) -> Result<(), dtensor::Error> {
    let ranks = world.size();
    let scale = match case.from {
        Partial(_) => (ranks * (ranks + 1) / 2) as f64,
        _ => 1.0,
    };
    let want = distribute_tensor_from(&full.mul_scalar(scale)?, moved.mesh(), &[case.to], None)?;
    match moved.to_local().equal(&want.to_local())? {
        true => Ok(()),
        false => Err(dtensor::Error::Unsupported {
            op: "bench redistribute",
            what: format!("{} gave a wrong result", case.name).into(),
            way_out: "please report this",
        }),
    }
}

impl Line {
    fn gigabytes_per_s(&self) -> f64 {
        (self.dims[0] * self.dims[1] * 4) as f64 / self.samples.min() / 1e3
    }

    fn json(&self) -> Value {
        let milliseconds = |us: f64| us.round() / 1e3;
        let mut line = json!({
            "bench": "redistribute",
            "world": self.world,
            "kind": self.kind.name(),
            "shape": self.shape,
            "dims": self.dims,
            "case": self.case,
            "min_ms": milliseconds(self.samples.min()),
            "median_ms": milliseconds(self.samples.median()),
            "n": self.samples.len(),
            "GBps": (self.gigabytes_per_s() * 1e3).round() / 1e3,
        });
        if let (Some(comms), Some(line)) = (&self.comms, line.as_object_mut()) {
            line.insert("ok".to_string(), json!(true));
            line.insert("comms".to_string(), Value::Object(comms.clone()));
        }
        line
    }
}

fn table(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(&[
        ("ranks", Align::Right),
        ("shape", Align::Left),
        ("case", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
        ("GB/s", Align::Right),
    ]);
    for line in lines {
        table.row([
            line.world.to_string(),
            format!("{} x {}", line.dims[0], line.dims[1]),
            line.case.to_string(),
            microseconds(line.samples.min()),
            microseconds(line.samples.median()),
            format!("{:.1}", line.gigabytes_per_s()),
        ]);
    }
    table.lines()
}
