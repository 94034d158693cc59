//! `dtensor bench dispatch`: what a distributed tensor costs over a local one.

use std::{hint::black_box, time::Instant};

use clap::Args;
use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Runner, Tensor, World, clear_cache, distribute_tensor_from, random,
};
use dtensor_picture::{Align, Table, units::microseconds};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

use super::samples::Samples;

const EXAMPLES: &str = "\
Examples:
  On worlds of 1, 2 and 4 thread ranks, as a table:
    dtensor bench dispatch
  One JSON line per operation and placement:
    dtensor bench dispatch --ranks 1,2 --json

All tensors are 8 x 8 f32, and no case communicates. `plain` is the local operation, `dtensor` the same on \
distributed tensors when its decision is remembered, `miss` when it is not (in code that has run before), `cold` \
the first call of the operation on a rank. Placements: R and S0 on one axis, S0S1 on two (ranks x 1, or 2 x 2 for \
4 ranks). fwd: cases are chains of three operations. Ranks measure at the same time if there is a core for each, else \
one after the other, without the chains, of which one communicates on 2 x 2.";

/// What a distributed tensor costs over a local one.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DispatchArgs {
    /// Ranks, as threads of this process; may be given several times [default: 1, 2 and 4]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Vec<u16>,
    /// Also as the last rank of fake worlds of so many ranks, on meshes of three axes, where no kernel runs
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(8..))]
    fake: Vec<u32>,
    /// Samples of every case
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Calls of a sample
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

type Call<T> = fn(&Operands<T>) -> dtensor::Result<T>;

/// The operands of every case.
struct Operands<T> {
    a: T,
    b: T,
    w: T,
}

struct Case {
    name: &'static str,
    plain: Call<Tensor>,
    distributed: Call<DTensor>,
}

const CASES: [Case; 10] = [
    Case { name: "add", plain: |x| Ok(x.a.add(&x.b)?), distributed: |x| x.a.add(&x.b) },
    Case { name: "mul", plain: |x| Ok(x.a.mul(&x.b)?), distributed: |x| x.a.mul(&x.b) },
    Case { name: "matmul", plain: |x| Ok(x.a.matmul(&x.w)?), distributed: |x| x.a.matmul(&x.w) },
    Case { name: "relu", plain: |x| Ok(x.a.relu()?), distributed: |x| x.a.relu() },
    Case { name: "sum", plain: |x| Ok(x.a.sum(&[], false)?), distributed: |x| x.a.sum(&[], false) },
    Case {
        name: "view",
        plain: |x| Ok(x.a.reshape(&[8, 2, 4])?),
        distributed: |x| x.a.view(&[8, 2, 4]),
    },
    Case {
        name: "reshape",
        plain: |x| Ok(x.a.reshape(&[8, 2, 4])?),
        distributed: |x| x.a.reshape(&[8, 2, 4]),
    },
    Case {
        name: "transpose",
        plain: |x| Ok(x.a.transpose(0, 1)?),
        distributed: |x| x.a.transpose(0, 1),
    },
    Case {
        name: "fwd:matmul_relu_sum",
        plain: |x| Ok(x.a.matmul(&x.w)?.relu()?.sum(&[], false)?),
        distributed: |x| x.a.matmul(&x.w)?.relu()?.sum(&[], false),
    },
    Case {
        name: "fwd:mul_add_relu",
        plain: |x| Ok(x.a.mul(&x.b)?.add(&x.a)?.relu()?),
        distributed: |x| x.a.mul(&x.b)?.add(&x.a)?.relu(),
    },
];

/// Into the distributed world and out of it.
const WRAPS: [(&str, Call<DTensor>); 3] = [
    ("from_local", |x| DTensor::from_local(&x.a.to_local(), x.a.mesh(), x.a.placements())),
    ("to_local", |x| {
        black_box(x.a.to_local());
        Ok(x.a.clone())
    }),
    ("redistribute_noop", |x| x.a.redistribute(x.a.placements())),
];

/// One case on one placement of one world.
struct Line {
    world: usize,
    placement: &'static str,
    op: &'static str,
    plain: Samples,
    distributed: Samples,
    miss: Samples,
    cold: Samples,
    comms: usize,
    out: String,
}

