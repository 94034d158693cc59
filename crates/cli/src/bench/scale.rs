//! `dtensor bench scale`: that meshes, layouts and plans cost the same for any number of ranks.

use std::{hint::black_box, time::Instant};

use clap::Args;
use dtensor_comm::Runner;
use dtensor_layout::{
    DType, Layout, LayoutError, Mesh,
    Placement::{self, Replicate, Shard},
    ReduceOp,
    plan::{Plan, PlanOptions},
};
use dtensor_picture::{
    Align, Table,
    units::{grouped, microseconds},
};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

use super::samples::Samples;

const EXAMPLES: &str = "\
Examples:
  8, 4,096 and 262,144 ranks:
    dtensor bench scale --json
  Only a few samples of one mesh:
    dtensor bench scale --mesh pp=64,dp=64,tp=64 --repeat 20

Cases: mesh (making it), layout (making one of a shape never seen before), plan_* (uncached) for five \
redistributions, and total: a mesh, two layouts and the plan that takes longest.";

/// Time of mesh, layout and plan on meshes of very different sizes.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ScaleArgs {
    /// Measure this mesh of three axes; may be given several times [default: 2,2,2 and 16,16,16
    /// and 64,64,64]
    #[arg(long, value_name = "MESH")]
    mesh: Vec<String>,
    /// Samples of every case
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

type Placements = [Placement; 3];
const ALL_R: Placements = [Replicate; 3];
const MIXED: Placements = [Shard(0), Replicate, Shard(1)];
const PENDING: Placement = Placement::Partial(ReduceOp::Sum);

/// Redistributions on three axes: gather, cut, reduce, exchange, and nested shards to mixed ones.
const MOVES: [(&str, Placements, Placements); 5] = [
    ("S_to_R", MIXED, ALL_R),
    ("R_to_S", ALL_R, MIXED),
    ("P_to_R", [PENDING; 3], ALL_R),
    ("S0_to_S1", [Shard(0), Replicate, Replicate], [Shard(1), Replicate, Replicate]),
    ("every_to_mixed", [Shard(0); 3], MIXED),
];

/// One case on one mesh.
struct Line {
    mesh: Mesh,
    case: String,
    samples: Samples,
}

pub fn run(args: ScaleArgs) -> Result<()> {
    let mut meshes = Vec::new();
    for text in &args.mesh {
        let mesh = crate::layout::mesh_arg("--mesh", text)?;
        if mesh.n_axes() != 3 || !mesh.is_row_major() {
            let message = format!("--mesh {text}: the moves are for three axes without strides");
            return Err(Error::usage(message).with_hint("give for example --mesh 4,8,8"));
        }
        meshes.push(mesh);
    }
    if meshes.is_empty() {
        for size in [2, 16, 64] {
            meshes.push(Mesh::new(&[("pp", size), ("dp", size), ("tp", size)])?);
        }
    }
    // A world, so that under mpirun one process measures instead of all of them at once.
    let found = Runner::new()
        .ranks(1)
        .run(|world| (world.rank() == 0).then(|| measure_all(&meshes, args.repeat)).transpose())
        .map_err(|error| Error::failure(error.to_string()))?;
    let Some(lines) = found.into_iter().flatten().next() else { return Ok(()) };
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json())),
        false => out.lines(table(&lines)),
    }
}

fn cases(meshes: &[Mesh]) -> Vec<Line> {
    let names = ["mesh", "layout"]
        .map(str::to_string)
        .into_iter()
        .chain(MOVES.map(|(name, _, _)| format!("plan_{name}")))
        .chain(["total".to_string()]);
    let names: Vec<String> = names.collect();
    let line = |mesh: &Mesh, case: &String| Line {
        mesh: mesh.clone(),
        case: case.clone(),
        samples: Samples::default(),
    };
    meshes.iter().flat_map(|mesh| names.iter().map(move |case| line(mesh, case))).collect()
}

fn measure_all(meshes: &[Mesh], repeat: u32) -> Result<Vec<Line>, LayoutError> {
    let mut lines = cases(meshes);
    let per_mesh = lines.len() / meshes.len();
    let progress = Progress::new();
    // Meshes take turns, so that all meet the same noise of other programs.
    for round in 0..repeat {
        progress.say(&format!("round {} of {repeat}", round + 1));
        for (mesh, lines) in meshes.iter().zip(lines.chunks_mut(per_mesh)) {
            let times = measure(mesh, round as usize)?;
            lines.iter_mut().zip(times).for_each(|(line, time)| line.samples.push(time));
        }
    }
    Ok(lines)
}

/// One round on one mesh: a time for every case, in the order of [`cases`].
fn measure(mesh: &Mesh, round: usize) -> Result<Vec<f64>, LayoutError> {
    let axes: Vec<(&str, usize)> =
        mesh.axes().iter().map(|axis| (axis.name(), axis.size())).collect();
    let (mesh_us, mesh) = timed(|| Mesh::new(&axes))?;
    let options = PlanOptions::default();
    let (mut layouts_us, mut plans, mut longest) = (0.0, Vec::new(), 0.0f64);
    for (index, (_, from, to)) in MOVES.into_iter().enumerate() {
        // A shape of its own for every round and move, so that no layout is known already. Two
        // rows for every rank, about, as in a small model.
        let shape = [2 * mesh.size() + round + 1, 2 * mesh.axis_size(2) + index];
        let (from_us, from) = timed(|| Layout::new(&shape, DType::F32, &mesh, &from))?;
        let (to_us, to) = timed(|| Layout::new(&shape, DType::F32, &mesh, &to))?;
        let (plan_us, _) = timed(|| Plan::with_options(&from, &to, &options))?;
        layouts_us += from_us + to_us;
        plans.push(plan_us);
        longest = longest.max(mesh_us + from_us + to_us + plan_us);
    }
    let layout_us = layouts_us / (2 * MOVES.len()) as f64;
    Ok([mesh_us, layout_us].into_iter().chain(plans).chain([longest]).collect())
}

/// Microseconds and result of one call.
fn timed<T>(call: impl FnOnce() -> Result<T, LayoutError>) -> Result<(f64, T), LayoutError> {
    let start = Instant::now();
    let value = black_box(call())?;
    Ok((start.elapsed().as_secs_f64() * 1e6, value))
}

impl Line {
    fn json(&self) -> Value {
        let mut line = Map::from_iter([
            ("bench".to_string(), json!("scale")),
            ("case".to_string(), json!(self.case)),
            ("world".to_string(), json!(self.mesh.size())),
            ("mesh".to_string(), json!(self.mesh.sizes())),
        ]);
        self.samples.insert_into(&mut line);
        Value::Object(line)
    }
}

fn table(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(&[
        ("ranks", Align::Right),
        ("mesh", Align::Left),
        ("case", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
    ]);
    for line in lines {
        table.row([
            grouped(line.mesh.size()),
            line.mesh.to_string(),
            line.case.clone(),
            microseconds(line.samples.min()),
            microseconds(line.samples.median()),
        ]);
    }
    table.lines()
}
