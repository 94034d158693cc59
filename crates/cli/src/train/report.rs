//! What a run says while it goes on, and at its end.

use std::time::Duration;

use dtensor_picture::{Align, Table, units};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr, where somebody watches.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new(steps: u64, done: u64, shown: bool) -> Bar {
        let bar = if shown { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        let style = "{bar:28} {pos}/{len} {msg} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_position(done);
        Bar(bar)
    }

    pub fn step(&self, line: &StepLine) {
        self.0.set_message(format!(
            "loss {:.3}  {} tokens/s  {}/step sent  {} used",
            line.loss,
            units::grouped(line.tokens_per_second as usize),
            units::bytes(line.bytes as f64),
            units::bytes(line.memory as f64)
        ));
        self.0.inc(1);
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// One step, for the bar, the table and `--json`.
#[derive(Clone, Debug)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub grad_norm: f64,
    pub lr: f64,
    pub took: Duration,
    pub tokens_per_second: f64,
    pub calls: usize,
    pub bytes: u128,
    pub memory: u64,
}

impl StepLine {
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "step": self.step,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "ms": self.took.as_secs_f64() * 1e3,
            "tokens_per_s": self.tokens_per_second,
            "comm_calls": self.calls,
            "comm_bytes": u64::try_from(self.bytes).unwrap_or(u64::MAX),
            "memory_bytes": self.memory,
        })
    }
}

/// Losses of some steps, first and last included.
pub fn table(losses: &[f64]) -> Vec<String> {
    let mut table = Table::new(&[("step", Align::Right), ("loss", Align::Right)]);
    let last = losses.len().saturating_sub(1);
    let rows = losses.len().min(11);
    for row in 0..rows {
        let step = if rows < 2 { 0 } else { row * last / (rows - 1) };
        table.row([step.to_string(), format!("{:.4}", losses[step])]);
    }
    table.lines()
}
