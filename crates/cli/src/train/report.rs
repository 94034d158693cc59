//! What a run says while it goes on, and at its end.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use dtensor_picture::{Align, Table, units};
use indicatif::{ProgressBar, ProgressStyle};

/// The least time between two lines where there is no terminal: a log of a night has some thousand lines.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// How far a run is, on stderr.
pub enum Progress {
    None,
    /// Where somebody watches.
    Bar(ProgressBar),
    /// Where it goes into a file or through mpirun.
    Log(Log),
}

/// Lines of some steps: of the first, of one every few seconds, and of the last.
pub struct Log {
    steps: u64,
    said_at: Option<Instant>,
    /// The last one, if it was not said.
    unsaid: Option<StepLine>,
}

impl Progress {
    pub fn bar(steps: u64, done: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        let style = "{bar:28} {pos}/{len} {msg} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_position(done);
        Progress::Bar(bar)
    }

    pub fn log(steps: u64) -> Progress {
        Progress::Log(Log { steps, said_at: None, unsaid: None })
    }

    pub fn step(&mut self, line: &StepLine) {
        match self {
            Progress::None => {}
            Progress::Bar(bar) => {
                bar.set_message(line.text());
                bar.inc(1);
            }
            Progress::Log(log) => {
                let is_soon = |said: Instant| said.elapsed() < BETWEEN_LINES;
                match log.said_at.is_some_and(is_soon) {
                    true => log.unsaid = Some(line.clone()),
                    false => log.say(line),
                }
            }
        }
    }

    pub fn end(&mut self) {
        match self {
            Progress::None => {}
            Progress::Bar(bar) => bar.finish_and_clear(),
            Progress::Log(log) => {
                if let Some(line) = log.unsaid.take() {
                    log.say(&line);
                }
            }
        }
    }
}

impl Log {
    fn say(&mut self, line: &StepLine) {
        let text = format!("step {}/{}  {}", line.step + 1, self.steps, line.text());
        // Where nobody listens there is nobody to tell.
        let _ = writeln!(io::stderr(), "{text}");
        (self.said_at, self.unsaid) = (Some(Instant::now()), None);
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
    fn text(&self) -> String {
        format!(
            "loss {:.3}  {} tokens/s  {}/step sent  {} used",
            self.loss,
            units::grouped(self.tokens_per_second as usize),
            units::bytes(self.bytes as f64),
            units::bytes(self.memory as f64)
        )
    }

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
