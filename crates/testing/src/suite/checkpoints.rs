//! Checkpoints on a real world: every rank writes and reads, be it a thread or a process.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use dtensor::{
    DType,
    Placement::{Replicate, Shard},
    Tensor, World, WorldKind, distribute_tensor,
};
use dtensor_checkpoint::{
    LoadOptions, SaveOptions, Source, State, Value, async_save,
    convert::{ConvertOptions, PlacementPlan, to_native, to_safetensors},
    load, read_tensors, save,
};
use dtensor_layout::Mesh;

use super::{
    faults::{SURVIVED, kill_self},
    tensors::{mesh_sizes, noise, same, text},
};
use crate::tensors::{layouts_of, mesh, place};

/// 5 does not divide by 2, 3 or 4, and of 2 columns the later ranks get none.
const SHAPE: [usize; 2] = [5, 2];

/// Tensors of other types beside it: rows that do not divide, one row that only one rank has, and no rows at all.
fn others() -> Result<[(&'static str, Tensor); 3], String> {
    let numbers = (0..21).map(|index| index as f32 / 4.0 - 2.0).collect();
    let numbers = Tensor::from_vec::<f32>(numbers, &[7, 3]).map_err(text)?;
    let flags = Tensor::from_vec(vec![true, false, true], &[1, 3]).map_err(text)?;
    let none = Tensor::from_vec(Vec::<i32>::new(), &[0, 3]).map_err(text)?;
    let numbers = numbers.to_dtype(DType::Bf16).map_err(text)?;
    Ok([("numbers", numbers), ("flags", flags), ("none", none)])
}

/// Saved in one layout, loaded in every other, on meshes of one and of two axes; also behind the program's back.
pub(super) fn moved(world: &World) -> Result<(), String> {
    let scratch = Scratch::new(world)?;
    let whole = noise(&SHAPE);
    let path = scratch.path("moved");
    for (behind, sizes) in mesh_sizes(world.size()).into_iter().enumerate() {
        let from = mesh(world, &sizes);
        let mut placements = vec![Replicate; sizes.len()];
        placements[0] = Shard(0);
        let mut state = State::new();
        let x = place(&whole, DType::F64, &from, &placements, 1);
        state.insert("x", x).map_err(text)?;
        for (name, other) in others()? {
            let other = distribute_tensor(&other, &from, &placements).map_err(text)?;
            state.insert(name, other).map_err(text)?;
        }
        state.insert("step", 7_i64).map_err(text)?;
        match behind {
            0 => save(world, &state, &path, &SaveOptions::default()).map(drop).map_err(text)?,
            _ => {
                let saving = async_save(world, &state, &path, &SaveOptions::default());
                saving.and_then(|saving| saving.wait()).map(drop).map_err(text)?;
            }
        }
        for sizes in mesh_sizes(world.size()) {
            let to = mesh(world, &sizes);
            let layouts = layouts_of(&SHAPE, DType::F64, &sizes);
            let settled = |placements: &&Vec<dtensor::Placement>| {
                placements.iter().all(|placement| placement.reduce_op().is_none())
            };
            for placements in layouts.iter().filter(settled) {
                let mut state = State::new();
                let blank = dtensor::zeros(&SHAPE, DType::F64, &to, placements);
                state.insert("x", blank.map_err(text)?).map_err(text)?;
                for (name, other) in others()? {
                    let blank = dtensor::zeros(other.shape(), other.dtype(), &to, placements);
                    state.insert(name, blank.map_err(text)?).map_err(text)?;
                }
                state.insert("step", 0_i64).map_err(text)?;
                load(world, &mut state, &path, &LoadOptions::default()).map_err(text)?;
                let loaded = state.tensor("x").ok_or("x is gone")?;
                same(loaded, &whole, &format!("loaded as {placements:?}"))?;
                for (name, other) in others()? {
                    let loaded = state.tensor(name).ok_or("it is gone")?;
                    let loaded = loaded.full_tensor().map_err(text)?.contiguous();
                    if loaded.as_bytes().map_err(text)? != other.as_bytes().map_err(text)? {
                        return Err(format!("`{name}`, loaded as {placements:?}, is {loaded:?}"));
                    }
                }
                if state.value("step") != Some(&Value::Int(7)) {
                    return Err(format!("the step is {:?}", state.value("step")));
                }
            }
        }
    }
    Ok(())
}

/// Made into one file, and from that into the files of another mesh, by all ranks together: the values stay.
pub(super) fn converted(world: &World) -> Result<(), String> {
    let scratch = Scratch::new(world)?;
    let (whole, mesh) = (noise(&[7, 3]), mesh(world, &[world.size()]));
    let [saved, file, resharded] = ["saved", "one.safetensors", "resharded"];
    let [saved, file, resharded] = [saved, file, resharded].map(|name| scratch.path(name));
    let mut state = State::new();
    let x = place(&whole, DType::F64, &mesh, &[Shard(0)], 1);
    state.insert("x", x).map_err(text)?;
    save(world, &state, &saved, &SaveOptions::default()).map_err(text)?;
    let options = ConvertOptions { group: Some(world.group()), ..ConvertOptions::default() };
    let source = Source::open(&saved).map_err(text)?;
    to_safetensors(&source, &file, &options).map_err(text)?;
    let source = Source::open(&file).map_err(text)?;
    let (five, plan) = (Mesh::from_sizes(&[5]).map_err(text)?, PlacementPlan::new());
    let converted = to_native(&source, &resharded, &five, &plan, &options).map_err(text)?;
    if converted.files.len() != 5 {
        return Err(format!("7 rows on 5 ranks are in the files {:?}", converted.files));
    }
    let mut state = State::new();
    let blank = dtensor::zeros(&[7, 3], DType::F64, &mesh, &[Shard(1)]).map_err(text)?;
    state.insert("x", blank).map_err(text)?;
    load(world, &mut state, &resharded, &LoadOptions::default()).map_err(text)?;
    same(state.tensor("x").ok_or("x is gone")?, &whole, "resharded")
}

/// Damage that one rank reads is an error on all, and the world goes on.
pub(super) fn damaged(world: &World) -> Result<(), String> {
    let scratch = Scratch::new(world)?;
    let mesh = mesh(world, &[world.size()]);
    let path = scratch.path("damaged");
    let mut state = State::new();
    let x = place(&noise(&[7, 3]), DType::F64, &mesh, &[Shard(0)], 1);
    state.insert("x", x).map_err(text)?;
    save(world, &state, &path, &SaveOptions::default()).map_err(text)?;
    if world.rank() == 0 {
        let file = PathBuf::from(&path).join("shard-00001-model-00001-of-00001.safetensors");
        let mut bytes = fs::read(&file).map_err(text)?;
        *bytes.last_mut().ok_or("an empty file")? ^= 4;
        fs::write(&file, bytes).map_err(text)?;
    }
    world.group().barrier().map_err(text)?;
    match load(world, &mut state, &path, &LoadOptions::default()) {
        Ok(_) => return Err("the damage was not noticed".into()),
        Err(error) if !error.to_string().contains("checksum") => return Err(error.to_string()),
        Err(_) => {}
    }
    world.group().barrier().map_err(text)
}

/// The last rank dies when it has written some of its part. The others are told, and what was saved before is whole.
pub(super) fn last_killed_in_a_save(world: &World) -> Result<(), String> {
    killed_while_it_saves(world, world.size() - 1, false)
}

/// The same of rank 0, which alone can clear away what was written.
pub(super) fn first_killed_in_a_save(world: &World) -> Result<(), String> {
    killed_while_it_saves(world, 0, false)
}

/// The same in the background, where no call of the world tells that a rank is dead.
pub(super) fn last_killed_in_an_async_save(world: &World) -> Result<(), String> {
    killed_while_it_saves(world, world.size() - 1, true)
}

/// The same of rank 0, which the others wait for.
pub(super) fn first_killed_in_an_async_save(world: &World) -> Result<(), String> {
    killed_while_it_saves(world, 0, true)
}

fn killed_while_it_saves(world: &World, dying: usize, behind: bool) -> Result<(), String> {
    let last = world.size() - 1;
    if world.kind() != WorldKind::Mpi || last == 0 {
        return Err("killing a rank needs several processes: use mpirun".to_string());
    }
    let scratch = Scratch::new(world)?;
    let (path, mesh) = (scratch.path("killed"), mesh(world, &[world.size()]));
    // Every rank has rows to write, and after the first MiB of them there are more.
    let shape = [world.size(), 3 << 18];
    let state = |value: f64| {
        let tensor = dtensor::full(&shape, value, &mesh, &[Shard(0)]).map_err(text)?;
        let mut state = State::new();
        state.insert("x", tensor).map_err(text)?;
        Ok::<_, String>(state)
    };
    let save_by = |state: &State, options: &SaveOptions| match behind {
        false => save(world, state, &path, options),
        true => async_save(world, state, &path, options).and_then(|saving| saving.wait()),
    };
    let options = SaveOptions::default().sync(false).patience(Duration::from_secs(3));
    save_by(&state(1.0)?, &options).map_err(text)?;
    let new = state(2.0)?;
    world.group().barrier().map_err(text)?;
    if world.rank() == dying {
        let dying = options.progress(|_| drop(kill_self()));
        let saved = save_by(&new, &dying);
        return Err(format!("{SURVIVED}: {saved:?}"));
    }
    if let Ok(saved) = save_by(&new, &options) {
        return Err(format!("saved without the rank that was killed: {saved:?}"));
    }
    let witness = if dying == 0 { last } else { 0 };
    if world.rank() != witness {
        return Ok(());
    }
    // There is no world any more to load it in.
    let tensors = read_tensors(&path).map_err(text)?;
    let x = tensors.get("x").ok_or("x is gone")?;
    let whole = x.as_slice::<f64>().map_err(text)?;
    let old =
        whole.len() == shape.iter().product::<usize>() && whole.iter().all(|&value| value == 1.0);
    let names = fs::read_dir(scratch.path("")).map_err(text)?.count();
    // Nobody else comes to remove it.
    let _ = fs::remove_dir_all(scratch.path(""));
    match (old, names) {
        (true, 1) => Ok(()),
        // What rank 0 cannot clear away any more the next save does.
        (true, _) if dying == 0 => Ok(()),
        (true, _) => Err(format!("{names} things are there, and not the old checkpoint alone")),
        (false, _) => Err("the old checkpoint is not what was saved".to_owned()),
    }
}

/// A directory that all ranks know, which the first of them removes.
pub(super) struct Scratch<'w> {
    world: &'w World,
    directory: PathBuf,
}

impl Scratch<'_> {
    pub(super) fn new(world: &World) -> Result<Scratch<'_>, String> {
        // There may be several worlds of threads in this process.
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let mut id = [i64::from(std::process::id()), NEXT.fetch_add(1, Ordering::Relaxed)];
        world.group().broadcast(&mut id, 0).map_err(text)?;
        let directory = std::env::temp_dir().join(format!("dtensor-suite-{}-{}", id[0], id[1]));
        fs::create_dir_all(&directory).map_err(text)?;
        Ok(Scratch { world, directory })
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // When the others are done, too; if one of them failed, nobody waits for it.
        if self.world.group().barrier().is_ok() && self.world.rank() == 0 {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}
