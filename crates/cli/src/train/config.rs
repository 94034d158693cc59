//! What is trained, and how: from the command line, a file, and defaults, in this order.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dtensor::{DType, Mesh};
use serde::Deserialize;

use super::strategy::Strategy;
use crate::error::{Error, Result};

const EXAMPLES: &str = "\
Examples:
  A character model on a text that the program makes itself, on 4 thread ranks (2 data parallel, 2 tensor parallel):
    dtensor train
  Fully sharded over 4 ranks, on a text of your own, in bf16:
    dtensor train --mesh fsdp=4 --data book.txt --dtype bf16
  Fully sharded and tensor parallel; go on from where a run has ended:
    dtensor train --mesh dp=2,tp=2 --parallel fsdp+tp --steps 200 --out runs/a
    dtensor train --mesh tp=4 --steps 400 --resume runs/a
  Ranks as processes (build with --features mpi):
    mpirun -n 4 dtensor train --mesh dp=2,tp=2
  Replay a run whose losses are known:
    dtensor train --golden DIR --mesh fsdp=2,tp=2 --json

Axes of the mesh: dp (every rank has all parameters and a part of the batch), fsdp (parameters are cut and gathered for \
use), tp (products are cut, by heads and features), cp (positions are cut). --parallel names the strategies where the \
axes do not: `fsdp` on an axis dp, `hsdp` on axes dp and fsdp, `tp+sp` for norms on cut positions.";

/// Train a transformer on a text, cut any way you like.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(after_help = EXAMPLES)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainArgs {
    /// Settings from a TOML file, with the names of these options
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Ranks on axes [default: dp=2,tp=2; with --parallel, one axis with all ranks]
    #[arg(long, value_name = "AXES")]
    mesh: Option<String>,
    /// tp, fsdp, hsdp, dp, cp, or several with + [default: by the names of the axes]
    #[arg(long, value_name = "STRATEGY")]
    parallel: Option<String>,
    /// gpt or llama [default: gpt]
    #[arg(long)]
    model: Option<ModelKind>,
    /// Blocks [default: 4]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Features of a position [default: 128]
    #[arg(long, value_name = "N")]
    dim: Option<usize>,
    /// Heads of attention [default: 4]
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Positions [default: 128]
    #[arg(long, value_name = "N")]
    seq: Option<usize>,
    /// Texts per step, over all ranks [default: 16]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Parts of a batch that are computed one after the other [default: 1]
    #[arg(long, value_name = "N")]
    accumulate: Option<usize>,
    /// f32 or bf16; with bf16, parameters stay f32 and are cast for use [default: f32]
    #[arg(long)]
    dtype: Option<Precision>,
    /// Steps in all [default: 800]
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Learning rate [default: 0.003]
    #[arg(long, value_name = "X")]
    lr: Option<f64>,
    /// Steps in which the learning rate grows to it [default: 20]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Decay of weights [default: 0.1]
    #[arg(long, value_name = "X")]
    weight_decay: Option<f64>,
    /// Longest gradient; longer ones are shortened [default: 1]
    #[arg(long, value_name = "X")]
    clip: Option<f64>,
    /// Probability of dropout [default: 0]
    #[arg(long, value_name = "P")]
    dropout: Option<f64>,
    /// Seed of parameters, batches and dropout [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A text to learn [default: one that the program makes]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Compute blocks again on the way back instead of keeping what they computed
    #[arg(long)]
    recompute: bool,
    /// Where the checkpoint and the loss curve go [default: dtensor-train]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from the checkpoint in a directory, with whatever mesh
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Stop at the first operation that gives NaN or an infinity, and name its module
    #[arg(long)]
    detect_anomaly: bool,
    /// Write what is communicated in the last step as a trace for Perfetto
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Replay the run in a directory with init.safetensors, tokens.safetensors and run.json
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// One JSON line per step
    #[arg(long)]
    json: bool,
}

/// Which model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    #[default]
    Gpt,
    Llama,
}

/// What is computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[default]
    F32,
    Bf16,
}

