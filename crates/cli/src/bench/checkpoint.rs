//! `dtensor bench checkpoint`: saving and loading, beside plain writes and reads of the same bytes.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Args;
use dtensor::{
    DType, DeviceMesh,
    Placement::{self, Shard},
    ReduceOp, Runner, Tensor, World, WorldKind,
};
use dtensor_checkpoint::{Entry, LoadOptions, SaveOptions, State, load, save};
use dtensor_picture::{Align, Table, units::microseconds};
use serde_json::{Map, Value, json};

use super::samples::Samples;
use crate::{
    error::{Error, Result},
    memory,
    output::{Out, Progress},
};

const EXAMPLES: &str = "\
Examples:
  1 GiB on 2 thread ranks, on the disk of the current directory:
    dtensor bench checkpoint
  In memory, one JSON line per case:
    dtensor bench checkpoint --dir /dev/shm --json

Cases: 16 tensors of SIZE x SIZE f32, cut in rows, are saved with and without fsync, and loaded into the same layout, cut \
in columns, and on one rank; small_2000 are 2,000 tensors of 16,384 elements. Checksums are written and verified. `raw` writes \
or reads the same bytes to and from one file per rank and nothing else. `cold`: the files' pages were dropped from \
memory first (not on file systems that live there). A sample is the time of the slowest rank; every result is checked. \
extra_mib is what the process had at the most during a call beyond what it had before.";

/// Saving and loading, beside plain writes and reads of the same bytes.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointArgs {
    /// Where to write; what is written is removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Rows and columns of each of the 16 tensors
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..1 << 16))]
    size: u32,
    /// Ranks, as threads of this process; under mpirun its processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// Times that all cases are run, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON line per case
    #[arg(long)]
    json: bool,
}

const N_TENSORS: usize = 16;
const N_SMALL: usize = 2_000;
const SMALL: usize = 16_384;

/// Where everything is written, below the directory that was given.
const BASE: &str = "dtensor-bench-checkpoint";

/// A case: its times, and the most memory that it took beyond what there was.
struct Line {
    world: usize,
    case: String,
    bytes: u64,
    samples: Samples,
    extra: u64,
}

type Outcome<T> = std::result::Result<T, dtensor_checkpoint::Error>;

pub fn run(args: CheckpointArgs) -> Result<()> {
    let progress = Progress::new();
    let base = args.dir.join(BASE);
    let measured = rounds(&args, &base, &progress);
    // What was written goes, whatever happened. Under mpirun the first process that comes here does it for all.
    let _ = fs::remove_dir_all(&base);
    let lines = measured?;
    drop(progress);
    let mut out = Out::new();
    match args.json {
        true => lines.iter().try_for_each(|line| out.json(&line.json())),
        false => out.lines(table(&lines)),
    }
}

fn rounds(args: &CheckpointArgs, base: &Path, progress: &Progress) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for round in 0..args.rounds {
        let worlds = [usize::from(args.ranks), 1];
        for (position, &ranks) in worlds.iter().enumerate() {
            let runner = Runner::new().ranks(ranks);
            let reports = runner.run(|world| {
                let mut bench = Bench::new(world, args, base, round, progress)?;
                match position {
                    0 => bench.saves_and_loads()?,
                    _ => bench.loads_on_one_rank()?,
                }
                Ok::<_, dtensor_checkpoint::Error>((world.kind(), bench.done))
            });
            let reports = reports.map_err(|error| Error::failure(error.to_string()))?;
            let Some((kind, done)) = reports.into_iter().next() else { continue };
            for line in done {
                match lines.iter_mut().find(|known| known.case == line.case) {
                    Some(known) => {
                        known.samples.extend(line.samples);
                        known.extra = known.extra.max(line.extra);
                    }
                    None => lines.push(line),
                }
            }
            if kind == WorldKind::Mpi {
                // mpirun has said how many ranks there are; there is no world of one among them.
                break;
            }
        }
    }
    Ok(lines)
}

/// One rank's part of a round.
struct Bench<'a> {
    world: &'a World,
    mesh: DeviceMesh,
    size: usize,
    base: &'a Path,
    round: u32,
    progress: &'a Progress,
    done: Vec<Line>,
}

