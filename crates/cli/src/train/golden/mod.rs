//! A run whose losses are known: the same model, the same tokens, any mesh.

mod difference;
mod known;
mod replay;

use dtensor::{Runner, World};
use serde_json::json;

pub use self::known::Known;
use self::{
    difference::Difference,
    replay::{Replayed, replay},
};
use super::{Outcome, args::Precision, config::Config};
use crate::{
    error::{Error, Result},
    output::Out,
};

/// The largest differences of a run that is the same one: relative ones of losses, and of gradients and weights as parts of the
/// largest entry of their tensor.
const OF_LOSSES: f64 = 1e-4;
const OF_GRADIENTS: f64 = 1e-4;
const OF_WEIGHTS: f64 = 1e-3;

pub fn run(config: &Config, known: &Known) -> Result<()> {
    let runner = Runner::new().ranks(config.mesh.size());
    let say = |step: usize, loss: f64, norm: f64| {
        let mut out = Out::new();
        // Whether anybody reads is found where the differences are.
        drop(match config.json {
            true => out.json(&json!({ "step": step, "loss": loss, "grad_norm": norm })),
            false => out.line(&format!("step {step:>3}  loss {loss:.6}  gradient {norm:.6}")),
        });
    };
    let run = |world: &World| -> Outcome<_> { Ok((world.rank(), replay(world, known, say)?)) };
    let replayed = runner.run(run).map_err(|error| super::readable(&error, config))?;
    let Some((rank, replayed)) = replayed.into_iter().next() else { return Ok(()) };
    let differs = replayed.difference(config);
    if rank == 0 {
        show(config, &replayed, differs.is_none())?;
    }
    let Some(text) = differs else { return Ok(()) };
    let error = Error::failure(format!("this is another run: {text}"));
    // All ranks end alike, and one says why.
    Err(if rank == 0 { error } else { Error::SaidByAnother(Box::new(error)) })
}

impl Replayed {
    /// What is too far from what is known. In bf16 everything is, and nothing is expected.
    fn difference(&self, config: &Config) -> Option<String> {
        if config.dtype != Precision::F32 {
            return None;
        }
        let losses = Difference { part: self.losses, name: String::new() };
        let found = [
            ("a loss differs", Some(losses), OF_LOSSES),
            ("a gradient of the first step differs", self.gradients.clone(), OF_GRADIENTS),
            ("a weight at the end differs", self.weights.clone(), OF_WEIGHTS),
        ];
        found.into_iter().find_map(|(what, difference, most)| {
            let Difference { part, name } = difference.filter(|found| found.part > most)?;
            let of = if name.is_empty() { name } else { format!(" (`{name}`)") };
            Some(format!("{what} by {part:.2e}{of}, and {most:e} is allowed"))
        })
    }
}

fn show(config: &Config, replayed: &Replayed, agrees: bool) -> Result<()> {
    let Replayed { losses, grad_norms, gradients, weights, left_out } = replayed;
    let mut out = Out::new();
    if config.json {
        return out.json(&json!({
            "mesh": config.mesh.to_string(),
            "strategy": config.strategy.to_string(),
            "loss_rel_diff": losses,
            "grad_norm_rel_diff": grad_norms,
            "grads0_rel_diff": gradients.as_ref().map(|worst| worst.part),
            "grads0_worst": gradients.as_ref().map(|worst| &worst.name),
            "final_rel_diff": weights.as_ref().map(|worst| worst.part),
            "final_worst": weights.as_ref().map(|worst| &worst.name),
            "left_out": left_out,
            "agrees": (config.dtype == Precision::F32).then_some(agrees),
        }));
    }
    let shown = |worst: &Option<Difference>| match worst {
        Some(worst) => format!("{:.2e} ({})", worst.part, worst.name),
        None => "unknown".to_owned(),
    };
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        out.line(&format!("left out, because their gradients are zero but for rounding: {names}"))?;
    }
    out.line(&format!(
        "largest relative differences: losses {losses:.2e}, lengths of gradients {grad_norms:.2e}, gradients of the first \
         step {}, weights at the end {}",
        shown(gradients),
        shown(weights)
    ))
}