pub fn run(args: DispatchArgs) -> Result<()> {
    let progress = Progress::new();
    let worlds: Vec<usize> = match &*args.ranks {
        [] => vec![1, 2, 4],
        ranks => ranks.iter().map(|ranks| usize::from(*ranks)).collect(),
    };
    let mut lines: Vec<Line> = Vec::new();
    for ranks in worlds {
        progress.say(&format!("{ranks} ranks"));
        let reports = Runner::threads(ranks).run(|world| measure(world, &args));
        let reports = reports.map_err(|error| Error::failure(error.to_string()))?;
        let mut merged: Option<Vec<Line>> = None;
        for report in reports {
            match &mut merged {
                None => merged = Some(report),
                // Ranks do not talk: each is a sample.
                Some(merged) => {
                    merged.iter_mut().zip(report).for_each(|(line, other)| line.take(other));
                }
            }
        }
        lines.extend(merged.unwrap_or_default());
    }
    for ranks in &args.fake {
        progress.say(&format!("{ranks} ranks, fake"));
        let measured = measure_fake(*ranks as usize, &args);
        lines.extend(measured.map_err(|error| Error::failure(error.to_string()))?);
    }
    drop(progress);
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json())),
        false => out.lines(table(&lines)),
    }
}

fn measure(world: &World, args: &DispatchArgs) -> dtensor::Result<Vec<Line>> {
    let comm = |source| dtensor::Error::Comm { op: "bench", source: std::sync::Arc::new(source) };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let ranks = world.size();
    let line = DeviceMesh::of_world(world, "x")?;
    let square: [(&str, usize); 2] =
        if ranks == 4 { [("x", 2), ("y", 2)] } else { [("x", ranks), ("y", 1)] };
    let square = DeviceMesh::new(world, &square)?;
    let placements: [(&str, &DeviceMesh, &[Placement], &[Placement]); 3] = [
        ("R", &line, &[Replicate], &[Replicate]),
        ("S0", &line, &[Shard(0)], &[Replicate]),
        ("S0S1", &square, &[Shard(0), Shard(1)], &[Replicate, Shard(0)]),
    ];
    random::manual_seed(0);
    let whole = || dtensor::randn(&[8, 8], DType::F32, &line, &[Replicate])?.full_tensor();
    let plain = Operands { a: whole()?, b: whole()?, w: whole()? };
    let mut lines = Vec::new();
    // One rank after the other where they would take the cores from each other.
    for turn in 0..if ranks <= cores { 1 } else { ranks } {
        world.group().barrier().map_err(comm)?;
        if ranks > cores && turn != world.rank() {
            continue;
        }
        for (name, mesh, of_a, of_w) in placements {
            let place = |tensor: &Tensor, placements: &[Placement]| {
                distribute_tensor_from(tensor, mesh, placements, None)
            };
            let x = Operands {
                a: place(&plain.a, of_a)?,
                b: place(&plain.b, of_a)?,
                w: place(&plain.w, of_w)?,
            };
            // Alone, a rank cannot measure what communicates.
            let alone = |case: &&Case| ranks <= cores || !case.name.starts_with("fwd:");
            for case in CASES.iter().filter(alone) {
                lines.push(measure_case(ranks, name, case, &plain, &x, args)?);
            }
            if ranks > cores {
                // from_local exchanges shapes, which takes all ranks.
                continue;
            }
            for (op, call) in WRAPS {
                let distributed = steady(args, || call(&x))?;
                let (empty, out) = (Samples::default(), x.a.layout().to_string());
                let (miss, cold) = (empty.clone(), empty.clone());
                lines.push(Line {
                    world: ranks,
                    placement: name,
                    op,
                    plain: empty,
                    distributed,
                    miss,
                    cold,
                    comms: 0,
                    out,
                });
            }
        }
    }
    world.group().barrier().map_err(comm)?;
    Ok(lines)
}

