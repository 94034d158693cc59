//! How much memory saving, loading and converting take, each in a process of its own, where no other test takes any.

use std::{env, fs, process::Command};

use dtensor::{DTensor, DType, DeviceMesh, Placement::*, World, zeros};
use dtensor_checkpoint::{
    LoadOptions, SaveOptions, Source, State, StoredType, async_save,
    convert::{ConvertOptions, PlacementPlan, to_native, to_safetensors},
    load, save,
};
use dtensor_layout::Mesh;
use dtensor_testing::{Failure, spmd};

use crate::convert_support::{Part, Place, part};

const MIB: u64 = 1 << 20;

/// What makes a process of this binary one that is measured.
const CHILD: &str = "DTENSOR_TEST_MEMORY_CHILD";

/// Whatever is not in proportion to the checkpoint: threads, their buffers, headers.
const CONSTANT: u64 = 40 * MIB;

/// Runs a test of this file again, in a process of its own, and gives the bytes that it says it took at the most.
fn in_a_process_of_its_own(test: &str) -> u64 {
    let mut child = Command::new(env::current_exe().unwrap());
    let name = format!("memory::{test}");
    let output = child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let extra = text.lines().find_map(|line| line.split_once("extra ")?.1.trim().parse().ok());
    extra.unwrap_or_else(|| panic!("{output:?}"))
}

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// What this process has at the most while it does something, beyond what it has before.
fn measure<T>(act: impl FnOnce() -> T) -> (T, u64) {
    // From here on the most is what there is.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:");
    let result = act();
    (result, status("VmHWM:").saturating_sub(before))
}

fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn conversion_takes_less_than_two_chunks_and_not_the_model() {
    let (chunk, n_chunks) = (64 * MIB, 3);
    if is_child() {
        let place = Place::new();
        fs::create_dir(place.path("cut")).unwrap();
        let rows = n_chunks as usize;
        for row in 0..rows {
            let bytes = vec![row as u8; chunk as usize];
            let cut = part("w", StoredType::U8, &[1, chunk as usize], bytes);
            let cut = Part { offsets: Some(vec![row, 0]), ..cut };
            place.file(&format!("cut/part-{row}.safetensors"), &[cut]);
        }
        let source = Source::open(&place.path("cut")).unwrap();
        let options = ConvertOptions { threads: 4, ..ConvertOptions::default() };
        let ((), extra) = measure(|| {
            to_safetensors(&source, &place.path("whole.safetensors"), &options).unwrap();
            // Cut the other way.
            let mesh = Mesh::from_sizes(&[3]).unwrap();
            let plan: PlacementPlan = "w = S(1)".parse().unwrap();
            to_native(&source, &place.path("native"), &mesh, &plan, &options).unwrap();
        });
        return println!("extra {extra}");
    }
    let extra = in_a_process_of_its_own("conversion_takes_less_than_two_chunks_and_not_the_model");
    assert!(extra < 2 * chunk, "{} MiB", extra / MIB);
}

/// A state of one tensor of so many MiB.
fn state_of(world: &World, mebibytes: usize, dim: usize) -> Result<State, Failure> {
    let mesh = DeviceMesh::of_world(world, "x")?;
    let mut state = State::new();
    let mut tensor = zeros(&[512, mebibytes * 512], DType::F32, &mesh, &[Shard(dim)])?;
    // Memory that nobody has touched is none.
    tensor.modify_local(|local| {
        local.as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    })?;
    state.insert("w", tensor)?;
    Ok(state)
}

#[test]
fn loading_takes_some_buffers_beside_the_state() {
    const RANKS: usize = 2;
    if is_child() {
        let place = Place::new();
        let path = place.path("model");
        spmd(RANKS, |world| {
            save(world, &state_of(world, 192, 0)?, &path, &SaveOptions::default().sync(false))?;
            // As it was cut, and cut the other way.
            let mut states = [state_of(world, 192, 0)?, state_of(world, 192, 1)?];
            world.group().barrier()?;
            let load = || {
                for state in &mut states {
                    load(world, state, &path, &LoadOptions::default())?;
                    world.group().barrier()?;
                }
                Ok::<_, Failure>(())
            };
            // Of the whole process; the others do the same meanwhile.
            let (outcome, extra) = measure(load);
            if world.rank() == 0 {
                println!("extra {extra}");
            }
            outcome
        });
        return;
    }
    let extra = in_a_process_of_its_own("loading_takes_some_buffers_beside_the_state");
    assert!(extra < RANKS as u64 * 64 * MIB, "{} MiB", extra / MIB);
}

#[test]
fn saving_takes_some_buffers_beside_the_state() {
    const RANKS: usize = 2;
    if is_child() {
        let place = Place::new();
        let path = place.path("model");
        spmd(RANKS, |world| {
            let mut state = state_of(world, 192, 0)?;
            // Also one whose elements do not lie in the order of the file.
            let mesh = DeviceMesh::of_world(world, "x")?;
            let turned = state_of(world, 192, 0)?.tensor("w").unwrap().to_local();
            let turned = turned.transpose(0, 1)?;
            state.insert("turned", DTensor::from_local(&turned, &mesh, &[Shard(1)])?)?;
            world.group().barrier()?;
            let save = || {
                for sync in [true, false] {
                    save(world, &state, &path, &SaveOptions::default().sync(sync))?;
                    world.group().barrier()?;
                }
                Ok::<_, Failure>(())
            };
            // Of the whole process; the others do the same meanwhile.
            let (outcome, extra) = measure(save);
            if world.rank() == 0 {
                println!("extra {extra}");
            }
            outcome
        });
        return;
    }
    let extra = in_a_process_of_its_own("saving_takes_some_buffers_beside_the_state");
    assert!(extra < RANKS as u64 * 64 * MIB, "{} MiB", extra / MIB);
}

#[test]
fn saving_in_the_background_takes_one_copy_of_the_state() {
    if is_child() {
        let place = Place::new();
        let path = place.path("model");
        spmd(2, |world| {
            let state = state_of(world, 96, 0)?;
            world.group().barrier()?;
            let save = || {
                async_save(world, &state, &path, &SaveOptions::default().sync(false))?.wait()?;
                world.group().barrier()?;
                Ok::<_, Failure>(())
            };
            // Of the whole process; the others do the same meanwhile.
            let (outcome, extra) = measure(save);
            if world.rank() == 0 {
                println!("extra {extra}");
            }
            outcome
        });
        return;
    }
    let extra = in_a_process_of_its_own("saving_in_the_background_takes_one_copy_of_the_state");
    assert!(extra < 96 * MIB + CONSTANT, "{} MiB", extra / MIB);
}
