//! One rank's part of a round: the cases.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use dtensor::{
    DType, DeviceMesh,
    Placement::{self, Shard},
    ReduceOp, World, WorldKind,
};
use dtensor_checkpoint::{
    Entry, Error, LoadOptions, SaveOptions, Source, State, async_save,
    convert::{ConvertOptions, to_safetensors},
    load, save,
};

use super::{
    Outcome,
    files::{
        bytes_below, files_below, forget_pages, is_in_memory, make_directory, raw_copy, raw_read,
        raw_write,
    },
    line::{Line, Memory},
};
use crate::{bench::samples::Samples, memory, output::Progress};

const N_TENSORS: usize = 16;

/// Elements of a small tensor.
const SMALL: usize = 16_384;

/// What all rounds have.
pub struct Setting<'a> {
    /// Rows and columns of the large tensors.
    pub size: usize,
    pub n_small: usize,
    /// Ranks that save.
    pub ranks: usize,
    /// Where everything is written.
    pub base: &'a Path,
    /// A checkpoint of the large tensors that PyTorch has written.
    pub classic: Option<&'a Path>,
    pub progress: &'a Progress,
}

/// PyTorch's name for a save that is made into files of whole tensors.
const CONSOLIDATED: &str = "hf_consolidated";

/// One rank's part of a round.
pub struct Rank<'a> {
    world: &'a World,
    mesh: DeviceMesh,
    setting: &'a Setting<'a>,
    round: u32,
    /// Of the tensors of the present cases.
    bytes: u64,
    caches: &'static [&'static str],
    pub done: Vec<Line>,
}

