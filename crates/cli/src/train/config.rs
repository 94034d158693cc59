//! What is trained, and how.

use std::path::PathBuf;

use dtensor::Mesh;
use dtensor_comm::launched_ranks;

use super::{
    args::{ModelKind, Precision, TrainArgs},
    save,
    strategy::Strategy,
};
use crate::error::{Error, Result};

/// Positions per step over all ranks: some GiB, which every rank cuts its part from.
const MOST_TOKENS: usize = 1 << 28;

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
    pub save_every: Option<u64>,
    pub detect_anomaly: bool,
    pub profile: Option<PathBuf>,
    pub golden: Option<PathBuf>,
    pub json: bool,
}

impl Config {
    pub fn new(args: TrainArgs) -> Result<Config> {
        let from_variable = || std::env::var("DTENSOR_RANKS").ok()?.parse().ok();
        let ranks = launched_ranks().or_else(from_variable);
        let (mesh, strategy) =
            Strategy::new(args.mesh.as_deref(), args.parallel.as_deref(), ranks)?;
        let out = args.out.or(args.resume.filter(|run| !save::is_checkpoint(run)));
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
            recompute: args.recompute.unwrap_or_default(),
            out: out.unwrap_or_else(|| PathBuf::from("dtensor-train")),
            save_every: args.save_every,
            detect_anomaly: args.detect_anomaly,
            profile: args.profile,
            golden: args.golden,
            json: args.json,
        };
        config.check()?;
        Ok(config)
    }

    /// What a run depends on that goes on from this one. Where its ranks are and where it writes is not part of that.
    pub fn settings(&self) -> TrainArgs {
        TrainArgs {
            model: Some(self.model),
            layers: Some(self.layers),
            dim: Some(self.dim),
            heads: Some(self.heads),
            seq: Some(self.seq),
            batch: Some(self.batch),
            accumulate: Some(self.accumulate),
            dtype: Some(self.dtype),
            steps: Some(self.steps),
            lr: Some(self.lr),
            warmup: Some(self.warmup),
            weight_decay: Some(self.weight_decay),
            clip: Some(self.clip),
            dropout: Some(self.dropout),
            seed: Some(self.seed),
            recompute: Some(self.recompute),
            save_every: self.save_every,
            // Wherever the next one is started from.
            data: self.data.as_ref().map(|path| std::path::absolute(path).unwrap_or(path.clone())),
            ..TrainArgs::default()
        }
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
        if self.save_every == Some(0) {
            return Err(Error::usage("--save-every is 0").with_hint("give at least 1"));
        }
        let tokens = self.batch.checked_mul(self.seq);
        if tokens.is_none_or(|tokens| tokens > MOST_TOKENS) {
            let message = format!(
                "--batch {} of --seq {} is more than {MOST_TOKENS} positions per step",
                self.batch, self.seq
            );
            return Err(Error::usage(message).with_hint("compute fewer texts in a step"));
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
