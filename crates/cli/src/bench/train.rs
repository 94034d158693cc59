//! `dtensor bench train`: steps of training, on one rank and on two.

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use clap::Args;
use dtensor::{
    DTensor, DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Runner, World, WorldKind, randint, randn, random,
};
use dtensor_comm::{CommError, is_launched};
use dtensor_local::trim_pool;
use dtensor_nn::{
    Activation, AdamW, ColwiseParallel, Forward, FullyShardOptions, Gpt, GptConfig, Mlp, Module,
    Optimizer, Plan, PrepareOutput, RowwiseParallel, Sgd, Spot, cross_entropy, fully_shard,
    gpt_plan, gpt_sequence_plan, mse_loss, parallelize_module, parameters, replicate,
};
use dtensor_picture::{Align, Table, units};
use serde_json::{Value, json};

use super::samples::Samples;
use crate::{
    error::{Error, Result},
    memory::{peak_bytes, reset_peak},
    output::{Out, Progress},
};

const EXAMPLES: &str = "\
Examples:
  All cases on thread ranks, as a table:
    dtensor bench train
  Two modes of the transformer, one JSON line each:
    dtensor bench train --only transformer_tp --modes tp2,fsdp2 --json
  Ranks as processes (build with --features mpi); modes of two ranks only:
    mpirun -n 2 dtensor bench train --json

mlp_tp: two products with gelu between them, 1024 features, 4096 hidden, 1024 tokens, f32: forward, backward, SGD. \
transformer_tp: 4 layers, 512 features, 8 heads, 256 positions, 4 texts, 8192 tokens, f32: forward, backward, AdamW. \
single_1t and single_2t: one rank with one and two threads. tp2: products cut over two ranks; _sp: norms on cut positions; _lp: \
logits stay cut in the loss. fsdp2: fully sharded. dp_replicate: data parallel. Every mode sees the same batch. A sample is the time of the \
slowest rank.";

/// Steps of training, on one rank and on two.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct TrainArgs {
    /// mlp_tp or transformer_tp [default: both]
    #[arg(long, value_name = "BENCH")]
    only: Option<String>,
    /// Modes to run, with commas between them [default: all]
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    modes: Vec<String>,
    /// Times that all modes are run, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Steps of a run before it is measured
    #[arg(long, value_name = "N", default_value_t = 2)]
    warm: u32,
    /// Steps of a run that are measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// One JSON line per mode
    #[arg(long)]
    json: bool,
    /// Run one mode in this process, and say everything about it
    #[arg(long, hide = true)]
    child: bool,
    /// Divide all sizes: for tests, in which numbers mean nothing
    #[arg(long, hide = true, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    shrink: u8,
}

/// A way to run a model.
struct Mode {
    bench: &'static str,
    name: &'static str,
    ranks: usize,
    threads: usize,
}

const fn mode(bench: &'static str, name: &'static str, ranks: usize, threads: usize) -> Mode {
    Mode { bench, name, ranks, threads }
}

const MLP: &str = "mlp_tp";
const TRANSFORMER: &str = "transformer_tp";

const MODES: [Mode; 10] = [
    mode(MLP, "single_2t", 1, 2),
    mode(MLP, "tp2_dtensor", 2, 1),
    mode(MLP, "single_1t", 1, 1),
    mode(TRANSFORMER, "single_2t", 1, 2),
    mode(TRANSFORMER, "tp2_sp_lp", 2, 1),
    mode(TRANSFORMER, "tp2_sp", 2, 1),
    mode(TRANSFORMER, "tp2", 2, 1),
    mode(TRANSFORMER, "fsdp2", 2, 1),
    mode(TRANSFORMER, "dp_replicate", 2, 1),
    mode(TRANSFORMER, "single_1t", 1, 1),
];

/// Times of the steps of a run, of the slowest rank each.
#[derive(Clone, Default)]
struct Times {
    step: Samples,
    forward: Samples,
    backward: Samples,
    optimizer: Samples,
    losses: Vec<f64>,
    /// Of every process: of all thread ranks together, or of each rank.
    peak_mib: Vec<f64>,
}

