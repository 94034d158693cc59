//! `dtensor bench kernels`: how fast one rank computes.

use std::time::Instant;

use clap::Args;
use dtensor_local::LocalError;
use dtensor_picture::{Align, Table, units::microseconds};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    output::{Out, Progress},
};

use super::{
    kernel_cases::{CASES, Case, Operands},
    samples::Samples,
};

const EXAMPLES: &str = "\
Examples:
  Every case with one thread and with one per core:
    dtensor bench kernels
  Attention and softmax with one thread, one JSON line per case:
    dtensor bench kernels --only sdpa --only softmax --threads 1 --json

A sample is the mean of as many calls as take 30 ms; cases take turns, and the minimum is the figure to use. \
Results are dropped after every call, so that the next one gets their memory: cases whose name ends in `_out`, \
which elsewhere write to a tensor that is there already, do so here too. The work of a rate is what must be \
computed, or the bytes that must be read and written at least.";

/// Seconds of calls in one sample.
const SAMPLE: f64 = 0.03;

/// Time of the kernels of one rank.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KernelsArgs {
    /// Threads; may be given several times [default: 1 and one per core]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Only cases whose name has this in it; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Samples of every case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// One JSON line per case and number of threads
    #[arg(long)]
    json: bool,
}

/// A case that is measured.
struct Chosen {
    name: &'static str,
    case: Case,
    /// Calls per sample.
    repeats: usize,
}

/// One case with one number of threads.
struct Line {
    /// Its place among the chosen.
    case: usize,
    threads: usize,
    samples: Samples,
}

pub fn run(args: KernelsArgs) -> Result<()> {
    let mut threads: Vec<usize> =
        args.threads.iter().map(|threads| usize::from(*threads)).collect();
    if threads.is_empty() {
        threads = vec![1, std::thread::available_parallelism().map_or(1, std::num::NonZero::get)];
        threads.dedup();
    }
    let mut cases = chosen(&args.only).map_err(broken)?;
    if cases.is_empty() {
        let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
        let names = names.join(" ");
        return Err(Error::usage(format!("--only {}: no such case", args.only.join(" --only ")))
            .with_hint(format!("the cases are: {names}")));
    }
    let lines = measure(&mut cases, &threads, args.repeat).map_err(broken)?;
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json(&cases))),
        false => out.lines(table(&lines, &cases)),
    }
}

/// The cases that are wanted. Operands are made only for those.
fn chosen(only: &[String]) -> Result<Vec<Chosen>, LocalError> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|text| name.contains(text));
    let cases = CASES.iter().filter(|(name, _)| wanted(name));
    cases
        .map(|(name, build)| {
            Ok(Chosen { name, case: build(&mut Operands::default())?, repeats: 1 })
        })
        .collect()
}

fn measure(cases: &mut [Chosen], threads: &[usize], repeat: u32) -> Result<Vec<Line>, LocalError> {
    let progress = Progress::new();
    let mut lines = Vec::new();
    for threads in threads {
        for case in 0..cases.len() {
            lines.push(Line { case, threads: *threads, samples: Samples::default() });
        }
    }
    for case in cases.iter_mut() {
        progress.say(&format!("warming up {}", case.name));
        (case.case.run)()?;
        let start = Instant::now();
        (case.case.run)()?;
        case.repeats = ((SAMPLE / start.elapsed().as_secs_f64()) as usize).max(1);
    }
    for round in 0..repeat {
        for line in &mut lines {
            let case = &mut cases[line.case];
            progress.say(&format!("round {} of {repeat}: {}", round + 1, case.name));
            dtensor_local::set_threads(line.threads);
            (case.case.run)()?;
            let start = Instant::now();
            for _ in 0..case.repeats {
                (case.case.run)()?;
            }
            line.samples.push(start.elapsed().as_secs_f64() * 1e6 / case.repeats as f64);
        }
    }
    Ok(lines)
}

impl Line {
    /// Billions of operations or bytes per second.
    fn rate(&self, cases: &[Chosen]) -> f64 {
        cases[self.case].case.work / self.samples.min() / 1e3
    }

    fn json(&self, cases: &[Chosen]) -> Value {
        let case = &cases[self.case];
        let milliseconds = |us: f64| (us * 1e3).round() / 1e6;
        json!({
            "bench": "kernels",
            "case": case.name,
            "threads": self.threads,
            "min_ms": milliseconds(self.samples.min()),
            "median_ms": milliseconds(self.samples.median()),
            "n": self.samples.len(),
            "rate": (self.rate(cases) * 100.0).round() / 100.0,
            "unit": case.case.unit,
            "reps": case.repeats,
        })
    }
}

fn table(lines: &[Line], cases: &[Chosen]) -> Vec<String> {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("threads", Align::Right),
        ("min", Align::Right),
        ("median", Align::Right),
        ("rate", Align::Right),
        ("", Align::Left),
    ]);
    for line in lines {
        table.row([
            cases[line.case].name.to_string(),
            line.threads.to_string(),
            microseconds(line.samples.min()),
            microseconds(line.samples.median()),
            format!("{:.1}", line.rate(cases)),
            cases[line.case].case.unit.to_string(),
        ]);
    }
    table.lines()
}

/// The cases are this program's own: an error in one is a failure, not a mistake of the caller.
fn broken(error: LocalError) -> Error {
    Error::failure(error.to_string())
}
