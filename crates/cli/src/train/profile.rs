//! The last steps of a run as a trace: what every rank did, and when.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use dtensor::{CommDebug, World};
use serde_json::{Value, json};

/// Steps that are kept. More make files that are slow to open, and show nothing else.
const STEPS: usize = 8;

/// What one rank did in the last steps.
pub struct Profile {
    /// The same moment on every rank, as far as there is one.
    began: Instant,
    steps: VecDeque<Step>,
}

struct Step {
    number: u64,
    at: Duration,
    took: Duration,
    parts: Parts,
    comm: CommDebug,
}

/// Parts of a step.
#[derive(Debug, Default)]
pub struct Parts(Vec<Part>);

#[derive(Debug)]
struct Part {
    name: &'static str,
    began: Instant,
    took: Duration,
}

impl Parts {
    /// Runs a part.
    pub fn time<T>(&mut self, name: &'static str, body: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = body();
        self.0.push(Part { name, began, took: began.elapsed() });
        result
    }
}

impl Profile {
    /// Begins when all ranks are there.
    pub fn begin(world: &World) -> dtensor::Result<Profile> {
        world.group().tag("profile").barrier().map_err(failed)?;
        Ok(Profile { began: Instant::now(), steps: VecDeque::new() })
    }

    /// Keeps a step, and forgets the oldest.
    pub fn keep(&mut self, number: u64, began: Instant, parts: Parts, comm: CommDebug) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        let at = began.saturating_duration_since(self.began);
        self.steps.push_back(Step { number, at, took: began.elapsed(), parts, comm });
    }

    /// The steps of all ranks as one trace, on rank 0; nothing if there was no step.
    pub fn gather(&self, world: &World) -> dtensor::Result<Option<String>> {
        if self.steps.is_empty() {
            return Ok(None);
        }
        let own: Vec<String> = self.events(world.rank()).iter().map(Value::to_string).collect();
        let everybody = world.group().tag("profile");
        let all = everybody.gather_lists(own.join(",\n").as_bytes(), 0).map_err(failed)?;
        let Some(all) = all else { return Ok(None) };
        let all: Vec<String> =
            all.iter().map(|events| String::from_utf8_lossy(events).into_owned()).collect();
        Ok(Some(format!("{{\"traceEvents\":[\n{}\n]}}\n", all.join(",\n"))))
    }

    /// What this rank did. Steps and their parts are on the line of the modules, which are within them.
    fn events(&self, rank: usize) -> Vec<Value> {
        let mut events = Vec::new();
        for Step { number, at, took, parts, comm } in &self.steps {
            let span = |name: String, at: Duration, took: Duration| {
                json!({
                    "name": name, "cat": "step", "ph": "X", "ts": microseconds(at), "dur": microseconds(took),
                    "pid": rank, "tid": 0, "args": { "step": number },
                })
            };
            events.push(span(format!("step {number}"), *at, *took));
            for Part { name, began, took } in &parts.0 {
                let at = began.saturating_duration_since(self.began);
                events.push(span((*name).to_owned(), at, *took));
            }
            // What it writes can be read.
            let trace: Value =
                serde_json::from_str(&comm.to_chrome_trace(rank)).unwrap_or_default();
            for event in trace["traceEvents"].as_array().into_iter().flatten() {
                let mut event = event.clone();
                match event["ts"].as_f64() {
                    Some(ts) => event["ts"] = (ts + microseconds(*at)).into(),
                    // Names of lines: once.
                    None if events.contains(&event) => continue,
                    None => {}
                }
                events.push(event);
            }
        }
        events
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn failed(source: dtensor_comm::CommError) -> dtensor::Error {
    dtensor::Error::Comm { op: "profile", source: std::sync::Arc::new(source) }
}