impl<'a> Bench<'a> {
    fn new(
        world: &'a World,
        args: &CheckpointArgs,
        base: &'a Path,
        round: u32,
        progress: &'a Progress,
    ) -> Outcome<Bench<'a>> {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let size = args.size as usize;
        Ok(Bench { world, mesh, size, base, round, progress, done: Vec::new() })
    }

    fn saves_and_loads(&mut self) -> Outcome<()> {
        let state = self.large(Shard(0), saved)?;
        for sync in [true, false] {
            let suffix = if sync { "" } else { "_nosync" };
            let raw = format!("raw{suffix}");
            self.wipe(&raw)?;
            let file = self.base.join(&raw).join(format!("{}.bin", self.world.rank()));
            self.time(format!("save {raw}"), || raw_write(&file, &state, sync))?;
            if !sync {
                // What the system has not yet written would be written while the next cases are measured.
                self.wipe(&raw)?;
            }
            let ours = format!("dtensor{suffix}");
            self.wipe(&ours)?;
            let options = SaveOptions::default().sync(sync);
            let path = self.base.join(&ours).join("checkpoint").display().to_string();
            let world = self.world;
            self.time(format!("save {ours}"), || save(world, &state, &path, &options).map(drop))?;
            if !sync {
                self.wipe(&ours)?;
            }
        }
        drop(state);
        for (name, placement) in [("S0", Shard(0)), ("S1", Shard(1))] {
            let mut state = self.large(placement, not_saved)?;
            for cache in ["cold", "warm"] {
                if name == "S0" {
                    self.forget(cache, "raw")?;
                    let file = self.base.join("raw").join(format!("{}.bin", self.world.rank()));
                    self.time(format!("load raw S0 {cache}"), || raw_read(&[file], &mut state))?;
                    self.check(&state, placement)?;
                }
                self.load_large(
                    &mut state,
                    placement,
                    &format!("load dtensor {name} {cache}"),
                    cache,
                )?;
            }
        }
        self.small()
    }

    fn loads_on_one_rank(&mut self) -> Outcome<()> {
        let mut state = self.large(Shard(0), not_saved)?;
        for cache in ["cold", "warm"] {
            self.forget(cache, "raw")?;
            let mut files: Vec<PathBuf> = list(&self.base.join("raw"));
            files.sort();
            self.time(format!("load raw world1 {cache}"), || raw_read(&files, &mut state))?;
            self.load_large(&mut state, Shard(0), &format!("load dtensor world1 {cache}"), cache)?;
        }
        Ok(())
    }

    fn load_large(
        &mut self,
        state: &mut State,
        placement: Placement,
        case: &str,
        cache: &str,
    ) -> Outcome<()> {
        for (_, entry) in state.iter_mut() {
            if let Entry::Tensor(tensor) = entry {
                tensor.modify_local(|local| {
                    local.as_mut_slice::<f32>().map(|values| values.fill(-1.0))
                })?;
            }
        }
        self.forget(cache, "dtensor")?;
        let path = self.base.join("dtensor").join("checkpoint").display().to_string();
        let world = self.world;
        self.time(case.to_owned(), || {
            load(world, state, &path, &LoadOptions::default()).map(drop)
        })?;
        self.check(state, placement)
    }

    /// Many small tensors: what a call costs.
    fn small(&mut self) -> Outcome<()> {
        let mut state = State::new();
        for k in 0..N_SMALL {
            let values = Tensor::full(&[SMALL], k as f32)?;
            let tensor = dtensor::distribute_tensor_from(&values, &self.mesh, &[Shard(0)], None)?;
            state.insert(format!("layer.{k}.weight"), tensor)?;
        }
        let world = self.world;
        self.wipe("small")?;
        let path = self.base.join("small").join("checkpoint").display().to_string();
        self.time("save dtensor small_2000".into(), || {
            save(world, &state, &path, &SaveOptions::default()).map(drop)
        })?;
        self.time("load dtensor small_2000 warm".into(), || {
            load(world, &mut state, &path, &LoadOptions::default()).map(drop)
        })?;
        self.wipe("small")
    }

    /// The large tensors. The values are by tensor, row and column.
    fn large(
        &self,
        placement: Placement,
        value_at: impl Fn(usize, usize, usize) -> f32,
    ) -> Outcome<State> {
        let mut state = State::new();
        for k in 0..N_TENSORS {
            let shape = [self.size, self.size];
            let mut tensor = dtensor::empty(&shape, DType::F32, &self.mesh, &[placement])?;
            let coord = self.mesh.coord().unwrap_or_default();
            let (start, columns) =
                (tensor.layout().local_offset(coord), tensor.layout().local_shape(coord)[1]);
            tensor.modify_local(|local| {
                for (row, line) in
                    local.as_mut_slice::<f32>()?.chunks_mut(columns.max(1)).enumerate()
                {
                    for (column, value) in line.iter_mut().enumerate() {
                        *value = value_at(k, start[0] + row, start[1] + column);
                    }
                }
                Ok(())
            })?;
            state.insert(format!("t{k}"), tensor)?;
        }
        Ok(state)
    }

    /// Whether what was loaded is what was saved.
    fn check(&self, state: &State, placement: Placement) -> Outcome<()> {
        let want = self.large(placement, saved)?;
        for (name, entry) in state.iter() {
            let (Entry::Tensor(got), Some(want)) = (entry, want.tensor(name)) else { continue };
            let (got, want) = (got.to_local(), want.to_local());
            if got.as_bytes()? != want.as_bytes()? {
                return Err(dtensor_checkpoint::Error::Broken {
                    file: name.to_owned(),
                    what: "what was loaded is not what was saved".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// An empty directory, when all ranks are there.
    fn wipe(&self, name: &str) -> Outcome<()> {
        self.world.group().barrier()?;
        if self.world.rank() == 0 {
            let _ = fs::remove_dir_all(self.base.join(name));
            make_directory(&self.base.join(name))?;
        }
        Ok(self.world.group().barrier()?)
    }

    /// Drops the pages of the files of a case from memory, if it is one of those.
    fn forget(&self, cache: &str, name: &str) -> Outcome<()> {
        self.world.group().barrier()?;
        if cache == "cold" && self.world.rank() == 0 {
            let mut directories = vec![self.base.join(name)];
            while let Some(directory) = directories.pop() {
                for path in list(&directory) {
                    match path.is_dir() {
                        true => directories.push(path),
                        false => forget_pages(&path)?,
                    }
                }
            }
        }
        Ok(self.world.group().barrier()?)
    }

    /// Measures a call that all ranks make.
    fn time(&mut self, case: String, call: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        self.progress.say(&format!("round {}: {case}", self.round + 1));
        let group = self.world.group();
        group.barrier()?;
        if self.world.rank() == 0 {
            memory::reset_peak();
        }
        let before = memory::resident_bytes();
        group.barrier()?;
        let start = Instant::now();
        call()?;
        let mut slowest = [start.elapsed().as_secs_f64()];
        group.all_reduce(&mut slowest, ReduceOp::Max)?;
        let extra = memory::peak_bytes().saturating_sub(before);
        let bytes = match case.contains("small") {
            true => N_SMALL * SMALL * 4,
            false => N_TENSORS * self.size * self.size * 4,
        };
        let samples = Samples::new(vec![slowest[0] * 1e6]);
        self.done.push(Line {
            world: self.world.size(),
            case,
            bytes: bytes as u64,
            samples,
            extra,
        });
        Ok(())
    }
}

impl Line {
    fn json(&self) -> Value {
        let mut line = Map::new();
        line.insert("bench".into(), json!("checkpoint"));
        line.insert("world".into(), json!(self.world));
        line.insert("case".into(), json!(self.case));
        let seconds = |microseconds: f64| (microseconds / 1e3).round() / 1e3;
        line.insert("min_s".into(), json!(seconds(self.samples.min())));
        line.insert("median_s".into(), json!(seconds(self.samples.median())));
        line.insert("n".into(), json!(self.samples.len()));
        let rate = self.bytes as f64 / self.samples.min() / 1e3;
        line.insert("GBps".into(), json!((rate * 1e3).round() / 1e3));
        line.insert("extra_mib".into(), json!(self.extra / (1 << 20)));
        Value::Object(line)
    }
}

/// The value of tensor `k` at a place, as it is saved; every one is exact.
fn saved(k: usize, row: usize, column: usize) -> f32 {
    ((row * 3 + column + k * 17) % 4093) as f32
}

/// What tensors hold before they are loaded.
fn not_saved(_: usize, _: usize, _: usize) -> f32 {
    -1.0
}

fn raw_write(path: &Path, state: &State, sync: bool) -> Outcome<()> {
    let failed = |error: std::io::Error| io_error("write", path, &error);
    let mut file = File::create(path).map_err(failed)?;
    for (_, entry) in state.iter() {
        if let Entry::Tensor(tensor) = entry {
            file.write_all(tensor.to_local().as_bytes()?).map_err(failed)?;
        }
    }
    match sync {
        true => file.sync_all().map_err(failed),
        false => Ok(()),
    }
}

/// Reads the files, one after the other, each into its part of every tensor.
fn raw_read(paths: &[PathBuf], state: &mut State) -> Outcome<()> {
    for (position, path) in paths.iter().enumerate() {
        let mut file = File::open(path).map_err(|error| io_error("read", path, &error))?;
        for (_, entry) in state.iter_mut() {
            let Entry::Tensor(tensor) = entry else { continue };
            let mut read = Ok(());
            tensor.modify_local(|local| {
                let bytes = local.as_bytes_mut()?;
                let part = bytes.len() / paths.len();
                read = file.read_exact(&mut bytes[position * part..][..part]);
                Ok(())
            })?;
            read.map_err(|error| io_error("read", path, &error))?;
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Outcome<()> {
    fs::create_dir_all(path).map_err(|error| io_error("make", path, &error))
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn forget_pages(path: &Path) -> Outcome<()> {
    let file = File::open(path).map_err(|error| io_error("open", path, &error))?;
    file.sync_all().map_err(|error| io_error("sync", path, &error))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|error| io_error("drop the pages of", path, &error.into()))
}

fn io_error(doing: &'static str, path: &Path, error: &std::io::Error) -> dtensor_checkpoint::Error {
    let path = path.display().to_string();
    dtensor_checkpoint::Error::Io { doing, path, kind: error.kind(), why: error.to_string() }
}

fn table(lines: &[Line]) -> Vec<String> {
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
            (line.extra >> 20).to_string(),
        ]);
    }
    table.lines()
}