pub fn run(args: TrainArgs) -> Result<()> {
    let chosen = chosen(&args)?;
    let is_child = args.child || is_launched();
    let progress = Progress::new();
    let mut found: Vec<Times> = vec![Times::default(); chosen.len()];
    let mut reports = true;
    for round in 0..args.rounds {
        for (mode, times) in chosen.iter().zip(&mut found) {
            progress.say(&format!(
                "round {} of {}: {} {}",
                round + 1,
                args.rounds,
                mode.bench,
                mode.name
            ));
            let new = match is_child {
                true => in_this_process(mode, &args)?,
                false => Some(in_a_process_of_its_own(mode, &args)?),
            };
            match new {
                Some(new) => times.add(new),
                None => reports = false,
            }
        }
    }
    drop(progress);
    if !reports {
        return Ok(());
    }
    let mut out = Out::new();
    if args.child {
        return found.iter().try_for_each(|times| out.json(&times.raw()));
    }
    let lines = chosen.iter().zip(&found).filter(|(_, times)| times.step.len() > 0);
    if args.json {
        return lines.into_iter().try_for_each(|(mode, times)| out.json(&times.json(mode, &args)));
    }
    let mut table = Table::new(&[
        ("bench", Align::Left),
        ("mode", Align::Left),
        ("step ms", Align::Right),
        ("forward", Align::Right),
        ("backward", Align::Right),
        ("optimizer", Align::Right),
        ("tokens/s", Align::Right),
        ("peak MiB", Align::Right),
    ]);
    for (mode, times) in lines {
        let ms = |samples: &Samples| format!("{:.1}", samples.min() / 1e3);
        table.row([
            mode.bench.to_owned(),
            mode.name.to_owned(),
            ms(&times.step),
            ms(&times.forward),
            ms(&times.backward),
            ms(&times.optimizer),
            units::grouped(times.tokens_per_second(&args) as usize),
            times.peak_mib.iter().map(|mib| format!("{mib:.0}")).collect::<Vec<_>>().join(" + "),
        ]);
    }
    out.lines(table.lines())
}

/// The modes that were asked for. A name that none of them has is a mistake, also beside others: a run without a line for
/// it looks as if it was complete.
fn chosen(args: &TrainArgs) -> Result<Vec<&'static Mode>> {
    let only = args.only.as_deref();
    if let Some(only) = only.filter(|only| ![MLP, TRANSFORMER].contains(only)) {
        let hint = format!("--only {MLP} or {TRANSFORMER}");
        return Err(Error::usage(format!("--only: there is no bench `{only}`")).with_hint(hint));
    }
    let of_bench: Vec<&Mode> =
        MODES.iter().filter(|mode| only.is_none_or(|only| only == mode.bench)).collect();
    let is_known = |name: &String| of_bench.iter().any(|mode| mode.name == name);
    if let Some(name) = args.modes.iter().find(|name| !is_known(name)) {
        let of = only.map(|only| format!(" of {only}")).unwrap_or_default();
        let mut names: Vec<&str> = of_bench.iter().map(|mode| mode.name).collect();
        names.sort_unstable();
        names.dedup();
        return Err(Error::usage(format!("--modes: there is no mode `{name}`{of}"))
            .with_hint(format!("there are {}", names.join(", "))));
    }
    let is_chosen =
        |mode: &&Mode| args.modes.is_empty() || args.modes.iter().any(|name| name == mode.name);
    Ok(of_bench.into_iter().filter(is_chosen).collect())
}

impl Times {
    /// Both models see as many tokens per step.
    fn tokens_per_second(&self, args: &TrainArgs) -> f64 {
        args.sized(1024) as f64 / (self.step.min() / 1e6)
    }

    fn add(&mut self, other: Times) {
        self.step.extend(other.step);
        self.forward.extend(other.forward);
        self.backward.extend(other.backward);
        self.optimizer.extend(other.optimizer);
        self.losses = other.losses;
        self.peak_mib.resize(other.peak_mib.len(), 0.0);
        for (own, other) in self.peak_mib.iter_mut().zip(other.peak_mib) {
            *own = own.max(other);
        }
    }

    /// Everything, for the process that asked.
    fn raw(&self) -> Value {
        json!({
            "step": self.step.all(),
            "forward": self.forward.all(),
            "backward": self.backward.all(),
            "optimizer": self.optimizer.all(),
            "losses": self.losses,
            "peak_mib": self.peak_mib,
        })
    }

