//! What was typed, or stands in a file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use dtensor::DType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const EXAMPLES: &str = "\
Examples:
  A character model on a text that the program makes itself, on 4 thread ranks (2 data parallel, 2 tensor parallel):
    dtensor train
  Fully sharded over 4 ranks, on a text of your own, in bf16:
    dtensor train --mesh fsdp=4 --data book.txt --dtype bf16
  Fully sharded and tensor parallel, with a checkpoint every 50 steps; go on from where a run has ended, on another mesh:
    dtensor train --mesh dp=2,tp=2 --parallel fsdp+tp --steps 200 --save-every 50 --out runs/a
    dtensor train --mesh tp=4 --steps 400 --resume runs/a
  Ranks as processes (build with --features mpi):
    mpirun -n 4 dtensor train --mesh dp=2,tp=2
  Replay a run whose losses are known:
    dtensor train --golden DIR --mesh fsdp=2,tp=2 --json

Axes of the mesh: dp (every rank has all parameters and a part of the batch), fsdp (parameters are cut and gathered for \
use), tp (products are cut, by heads and features), cp (positions are cut). --parallel names the strategies where the \
axes do not: `fsdp` on an axis dp, `hsdp` on axes dp and fsdp, `tp+sp` for norms on cut positions, any one of them on the only \
axis of a mesh, whatever its name.

Ctrl-C finishes the step, writes a checkpoint and ends. mpirun of Open MPI kills its processes a second or two later: where steps \
are longer, start it with --mca odls_base_sigkill_timeout 60, or use --save-every.";

/// Train a transformer on a text, cut any way you like.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[command(after_help = EXAMPLES)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainArgs {
    /// Settings from a TOML file, with the names of these options
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(super) config: Option<PathBuf>,
    /// Ranks on axes [default: dp=2,tp=2; with --parallel or mpirun, one axis with all ranks; of hsdp, two]
    #[arg(long, value_name = "AXES")]
    pub(super) mesh: Option<String>,
    /// tp, tp+sp, fsdp, hsdp, dp, cp, or several with + [default: by the names of the axes]
    #[arg(long, value_name = "STRATEGY")]
    pub(super) parallel: Option<String>,
    /// gpt or llama [default: gpt]
    #[arg(long)]
    pub(super) model: Option<ModelKind>,
    /// Blocks [default: 4]
    #[arg(long, value_name = "N")]
    pub(super) layers: Option<usize>,
    /// Features of a position [default: 128]
    #[arg(long, value_name = "N")]
    pub(super) dim: Option<usize>,
    /// Heads of attention [default: 4]
    #[arg(long, value_name = "N")]
    pub(super) heads: Option<usize>,
    /// Positions [default: 128]
    #[arg(long, value_name = "N")]
    pub(super) seq: Option<usize>,
    /// Texts per step, over all ranks [default: 16]
    #[arg(long, value_name = "N")]
    pub(super) batch: Option<usize>,
    /// Parts of a batch that are computed one after the other [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) accumulate: Option<usize>,
    /// f32 or bf16; with bf16, parameters stay f32 and are cast for use [default: f32]
    #[arg(long)]
    pub(super) dtype: Option<Precision>,
    /// Steps in all [default: 800]
    #[arg(long, value_name = "N")]
    pub(super) steps: Option<u64>,
    /// Learning rate [default: 0.003]
    #[arg(long, value_name = "X")]
    pub(super) lr: Option<f64>,
    /// Steps in which the learning rate grows to it [default: 20]
    #[arg(long, value_name = "N")]
    pub(super) warmup: Option<u64>,
    /// Decay of weights [default: 0.1]
    #[arg(long, value_name = "X")]
    pub(super) weight_decay: Option<f64>,
    /// Longest gradient; longer ones are shortened [default: 1]
    #[arg(long, value_name = "X")]
    pub(super) clip: Option<f64>,
    /// Probability of dropout [default: 0]
    #[arg(long, value_name = "P")]
    pub(super) dropout: Option<f64>,
    /// Seed of parameters, batches and dropout [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// A text to learn [default: one that the program makes]
    #[arg(long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    /// Compute blocks again on the way back instead of keeping what they computed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) recompute: Option<bool>,
    /// Where the checkpoint and the loss curve go [default: that of --resume, or dtensor-train]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Steps between checkpoints [default: one at the end]
    #[arg(long, value_name = "N")]
    pub(super) save_every: Option<u64>,
    /// Go on from the checkpoint in a directory, with whatever mesh; what is learnt and how is as it began, unless it is given
    #[arg(long, value_name = "DIR")]
    pub(super) resume: Option<PathBuf>,
    /// Stop at the first operation that gives NaN or an infinity, and name its module
    #[arg(long)]
    pub(super) detect_anomaly: bool,
    /// Write what every rank does and sends in the last steps, by modules, as a trace for Perfetto
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Replay the run in a directory with init.safetensors, tokens.safetensors and run.json; with grads0.safetensors and
    /// final.safetensors gradients and weights are compared as well. In f32 it fails (exit code 1) where a loss differs by more than
    /// 1e-4 of it, a gradient of the first step by 1e-4 or a weight at the end by 1e-3 of the largest entry of its tensor
    #[arg(long, value_name = "DIR")]
    pub(super) golden: Option<PathBuf>,
    /// One JSON line per step
    #[arg(long)]
    pub(super) json: bool,
}