impl Precision {
    /// What parameters are cast to for use.
    pub fn compute_dtype(self) -> Option<DType> {
        match self {
            Precision::F32 => None,
            Precision::Bf16 => Some(DType::Bf16),
        }
    }
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Config {
    pub mesh: Mesh,
    pub strategy: Strategy,
    pub model: ModelKind,
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
    pub seq: usize,
    pub batch: usize,
    pub accumulate: usize,
    pub dtype: Precision,
    pub steps: u64,
    pub lr: f64,
    pub warmup: u64,
    pub weight_decay: f64,
    pub clip: f64,
    pub dropout: f64,
    pub seed: u64,
    pub data: Option<PathBuf>,
    pub recompute: bool,
    pub out: PathBuf,
    pub resume: Option<PathBuf>,
    pub detect_anomaly: bool,
    pub profile: Option<PathBuf>,
    pub golden: Option<PathBuf>,
    pub json: bool,
}

impl TrainArgs {
    /// These settings, and where there is none that of a file.
    fn over(self, file: TrainArgs) -> TrainArgs {
        macro_rules! first {
            ($($field:ident)*; $($flag:ident)*) => {
                TrainArgs {
                    $($field: self.$field.or(file.$field),)*
                    $($flag: self.$flag || file.$flag,)*
                }
            };
        }
        first! {
            config mesh parallel model layers dim heads seq batch accumulate dtype steps lr warmup weight_decay clip
            dropout seed data out resume profile golden;
            recompute detect_anomaly json
        }
    }
}

impl Config {
    pub fn new(args: TrainArgs) -> Result<Config> {
        let args = match args.config.clone() {
            Some(path) => {
                let shown = path.display().to_string();
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| Error::usage(format!("{shown}: {error}")))?;
                let file: TrainArgs = toml::from_str(&text)
                    .map_err(|error| Error::usage(format!("{shown}: {error}")))?;
                args.over(file)
            }
            None => args,
        };
        let ranks = std::env::var("DTENSOR_RANKS").ok().and_then(|text| text.parse().ok());
        let (mesh, strategy) =
            Strategy::new(args.mesh.as_deref(), args.parallel.as_deref(), ranks)?;
        let config = Config {
            mesh,
            strategy,
            model: args.model.unwrap_or_default(),
            layers: args.layers.unwrap_or(4),
            dim: args.dim.unwrap_or(128),
            heads: args.heads.unwrap_or(4),
            seq: args.seq.unwrap_or(128),
            batch: args.batch.unwrap_or(16),
            accumulate: args.accumulate.unwrap_or(1),
            dtype: args.dtype.unwrap_or_default(),
            steps: args.steps.unwrap_or(800),
            lr: args.lr.unwrap_or(3e-3),
            warmup: args.warmup.unwrap_or(20),
            weight_decay: args.weight_decay.unwrap_or(0.1),
            clip: args.clip.unwrap_or(1.0),
            dropout: args.dropout.unwrap_or(0.0),
            seed: args.seed.unwrap_or(1),
            data: args.data,
            recompute: args.recompute,
            out: args.out.unwrap_or_else(|| PathBuf::from("dtensor-train")),
            resume: args.resume,
            detect_anomaly: args.detect_anomaly,
            profile: args.profile,
            golden: args.golden,
            json: args.json,
        };
        config.check()?;
        Ok(config)
    }

    /// What can be known to be wrong before anything is started.
    fn check(&self) -> Result<()> {
        let at_least_one = [
            ("--layers", self.layers),
            ("--dim", self.dim),
            ("--heads", self.heads),
            ("--seq", self.seq),
            ("--batch", self.batch),
            ("--accumulate", self.accumulate),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(Error::usage(format!("{name} is 0")).with_hint("give at least 1"));
            }
        }
        if self.golden.is_none() && !self.dim.is_multiple_of(self.heads) {
            let message = format!("--dim {} cannot be divided into {} heads", self.dim, self.heads);
            return Err(Error::usage(message).with_hint("choose --heads that divide --dim"));
        }
        if self.golden.is_none()
            && self.model == ModelKind::Llama
            && !(self.dim / self.heads).is_multiple_of(2)
        {
            let message =
                format!("heads of {} features have no pairs to turn", self.dim / self.heads);
            return Err(
                Error::usage(message).with_hint("choose --dim and --heads so that it is even")
            );
        }
        if !self.batch.is_multiple_of(self.accumulate) {
            let message = format!(
                "--batch {} cannot be computed in {} equal parts",
                self.batch, self.accumulate
            );
            return Err(Error::usage(message).with_hint("choose --accumulate that divides --batch"));
        }
        for (name, value) in [("--lr", self.lr), ("--clip", self.clip)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(
                    Error::usage(format!("{name} is {value}")).with_hint("give a number above 0")
                );
            }
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            let message = format!("--weight-decay is {}", self.weight_decay);
            return Err(Error::usage(message).with_hint("give 0 or a number above it"));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let message = format!("--dropout is {}", self.dropout);
            return Err(Error::usage(message).with_hint("give a probability from 0 up to 1"));
        }
        Ok(())
    }
}
