//! What was measured, for programs and for people.

use dtensor_picture::{Align, Table, units::microseconds};
use serde_json::{Map, Value, json};

use super::super::samples::Samples;

/// A case: its times, and the memory of the processes that took part.
pub struct Line {
    pub world: usize,
    pub case: String,
    /// Of tensors.
    pub bytes: u64,
    pub samples: Samples,
    pub memory: Memory,
    /// What was written, of a save.
    pub file_bytes: Option<u64>,
}

/// Bytes of memory of each process. Ranks that are threads share one.
#[derive(Clone, Default)]
pub struct Memory {
    pub before: Vec<u64>,
    pub peak: Vec<u64>,
}

impl Memory {
    /// What each had at the most beyond what it had before.
    fn extra(&self) -> impl Iterator<Item = u64> {
        self.peak.iter().zip(&self.before).map(|(peak, before)| peak.saturating_sub(*before))
    }

    fn most_extra(&self) -> u64 {
        self.extra().max().unwrap_or(0)
    }
}

impl Line {
    /// Adds another round of the same case.
    pub fn extend(&mut self, round: Line) {
        self.samples.extend(round.samples);
        self.file_bytes = round.file_bytes.or(self.file_bytes);
        if round.memory.most_extra() >= self.memory.most_extra() {
            self.memory = round.memory;
        }
    }

    /// With the keys of PyTorch's benchmark of the same, so that the two can be joined.
    pub fn json(&self, target: &str) -> Value {
        let mut line = Map::new();
        line.insert("bench".into(), json!("checkpoint"));
        line.insert("target".into(), json!(target));
        line.insert("world".into(), json!(self.world));
        line.insert("case".into(), json!(self.case));
        let seconds = |microseconds: f64| (microseconds / 1e3).round() / 1e3;
        line.insert("min_s".into(), json!(seconds(self.samples.min())));
        line.insert("median_s".into(), json!(seconds(self.samples.median())));
        line.insert("n".into(), json!(self.samples.len()));
        let rate = |microseconds: f64| (self.bytes as f64 / microseconds).round() / 1e3;
        line.insert("GBps".into(), json!(rate(self.samples.min())));
        line.insert("GBps_median".into(), json!(rate(self.samples.median())));
        let mebibytes = |bytes: u64| bytes >> 20;
        let each = |bytes: &[u64]| json!(bytes.iter().copied().map(mebibytes).collect::<Vec<_>>());
        line.insert("rss_before_mib".into(), each(&self.memory.before));
        line.insert("peak_rss_mib".into(), each(&self.memory.peak));
        line.insert("extra_mib".into(), each(&self.memory.extra().collect::<Vec<_>>()));
        if let Some(bytes) = self.file_bytes {
            line.insert("file_bytes".into(), json!(bytes));
        }
        Value::Object(line)
    }
}

pub fn table(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new(&[
        ("ranks", Align::Right),
        ("case", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
        ("GB/s", Align::Right),
        ("extra MiB", Align::Right),
    ]);
    for line in lines {
        table.row([
            line.world.to_string(),
            line.case.clone(),
            microseconds(line.samples.min()),
            microseconds(line.samples.median()),
            format!("{:.2}", line.bytes as f64 / line.samples.min() / 1e3),
            (line.memory.most_extra() >> 20).to_string(),
        ]);
    }
    table.lines()
}