    fn from_raw(line: &Value) -> Times {
        let numbers = |name: &str| -> Vec<f64> {
            line[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        Times {
            step: Samples::new(numbers("step")),
            forward: Samples::new(numbers("forward")),
            backward: Samples::new(numbers("backward")),
            optimizer: Samples::new(numbers("optimizer")),
            losses: numbers("losses"),
            peak_mib: numbers("peak_mib"),
        }
    }

    fn json(&self, mode: &Mode, args: &TrainArgs) -> Value {
        let ms = |samples: &Samples| json!({ "min": round(samples.min() / 1e3), "median": round(samples.median() / 1e3), "n": samples.len() });
        json!({
            "bench": mode.bench,
            "mode": mode.name,
            "min_ms": round(self.step.min() / 1e3),
            "median_ms": round(self.step.median() / 1e3),
            "n": self.step.len(),
            "tokens_per_s": self.tokens_per_second(args).round(),
            "fwd_ms": ms(&self.forward),
            "bwd_ms": ms(&self.backward),
            "opt_ms": ms(&self.optimizer),
            "loss_last": self.losses.last(),
            "peak_rss_mib": self.peak_mib,
        })
    }
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Threads and peak memory are those of a process.
fn in_a_process_of_its_own(mode: &Mode, args: &TrainArgs) -> Result<Times> {
    let failure = |why: String| Error::failure(format!("{} {}: {why}", mode.bench, mode.name));
    let program = std::env::current_exe().map_err(|error| failure(error.to_string()))?;
    let (warm, steps) = (args.warm.to_string(), args.steps.to_string());
    let output = Command::new(program)
        .args(["bench", "train", "--child", "--rounds", "1", "--only", mode.bench])
        .args(["--modes", mode.name, "--warm", &warm, "--steps", &steps])
        .args(["--shrink", &args.shrink.to_string()])
        .env("DTENSOR_THREADS", mode.threads.to_string())
        .env_remove("DTENSOR_RANKS")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failure(error.to_string()))?;
    if !output.status.success() {
        return Err(failure(format!("it ended with {}", output.status)));
    }
    let line =
        serde_json::from_slice(&output.stdout).map_err(|error| failure(error.to_string()))?;
    Ok(Times::from_raw(&line))
}

/// On ranks of this process, or under mpirun. `None` on ranks that do not report, and for modes that the world has no ranks for.
fn in_this_process(mode: &Mode, args: &TrainArgs) -> Result<Option<Times>> {
    let outcomes = Runner::new().ranks(mode.ranks).run(|world| {
        if world.kind() == WorldKind::Mpi && world.size() != mode.ranks {
            return Ok((world.rank(), Times::default()));
        }
        // What the mode before had is not this one's.
        trim_pool();
        reset_peak();
        let mut times = match mode.bench {
            MLP => mlp(world, mode, args)?,
            _ => transformer(world, mode, args)?,
        };
        times.peak_mib = peaks(world)?;
        Ok::<_, dtensor_nn::Error>((world.rank(), times))
    });
    let mut outcomes = outcomes.map_err(|error| Error::failure(error.to_string()))?.into_iter();
    match outcomes.next() {
        Some((0, times)) => Ok(Some(times)),
        _ => Ok(None),
    }
}

/// What the processes of a world had at the most.
fn peaks(world: &World) -> dtensor::Result<Vec<f64>> {
    let own = peak_bytes() as f64 / f64::from(1 << 20);
    if world.kind() != WorldKind::Mpi {
        return Ok(vec![own]);
    }
    let mut all = vec![0.0; world.size()];
    world.group().tag("bench").all_gather(&[own], &mut all).map_err(failed)?;
    Ok(all)
}

fn failed(source: CommError) -> dtensor::Error {
    dtensor::Error::Comm { op: "bench", source: std::sync::Arc::new(source) }
}

impl TrainArgs {
    fn sized(&self, size: usize) -> usize {
        size / usize::from(self.shrink)
    }
}

fn mlp(world: &World, mode: &Mode, args: &TrainArgs) -> dtensor_nn::Result<Times> {
    let (tokens, dim) = (args.sized(1024), args.sized(1024));
    random::manual_seed(0);
    let mesh = DeviceMesh::of_world(world, "tp")?;
    let mut model = Mlp::new(dim, 4 * dim, Activation::Gelu, true, DType::F32, &mesh)?;
    let x = randn(&[tokens, dim], DType::F32, &mesh, &[Replicate])?;
    let target = randn(&[tokens, dim], DType::F32, &mesh, &[Replicate])?;
    if mode.name == "tp2_dtensor" {
        let plan = Plan::new()
            .with("w1", ColwiseParallel::default())
            .with("w2", RowwiseParallel::default());
        parallelize_module(&mut model, &mesh, "tp", &plan)?;
    }
    let optimizer = Sgd::new(parameters(&model), 1e-2);
    // As within a model, the operand has a gradient.
    let loss = move || Ok(mse_loss(&model.call(&x.requires_grad()?)?, &target)?);
    measure(world, args, optimizer, loss)
}

fn transformer(world: &World, mode: &Mode, args: &TrainArgs) -> dtensor_nn::Result<Times> {
    random::manual_seed(0);
    let mesh = DeviceMesh::of_world(world, "x")?;
    let config = GptConfig {
        vocabulary: args.sized(8192),
        sequence: args.sized(256),
        layers: 4,
        dim: args.sized(512),
        heads: 8,
        ..GptConfig::default()
    };
    let mut model = Gpt::new(&config, DType::F32, &mesh)?;
    let mut batch: Placement = Replicate;
    match mode.name {
        "tp2_sp_lp" | "tp2_sp" | "tp2" => {
            parallelize_module(&mut model, &mesh, "x", &tensor_plan(mode.name))?;
        }
        "fsdp2" => {
            batch = Shard(0);
            in_units(&mut model, |module| fully_shard(module, "x", &FullyShardOptions::default()))?;
        }
        "dp_replicate" => {
            batch = Shard(0);
            in_units(&mut model, |module| replicate(module, "x", &FullyShardOptions::default()))?;
        }
        _ => {}
    }
    let tokens = |seed: u64| {
        random::manual_seed(seed);
        let (most, positions) = (config.vocabulary as i64, config.sequence);
        randint(0, most, &[4, positions], DType::I64, &mesh, &[batch])
    };
    let (ids, targets) = (tokens(1)?, tokens(2)?);
    let optimizer = AdamW::new(parameters(&model), 3e-4);
    measure(world, args, optimizer, move || Ok(cross_entropy(&model.call(&ids)?, &targets)?))
}

fn in_units(
    model: &mut Gpt,
    apply: impl Fn(&mut dyn Module) -> dtensor_nn::Result<()>,
) -> dtensor_nn::Result<()> {
    for block in &mut model.layers {
        apply(block)?;
    }
    apply(model)
}

fn tensor_plan(mode: &str) -> Plan {
    let plan = if mode.contains("_sp") { gpt_sequence_plan() } else { gpt_plan() };
    match mode.contains("_lp") {
        true => plan,
        false => plan.with("head", PrepareOutput(Spot::Replicate)),
    }
}

/// Runs steps; every time is that of the slowest rank.
fn measure(
    world: &World,
    args: &TrainArgs,
    mut optimizer: impl Optimizer,
    loss: impl Fn() -> dtensor_nn::Result<DTensor>,
) -> dtensor_nn::Result<Times> {
    let mut times = Times::default();
    let everybody = world.group().tag("bench");
    for step in 0..args.warm + args.steps {
        everybody.barrier().map_err(failed)?;
        let began = Instant::now();
        let value = loss()?;
        let forward = began.elapsed();
        let gradients = value.backward()?;
        let backward = began.elapsed();
        optimizer.step(&gradients)?;
        drop(gradients);
        let whole = began.elapsed();
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        let mut parts = [us(whole), us(forward), us(backward - forward), us(whole - backward)];
        everybody.all_reduce(&mut parts, dtensor::ReduceOp::Max).map_err(failed)?;
        times.losses.push(f64::from(value.item::<f32>()?));
        if step >= args.warm {
            times.step.push(parts[0]);
            times.forward.push(parts[1]);
            times.backward.push(parts[2]);
            times.optimizer.push(parts[3]);
        }
    }
    Ok(times)
}
