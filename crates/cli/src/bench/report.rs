use dtensor_comm::World;
use dtensor_picture::{
    Align, Table,
    units::{bytes, count, microseconds},
};
use serde_json::{Map, Value, json};

use super::{
    buffers::{Counts, Shape},
    cases::Case,
    samples::Samples,
};

/// What `bench comm` found.
pub struct Report {
    /// Number of ranks.
    world: usize,
    /// What the ranks are.
    kind: &'static str,
    /// Whether ranks compared their calls first, where that was asked for.
    checks: Option<bool>,
    lines: Vec<Line>,
    /// Of an all-reduce of 8 bytes.
    latency: Samples,
    /// The same by the plain MPI call.
    plain_latency: Option<Samples>,
}

/// One case in one shape.
pub struct Line {
    pub shape: Shape,
    pub case: Case,
    /// Whether it is MPI's own call instead of ours.
    pub is_plain_mpi: bool,
    /// Bytes of the whole vector.
    bytes: usize,
    /// Bytes that each rank must write; where they differ, the rank that must write most.
    bytes_written: usize,
    pub samples: Samples,
    /// Time over that of a memcpy of as many bytes.
    over_memcpy: Option<f64>,
    /// Time over that of the plain MPI call.
    over_mpi: Option<f64>,
}

impl Line {
    pub fn new(shape: Shape, case: Case, counts: &Counts, is_plain_mpi: bool) -> Line {
        let written = match case.baseline() {
            Case::MemcpyPiece => counts.pieces.iter().copied().max().unwrap_or(0),
            _ => counts.total,
        };
        Line {
            shape,
            case,
            is_plain_mpi,
            bytes: counts.total * size_of::<f32>(),
            bytes_written: written * size_of::<f32>(),
            samples: Samples::default(),
            over_memcpy: None,
            over_mpi: None,
        }
    }

    fn name(&self) -> String {
        let prefix = if self.is_plain_mpi { "mpi_" } else { "" };
        format!("{prefix}{}", self.case.name())
    }
}

/// Fills in how the lines compare with each other.
fn compare(lines: &mut [Line]) {
    let minima: Vec<_> = lines
        .iter()
        .map(|line| ((line.shape, line.case, line.is_plain_mpi), line.samples.min()))
        .collect();
    let minimum = |shape, case, is_plain_mpi| {
        let found = minima.iter().find(|(key, _)| *key == (shape, case, is_plain_mpi));
        found.map(|(_, minimum)| *minimum)
    };
    for line in lines {
        let over = |baseline: f64| line.samples.min() / baseline;
        if line.case != line.case.baseline() {
            line.over_memcpy = minimum(line.shape, line.case.baseline(), false).map(over);
        }
        if !line.is_plain_mpi {
            line.over_mpi = minimum(line.shape, line.case, true).map(over);
        }
    }
}

impl Report {
    pub fn new(world: &World, checks: Option<bool>, mut lines: Vec<Line>) -> Report {
        compare(&mut lines);
        let kind = world.kind().name();
        let latency = Samples::default();
        Report { world: world.size(), kind, checks, lines, latency, plain_latency: None }
    }

    /// The same with the times of all-reduces of 8 bytes, ours and MPI's own.
    pub fn with_latency(self, latency: Samples, plain_latency: Option<Samples>) -> Report {
        Report { latency, plain_latency, ..self }
    }

    /// One value per case.
    pub fn json(&self) -> Vec<Value> {
        let head = |case: &str| {
            let mut head = Map::from_iter([
                ("bench".to_string(), json!("comm")),
                ("case".to_string(), json!(case)),
                ("world".to_string(), json!(self.world)),
                ("kind".to_string(), json!(self.kind)),
            ]);
            if let Some(checks) = self.checks {
                head.insert("checks".into(), json!(checks));
            }
            head
        };
        let mut values = Vec::new();
        for line in &self.lines {
            let mut value = head(&line.name());
            value.insert("shape".into(), json!(line.shape.name()));
            value.insert("dtype".into(), json!("f32"));
            value.insert("bytes".into(), json!(line.bytes));
            value.insert("bytes_written".into(), json!(line.bytes_written));
            line.samples.insert_into(&mut value);
            let ratios = [("over_memcpy", line.over_memcpy), ("over_mpi", line.over_mpi)];
            for (key, ratio) in ratios {
                if let Some(ratio) = ratio {
                    value.insert(key.into(), json!((ratio * 1e3).round() / 1e3));
                }
            }
            values.push(Value::Object(value));
        }
        for (name, samples) in self.latencies() {
            let mut value = head(name);
            value.insert("bytes".into(), json!(8));
            samples.insert_into(&mut value);
            values.push(Value::Object(value));
        }
        values
    }

    pub fn table(&self) -> Vec<String> {
        let mut table = Table::new(&[
            ("case", Align::Left),
            ("shape", Align::Left),
            ("bytes", Align::Right),
            ("written", Align::Right),
            ("min", Align::Right),
            ("median", Align::Right),
            ("x memcpy", Align::Right),
            (if self.plain_latency.is_some() { "x MPI" } else { "" }, Align::Right),
        ]);
        let ratio = |ratio: Option<f64>| ratio.map(|x| format!("{x:.2}")).unwrap_or_default();
        for line in &self.lines {
            table.row([
                line.name(),
                line.shape.name().to_string(),
                bytes(line.bytes as f64),
                bytes(line.bytes_written as f64),
                microseconds(line.samples.min()),
                microseconds(line.samples.median()),
                ratio(line.over_memcpy),
                ratio(line.over_mpi),
            ]);
        }
        for (name, samples) in self.latencies() {
            table.row([
                name.to_string(),
                String::new(),
                bytes(8.0),
                bytes(8.0),
                microseconds(samples.min()),
                microseconds(samples.median()),
                String::new(),
                String::new(),
            ]);
        }
        let mut lines =
            vec![format!("{} ({})", count(self.world, "rank"), self.kind), String::new()];
        lines.extend(table.lines());
        lines
    }

    fn latencies(&self) -> impl Iterator<Item = (&'static str, &Samples)> {
        let plain = self.plain_latency.iter().map(|samples| ("mpi_all_reduce_latency", samples));
        [("all_reduce_latency", &self.latency)].into_iter().chain(plain)
    }
}
