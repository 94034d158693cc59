use std::time::{Duration, Instant};

use crate::error::Result;

/// The steps so far and how long each took. The first failure ends the run: later steps would
/// mostly fail for the same reason, and bury it.
pub struct Report {
    started: Instant,
    steps: Vec<Step>,
}

struct Step {
    name: String,
    took: Duration,
    passed: bool,
}

impl Report {
    pub fn start() -> Report {
        Report { started: Instant::now(), steps: Vec::new() }
    }

    /// Runs one step under a heading; its failure carries the name of the step.
    pub fn step<T>(&mut self, name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("==> {name}");
        let started = Instant::now();
        let result = body();
        let took = started.elapsed();
        let passed = result.is_ok();
        println!("    {name}: {} in {}", verdict(passed), seconds(took));
        self.steps.push(Step { name: name.to_string(), took, passed });
        result.map_err(|error| error.during(name))
    }

    /// The table that closes a run.
    pub fn summary(&self) -> String {
        let width = self.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(0);
        let mut text = String::from("\nsummary\n");
        for Step { name, took, passed } in &self.steps {
            text.push_str(&format!(
                "  {name:<width$}  {:>8}  {}\n",
                seconds(*took),
                verdict(*passed)
            ));
        }
        text.push_str(&format!("  {:<width$}  {:>8}\n", "total", seconds(self.started.elapsed())));
        text
    }
}

fn verdict(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_failed_step_gives_its_name_to_the_error_and_stands_in_the_summary() {
        let mut report = Report::start();
        assert_eq!(report.step("fmt", || Ok(7)), Ok(7));
        let error = report.step("clippy", || Err::<(), _>(Error::new("exit code 101")));
        assert_eq!(error, Err(Error::new("clippy: exit code 101")));

        let summary = report.summary();
        let line = |name: &str| summary.lines().find(|line| line.contains(name)).unwrap();
        assert!(line("fmt").ends_with("ok"), "{summary}");
        assert!(line("clippy").ends_with("FAILED"), "{summary}");
        assert!(summary.lines().last().unwrap().contains("total"), "{summary}");
    }
}