/// Which model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    #[default]
    Gpt,
    Llama,
}

/// What is computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
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

impl TrainArgs {
    /// These settings, and where there is none that of the file that they name.
    pub fn with_file(self) -> Result<TrainArgs> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let broken = |why: String| Error::usage(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| broken(error.to_string()))?;
        let file = toml::from_str(&text).map_err(|error| broken(error.to_string()))?;
        Ok(self.over(file))
    }

    /// These settings, and where there is none that of a run that goes on. What a model is cannot change on the way.
    pub fn going_on(self, earlier: TrainArgs, place: &Path) -> Result<TrainArgs> {
        macro_rules! unchanged {
            ($($field:ident)*) => {
                $(if let (Some(asked), Some(was)) = (self.$field, earlier.$field) && asked != was {
                    let name = stringify!($field);
                    let message = format!("--{name} is {asked}, but {was} in {}", place.display());
                    let hint = format!("leave --{name} out, or begin another run without --resume");
                    return Err(Error::usage(message).with_hint(hint));
                })*
            };
        }
        unchanged! { model layers dim heads seq }
        Ok(self.over(earlier))
    }

    /// Whether all of this can be meant for a known run, which has a model and settings of its own.
    pub fn check_golden(&self) -> Result<()> {
        macro_rules! absent {
            ($($field:ident)*) => {
                [$((stringify!($field), self.$field.is_some())),*]
            };
        }
        let given = absent! {
            model layers dim heads seq batch accumulate steps lr warmup weight_decay clip dropout seed data out save_every
            resume profile
        };
        match given.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => {
                let name = name.replace('_', "-");
                let message = format!("--{name} has no meaning with --golden");
                Err(Error::usage(message).with_hint("a known run has its own model and settings"))
            }
        }
    }

    /// These settings, and where there is none that of others.
    fn over(self, others: TrainArgs) -> TrainArgs {
        macro_rules! first {
            ($($field:ident)*; $($flag:ident)*) => {
                TrainArgs {
                    $($field: self.$field.or(others.$field),)*
                    $($flag: self.$flag || others.$flag,)*
                }
            };
        }
        first! {
            config mesh parallel model layers dim heads seq batch accumulate dtype steps lr warmup weight_decay clip
            dropout seed data recompute out save_every resume profile golden;
            detect_anomaly json
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelKind::Gpt => "gpt",
            ModelKind::Llama => "llama",
        })
    }
}