impl<'a> Rank<'a> {
    pub fn new(world: &'a World, setting: &'a Setting<'a>, round: u32) -> Outcome<Rank<'a>> {
        let mesh = DeviceMesh::of_world(world, "x")?;
        make_directory(setting.base)?;
        let caches: &[&str] = match is_in_memory(setting.base) {
            true => &["warm"],
            false => &["cold", "warm"],
        };
        Ok(Rank { world, mesh, setting, round, bytes: 0, caches, done: Vec::new() })
    }

    pub fn saves_and_loads(&mut self) -> Outcome<()> {
        self.bytes = (N_TENSORS * self.setting.size * self.setting.size * 4) as u64;
        let state = self.large(Shard(0), saved)?;
        self.saves(&state, "")?;
        self.save_and_consolidate(&state)?;
        self.save_behind(&state)?;
        drop(state);
        for (name, placement) in [("S0", Shard(0)), ("S1", Shard(1))] {
            let want = |rank: &Rank<'_>| rank.large(placement, saved);
            let mut state = self.large(placement, not_saved)?;
            for cache in self.caches {
                if name == "S0" {
                    let case = format!("load raw S0 {cache}");
                    self.load_raw(&mut state, &want, "raw", self.own_file("raw"), case, cache)?;
                }
                for (kind, path) in self.kinds() {
                    let case = format!("load {kind} {name} {cache}");
                    self.load(&mut state, &want, &path, case, cache)?;
                }
            }
        }
        self.small()
    }

    pub fn on_one_rank(&mut self) -> Outcome<()> {
        self.bytes = (N_TENSORS * self.setting.size * self.setting.size * 4) as u64;
        let want = |rank: &Rank<'_>| rank.large(Shard(0), saved);
        let mut state = self.large(Shard(0), not_saved)?;
        for cache in self.caches {
            let files = (0..self.setting.ranks).map(|rank| self.raw_file("raw", rank)).collect();
            let case = format!("load raw world1 {cache}");
            self.load_raw(&mut state, &want, "raw", files, case, cache)?;
            for (kind, path) in self.kinds() {
                let case = format!("load {kind} world1 {cache}");
                self.load(&mut state, &want, &path, case, cache)?;
            }
        }
        if let Some(classic) = self.setting.classic {
            self.conversions(&mut state, classic)?;
        }
        Ok(())
    }

    /// Many small tensors: what a call costs.
    fn small(&mut self) -> Outcome<()> {
        self.bytes = (self.setting.n_small * SMALL * 4) as u64;
        let set = format!(" small_{}", self.setting.n_small);
        let state = self.small_state(|k| k as f32)?;
        self.saves(&state, &set)?;
        drop(state);
        let want = |rank: &Rank<'_>| rank.small_state(|k| k as f32);
        let mut state = self.small_state(|_| -1.0)?;
        let [raw, ours] = ["raw", "hf_sharded"].map(|kind| directory_of(kind, &set));
        for cache in self.caches {
            let case = format!("load raw{set} {cache}");
            self.load_raw(&mut state, &want, &raw, self.own_file(&raw), case, cache)?;
            let case = format!("load hf_sharded{set} {cache}");
            let path = self.place(&ours);
            self.load(&mut state, &want, &path, case, cache)?;
        }
        self.wipe(&raw)?;
        self.wipe(&ours)
    }

    /// With and without fsync, each beside a plain write.
    fn saves(&mut self, state: &State, set: &str) -> Outcome<()> {
        for (sync, suffix) in [(true, ""), (false, "_nosync")] {
            let case = format!("raw{suffix}{set}");
            let directory = directory_of(&case, "");
            self.wipe(&directory)?;
            let file = self.raw_file(&directory, self.world.rank());
            self.time(format!("save {case}"), || raw_write(&file, state, sync))?;
            self.note_files(&directory);
            if !sync {
                // What the system has not yet written would be written while the next cases are measured.
                self.wipe(&directory)?;
            }
            let case = format!("hf_sharded{suffix}{set}");
            let directory = directory_of(&case, "");
            self.wipe(&directory)?;
            let path = self.place(&directory).display().to_string();
            let (world, options) = (self.world, SaveOptions::default().sync(sync));
            self.time(format!("save {case}"), || save(world, state, &path, &options).map(drop))?;
            self.note_files(&directory);
            if !sync {
                self.wipe(&directory)?;
            }
        }
        Ok(())
    }

    /// A save, and then the whole tensors in one file, which all ranks write.
    fn save_and_consolidate(&mut self, state: &State) -> Outcome<()> {
        self.wipe(CONSOLIDATED)?;
        let sharded = self.place(CONSOLIDATED);
        let (from, to) = (sharded.display().to_string(), self.consolidated().display().to_string());
        let world = self.world;
        self.time(format!("save {CONSOLIDATED}"), || {
            save(world, state, &from, &SaveOptions::default())?;
            // Ranks that are threads are enough of them.
            let options =
                ConvertOptions { threads: 1, group: Some(world.group()), ..Default::default() };
            to_safetensors(&Source::open(&from)?, &to, &options).map(drop)
        })?;
        self.note_files(CONSOLIDATED);
        world.group().barrier()?;
        if world.rank() == 0 {
            let _ = fs::remove_dir_all(&sharded);
        }
        Ok(world.group().barrier()?)
    }

    /// In the background: until the program may go on, and until it is written.
    fn save_behind(&mut self, state: &State) -> Outcome<()> {
        self.wipe("async")?;
        let path = self.place("async").display().to_string();
        let measure = self.begin("save async")?;
        let saving = async_save(self.world, state, &path, &SaveOptions::default())?;
        let returned = measure.start.elapsed();
        saving.wait()?;
        let written = measure.start.elapsed();
        let cases = [("save async_returns", returned), ("save async_written", written)];
        let times = cases.map(|(case, time)| (case.to_owned(), time.as_secs_f64()));
        self.end(measure, times.to_vec())?;
        self.note_files("async");
        self.wipe("async")
    }

    fn load_raw(
        &mut self,
        state: &mut State,
        want: &dyn Fn(&Rank<'_>) -> Outcome<State>,
        directory: &str,
        files: Vec<PathBuf>,
        case: String,
        cache: &str,
    ) -> Outcome<()> {
        blank(state)?;
        self.forget(cache, &self.setting.base.join(directory))?;
        self.time(case, || raw_read(&files, state))?;
        check(state, &want(self)?)
    }

    fn load(
        &mut self,
        state: &mut State,
        want: &dyn Fn(&Rank<'_>) -> Outcome<State>,
        path: &Path,
        case: String,
        cache: &str,
    ) -> Outcome<()> {
        blank(state)?;
        self.forget(cache, path)?;
        let (world, path) = (self.world, path.display().to_string());
        self.time(case, || load(world, state, &path, &LoadOptions::default()).map(drop))?;
        check(state, &want(self)?)
    }

    /// PyTorch's checkpoint as one file of whole tensors, beside a plain copy of its files.
    fn conversions(&mut self, state: &mut State, classic: &Path) -> Outcome<()> {
        for cache in self.caches {
            self.wipe("converted")?;
            let target = self.setting.base.join("converted").join("copy");
            self.forget(cache, classic)?;
            let files = files_below(classic);
            self.time(format!("convert raw {cache}"), || raw_copy(&files, &target))?;
            self.wipe("converted")?;
            let target = self.setting.base.join("converted").join("whole.safetensors");
            let (from, to) = (classic.display().to_string(), target.display().to_string());
            self.forget(cache, classic)?;
            self.time(format!("convert dcp {cache}"), || {
                let source = Source::open(&from)?;
                to_safetensors(&source, &to, &ConvertOptions::default()).map(drop)
            })?;
            self.note_files("converted");
            blank(state)?;
            load(self.world, state, &to, &LoadOptions::default())?;
            check(state, &self.large(Shard(0), saved)?)?;
        }
        self.wipe("converted")
    }

    /// The large tensors. The values are by tensor, row and column.
    fn large(
        &self,
        placement: Placement,
        value_at: impl Fn(usize, usize, usize) -> f32,
    ) -> Outcome<State> {
        let mut state = State::new();
        let shape = [self.setting.size, self.setting.size];
        for k in 0..N_TENSORS {
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

    /// The small tensors, each of one value.
    fn small_state(&self, value: impl Fn(usize) -> f32) -> Outcome<State> {
        let mut state = State::new();
        for k in 0..self.setting.n_small {
            let mut tensor = dtensor::empty(&[SMALL], DType::F32, &self.mesh, &[Shard(0)])?;
            tensor.modify_local(|local| {
                local.as_mut_slice::<f32>().map(|values| values.fill(value(k)))
            })?;
            state.insert(format!("layer.{k}.weight"), tensor)?;
        }
        Ok(state)
    }

    /// The checkpoints of the large tensors that are loaded, and what they are called.
    fn kinds(&self) -> Vec<(&'static str, PathBuf)> {
        let ours = [("hf_sharded", self.place("hf_sharded")), (CONSOLIDATED, self.consolidated())];
        let classic = self.setting.classic.map(|path| ("dcp", path.to_owned()));
        ours.into_iter().chain(classic).collect()
    }

    /// Where the whole tensors are.
    fn consolidated(&self) -> PathBuf {
        self.setting.base.join(CONSOLIDATED).join("whole")
    }

    fn raw_file(&self, directory: &str, rank: usize) -> PathBuf {
        self.setting.base.join(directory).join(format!("{rank}.bin"))
    }

    fn own_file(&self, directory: &str) -> Vec<PathBuf> {
        vec![self.raw_file(directory, self.world.rank())]
    }

    /// Where the checkpoint of a case is.
    fn place(&self, directory: &str) -> PathBuf {
        self.setting.base.join(directory).join("checkpoint")
    }

    /// An empty directory, when all ranks are there.
    fn wipe(&self, directory: &str) -> Outcome<()> {
        self.world.group().barrier()?;
        if self.world.rank() == 0 {
            let directory = self.setting.base.join(directory);
            let _ = fs::remove_dir_all(&directory);
            make_directory(&directory)?;
        }
        Ok(self.world.group().barrier()?)
    }

    /// Drops the pages of the files below a directory from memory, if the case is one of those.
    fn forget(&self, cache: &str, directory: &Path) -> Outcome<()> {
        self.world.group().barrier()?;
        if cache == "cold" && self.world.rank() == 0 {
            files_below(directory).iter().try_for_each(|path| forget_pages(path))?;
        }
        Ok(self.world.group().barrier()?)
    }

    /// Measures a call that all ranks make.
    fn time(&mut self, case: String, call: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let measure = self.begin(&case)?;
        call()?;
        let seconds = measure.start.elapsed().as_secs_f64();
        self.end(measure, vec![(case, seconds)])
    }

    fn begin(&self, case: &str) -> Outcome<Measure> {
        if self.world.rank() == 0 {
            self.setting.progress.say(&format!("round {}: {case}", self.round + 1));
        }
        let group = self.world.group();
        group.barrier()?;
        if self.world.rank() == 0 || self.world.kind() == WorldKind::Mpi {
            memory::reset_peak();
        }
        let before = memory::resident_bytes();
        group.barrier()?;
        Ok(Measure { before, start: Instant::now() })
    }

    /// The times of what was measured on this rank, by case, in seconds.
    fn end(&mut self, measure: Measure, times: Vec<(String, f64)>) -> Outcome<()> {
        let peak = memory::peak_bytes();
        let group = self.world.group();
        let (cases, mut slowest): (Vec<String>, Vec<f64>) = times.into_iter().unzip();
        group.all_reduce(&mut slowest, ReduceOp::Max)?;
        let own = [measure.before as i64, peak as i64];
        let mut all = vec![0; 2 * group.size()];
        group.all_gather(&own, &mut all)?;
        if self.world.kind() != WorldKind::Mpi {
            // One process.
            all.truncate(2);
        }
        let memory = Memory {
            before: all.iter().step_by(2).map(|&bytes| bytes as u64).collect(),
            peak: all.iter().skip(1).step_by(2).map(|&bytes| bytes as u64).collect(),
        };
        self.done.extend(cases.into_iter().zip(slowest).map(|(case, seconds)| Line {
            world: group.size(),
            case,
            bytes: self.bytes,
            samples: Samples::new(vec![seconds * 1e6]),
            memory: memory.clone(),
            file_bytes: None,
        }));
        Ok(())
    }

    /// The last case has written all that is in a directory.
    fn note_files(&mut self, directory: &str) {
        let bytes = bytes_below(&self.setting.base.join(directory));
        if let Some(line) = self.done.last_mut() {
            line.file_bytes = Some(bytes);
        }
    }
}

/// A measurement that has begun.
struct Measure {
    /// Bytes of memory of this process.
    before: u64,
    start: Instant,
}

fn directory_of(kind: &str, set: &str) -> String {
    format!("{kind}{set}").replace(' ', "_")
}

/// The value of tensor `k` at a place, as it is saved; every one is exact. PyTorch's benchmark saves the same.
fn saved(k: usize, row: usize, column: usize) -> f32 {
    ((row * 3 + column + k * 17) % 4093) as f32
}

/// What tensors hold before they are loaded.
fn not_saved(_: usize, _: usize, _: usize) -> f32 {
    -1.0
}

/// Makes every tensor one that was not loaded.
fn blank(state: &mut State) -> Outcome<()> {
    for (_, entry) in state.iter_mut() {
        if let Entry::Tensor(tensor) = entry {
            tensor.modify_local(|local| {
                local.as_mut_slice::<f32>().map(|values| values.fill(-1.0))
            })?;
        }
    }
    Ok(())
}

/// Whether what was loaded is what was saved.
fn check(state: &State, want: &State) -> Outcome<()> {
    for (name, entry) in state.iter() {
        let (Entry::Tensor(got), Some(want)) = (entry, want.tensor(name)) else { continue };
        let (got, want) = (got.to_local(), want.to_local());
        if got.as_bytes()? != want.as_bytes()? {
            return Err(Error::Broken {
                file: name.to_owned(),
                what: "what was loaded is not what was saved".to_owned(),
            });
        }
    }
    Ok(())
}