/// As one rank of a world that is not there. Its ranks should be a multiple of 4.
fn measure_fake(ranks: usize, args: &DispatchArgs) -> dtensor::Result<Vec<Line>> {
    let comm = |source| dtensor::Error::Comm { op: "bench", source: std::sync::Arc::new(source) };
    let world = World::fake(ranks, ranks - 1).map_err(comm)?;
    let mesh = DeviceMesh::new(&world, &[("x", ranks / 4), ("y", 2), ("z", 2)])?;
    let placements: [(&str, [Placement; 3], [Placement; 3]); 3] = [
        ("R", [Replicate; 3], [Replicate; 3]),
        ("S0", [Shard(0), Replicate, Replicate], [Replicate; 3]),
        ("S0S1", [Shard(0), Shard(1), Replicate], [Replicate, Shard(0), Replicate]),
    ];
    let plain = || Tensor::meta(&[8, 8], DType::F32);
    let plain = Operands { a: plain()?, b: plain()?, w: plain()? };
    let mut lines = Vec::new();
    for (name, of_a, of_w) in placements {
        let zeros =
            |placements: &[Placement]| dtensor::zeros(&[8, 8], DType::F32, &mesh, placements);
        let x = Operands { a: zeros(&of_a)?, b: zeros(&of_a)?, w: zeros(&of_w)? };
        for case in CASES.iter().filter(|case| !case.name.starts_with("fwd:")) {
            lines.push(measure_case(ranks, name, case, &plain, &x, args)?);
        }
    }
    Ok(lines)
}

fn measure_case(
    world: usize,
    placement: &'static str,
    case: &Case,
    plain: &Operands<Tensor>,
    x: &Operands<DTensor>,
    args: &DispatchArgs,
) -> dtensor::Result<Line> {
    let once = || -> dtensor::Result<f64> {
        let start = Instant::now();
        black_box((case.distributed)(x)?);
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let cold = Samples::new(vec![once()?]);
    let (result, comm) = CommDebug::record(|| (case.distributed)(x));
    let mut miss = Samples::default();
    for _ in 0..args.repeat {
        clear_cache();
        miss.push(once()?);
    }
    Ok(Line {
        world,
        placement,
        op: case.name,
        plain: steady(args, || (case.plain)(plain))?,
        distributed: steady(args, || (case.distributed)(x))?,
        miss,
        cold,
        comms: comm.calls(),
        out: result?.layout().to_string(),
    })
}

/// The time of a call, in microseconds: the mean of many, several times.
fn steady<T>(
    args: &DispatchArgs,
    mut call: impl FnMut() -> dtensor::Result<T>,
) -> dtensor::Result<Samples> {
    for _ in 0..50 {
        black_box(call()?);
    }
    let mut samples = Samples::default();
    for _ in 0..args.repeat {
        let start = Instant::now();
        for _ in 0..args.iters {
            black_box(call()?);
        }
        samples.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(args.iters));
    }
    Ok(samples)
}

impl Line {
    fn take(&mut self, other: Line) {
        self.plain.extend(other.plain);
        self.distributed.extend(other.distributed);
        self.miss.extend(other.miss);
        self.cold.extend(other.cold);
    }

    /// What the distributed tensor costs over the local one.
    fn overhead(&self) -> Option<f64> {
        (self.plain.len() > 0).then(|| self.distributed.min() - self.plain.min())
    }

    fn json(&self) -> Value {
        let mut line = json!({
            "bench": "dispatch",
            "world": self.world,
            "placement": self.placement,
            "op": self.op,
        });
        if let Some(line) = line.as_object_mut() {
            let round = |us: f64| (us * 1e4).round() / 1e4;
            let parts = [
                ("plain_us", &self.plain),
                ("dtensor_us", &self.distributed),
                ("miss_us", &self.miss),
                ("cold_us", &self.cold),
            ];
            for (name, samples) in parts.into_iter().filter(|(_, samples)| samples.len() > 0) {
                let (min, median) = (round(samples.min()), round(samples.median()));
                let value = json!({ "min": min, "median": median, "n": samples.len() });
                line.insert(name.to_string(), value);
            }
            line.insert("comms".to_string(), json!(self.comms));
            line.insert("out".to_string(), json!(self.out));
        }
        line
    }
}

fn table(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(&[
        ("ranks", Align::Right),
        ("placement", Align::Left),
        ("op", Align::Left),
        ("plain", Align::Right),
        ("dtensor", Align::Right),
        ("over", Align::Right),
        ("miss", Align::Right),
        ("cold", Align::Right),
    ]);
    let time = |samples: &Samples| match samples.len() {
        0 => String::new(),
        _ => microseconds(samples.min()),
    };
    for line in lines {
        table.row([
            line.world.to_string(),
            line.placement.to_string(),
            line.op.to_string(),
            time(&line.plain),
            time(&line.distributed),
            line.overhead().map_or_else(String::new, microseconds),
            time(&line.miss),
            time(&line.cold),
        ]);
    }
    table.lines()
}
