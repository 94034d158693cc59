//! Checkpoints in object stores: the one in memory.

use std::sync::{Arc, Mutex};

use dtensor::{DTensor, DType, DeviceMesh, Placement::*, World, zeros};
use dtensor_checkpoint::{
    AsyncSaver, Entry, Error, LoadOptions, MANIFEST_FILE, Manifest, NewCheckpoint, SaveOptions,
    Series, Source, State, Storage, async_save,
    convert::{ConvertOptions, to_safetensors},
    load, save,
    storage::{self, ObjectFiles},
};
use dtensor_testing::{Failure, spmd};

use crate::saved::{elements, numbered, small_state};

fn content(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn manifest(url: &str) -> Manifest {
    let storage = storage::open(url).unwrap();
    Manifest::parse(MANIFEST_FILE, &content(&*storage, MANIFEST_FILE)).unwrap()
}

fn large(world: &World) -> Result<DTensor, Failure> {
    numbered(world, &[3 << 20], 3, Shard(0))
}

#[test]
fn a_checkpoint_is_uploaded_in_parts_and_read_in_ranges() {
    let url = "memory://parts/runs/model";
    spmd(2, |world| {
        let mut state = State::new();
        state.insert("large", large(world)?)?;
        Ok(save(world, &state, url, &SaveOptions::default())?)
    });
    let manifest = manifest(url);
    assert_eq!(manifest.files.len(), 2);
    assert_eq!(manifest.bytes, 24 << 20);
    let storage = storage::open(url).unwrap();
    let names: Vec<String> = storage.list().unwrap().into_iter().map(|file| file.name).collect();
    assert_eq!(names, [MANIFEST_FILE]);
    let mut data = Vec::new();
    for record in &manifest.files {
        assert!(record.name.starts_with(&format!("{}/shard-", manifest.id)));
        let file = content(&*storage, &record.name);
        assert_eq!(file.len() as u64, record.size);
        let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(dtensor_checkpoint::hash::xxh3(&file[..start]), record.header_hash);
        data.extend_from_slice(&file[start..]);
    }
    assert!(data == crate::saved::as_bytes(&elements(3 << 20, 3)));
    let file = storage.open(&manifest.files[0].name).unwrap();
    assert!(matches!(file.read_at(file.size() - 3, &mut [0; 4]), Err(Error::Broken { .. })));
    let missing = storage.open("nothing").err().unwrap();
    assert!(matches!(missing, Error::Io { kind: std::io::ErrorKind::NotFound, .. }), "{missing}");
}

#[test]
fn a_new_manifest_replaces_the_old_checkpoint_and_its_files_go() {
    let url = "memory://replace/model";
    let mut ids: Vec<String> = Vec::new();
    for version in 1..=3 {
        spmd(2, |world| {
            let state = small_state(world, version)?;
            match version {
                2 => AsyncSaver::new().save(world, &state, url, &SaveOptions::default())?.wait()?,
                _ => save(world, &state, url, &SaveOptions::default())?,
            };
            Ok(())
        });
        let manifest = manifest(url);
        let storage = storage::open(url).unwrap();
        manifest.files.iter().for_each(|file| drop(content(&*storage, &file.name)));
        for old in &ids {
            let old = ObjectFiles::open(&format!("{url}/{old}")).unwrap();
            assert!(old.list().unwrap().is_empty());
        }
        let notes = ObjectFiles::open(&format!("{url}/notes-{}", manifest.id)).unwrap();
        assert!(notes.list().unwrap().is_empty());
        assert_eq!(manifest.values["version"], version.into());
        ids.push(manifest.id);
    }
}

/// The id of a save of another process.
const THEIRS: &str = "0123456789abcdef";

/// What another process writes that saves to this place: it has not begun in this one.
fn theirs(url: &str) -> Box<dyn NewCheckpoint> {
    let theirs = storage::destination(url).unwrap().new_checkpoint(THEIRS, true);
    let mut file = theirs.create("shard", 3).unwrap();
    file.write_at(0, b"abc").unwrap();
    file.finish().unwrap();
    theirs
}

#[test]
fn a_save_in_a_store_leaves_what_another_process_is_writing() {
    let url = "memory://leaves/model";
    let theirs = theirs(url);
    spmd(2, |world| Ok(save(world, &small_state(world, 1)?, url, &SaveOptions::default())?));
    let kept = ObjectFiles::open(&format!("{url}/{THEIRS}")).unwrap();
    assert_eq!(kept.list().unwrap().len(), 1);
    // It has not seen what is there now.
    let error = theirs.commit(b"{}").unwrap_err();
    assert_eq!(error, Error::Overtaken { path: url.into() });
    assert_eq!(manifest(url).values["version"], 1.into());
}

#[test]
fn a_save_in_a_store_that_was_overtaken_is_given_up_on_all_ranks() {
    let url = "memory://overtaken/model";
    let other = "memory://overtaken/other";
    spmd(1, |world| Ok(save(world, &small_state(world, 7)?, other, &SaveOptions::default())?));
    let text = content(&*storage::open(other).unwrap(), MANIFEST_FILE);
    let errors = spmd(2, |world| {
        let (theirs, text) = (theirs(url), text.clone());
        // While this one writes.
        let commit = move |_| theirs.commit(&text).unwrap();
        let options = match world.rank() {
            0 => SaveOptions::default().progress(commit),
            _ => SaveOptions::default(),
        };
        Ok(save(world, &small_state(world, 2)?, url, &options).unwrap_err())
    });
    assert_eq!(errors, vec![Error::Overtaken { path: url.into() }; 2]);
    assert_eq!(manifest(url).values["version"], 7.into());
}

#[test]
fn a_second_save_to_a_store_is_refused_while_one_is_under_way() {
    let url = "memory://busy/model";
    spmd(2, |world| {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let held = Arc::clone(&gate);
        let options = SaveOptions::default().progress(move |_| drop(held.lock()));
        let saving = async_save(world, &small_state(world, 1)?, url, &options)?;
        let state = small_state(world, 2)?;
        let error = save(world, &state, url, &SaveOptions::default()).unwrap_err();
        assert_eq!(error, Error::Busy { path: url.into() });
        world.group().barrier()?;
        drop(closed);
        saving.wait()?;
        world.group().barrier()?;
        Ok(save(world, &state, url, &SaveOptions::default())?)
    });
    assert_eq!(manifest(url).values["version"], 2.into());
}

#[test]
fn what_is_no_checkpoint_is_not_overwritten_in_a_store_either() {
    // A series is not a checkpoint.
    let series = Series::new("memory://occupied/run");
    let errors = spmd(2, |world| {
        series.save(world, &small_state(world, 1)?, 1, &SaveOptions::default())?;
        Ok(save(world, &small_state(world, 1)?, "memory://occupied/run", &SaveOptions::default())
            .unwrap_err())
    });
    assert!(matches!(errors[0], Error::Occupied { .. }), "{}", errors[0]);
    assert!(matches!(errors[1], Error::OnRank { rank: 0, .. }), "{}", errors[1]);
    assert_eq!(series.latest().unwrap(), Some(1));
}

#[test]
fn a_series_in_a_store_keeps_the_last_ones() {
    let series = Series::new("memory://series/run").keep(2);
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        state.insert("w", zeros(&[10], DType::F32, &mesh, &[Shard(0)])?)?;
        for step in [1, 2, 3] {
            series.save(world, &state, step, &SaveOptions::default())?;
        }
        Ok(())
    });
    assert_eq!(series.steps().unwrap(), [2, 3]);
    assert_eq!(series.latest().unwrap(), Some(3));
}

#[test]
fn an_unknown_scheme_is_an_error_on_every_rank() {
    let errors = spmd(2, |world| {
        Ok(save(world, &small_state(world, 1)?, "ftp://x/y", &SaveOptions::default()).unwrap_err())
    });
    assert!(matches!(errors[0], Error::NoCheckpoint { .. }), "{}", errors[0]);
}

/// A state of zeros, to be loaded into.
fn blank(world: &World, placement: dtensor::Placement) -> Result<State, Failure> {
    let mesh = DeviceMesh::of_world(world, "x")?;
    let mut state = State::new();
    for (name, shape) in
        [("model.rows", &[5, 3][..]), ("model.copied", &[4]), ("model.columns", &[2, 7])]
    {
        let placement = if shape.len() == 1 { Replicate } else { placement };
        state.insert(name, zeros(shape, DType::I64, &mesh, &[placement])?)?;
    }
    state.insert("version", 0)?;
    Ok(state)
}

/// Loads what `small_state` was saved to a URL, on so many ranks.
#[track_caller]
fn check_loads(url: &str, ranks: usize, version: i64) {
    spmd(ranks, |world| {
        for placement in [Shard(0), Shard(1), Replicate] {
            let mut state = blank(world, placement)?;
            load(world, &mut state, url, &LoadOptions::default())?;
            assert_eq!(state.value("version"), Some(&version.into()));
            for (name, entry) in state.iter() {
                let Entry::Tensor(tensor) = entry else { continue };
                let whole = tensor.full_tensor()?;
                let want = crate::saved::as_bytes(&elements(whole.numel(), version));
                assert_eq!(whole.as_bytes()?, want, "{name}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_checkpoint_in_a_store_is_loaded_on_other_ranks_in_other_layouts() {
    let url = "memory://load/model";
    spmd(2, |world| Ok(save(world, &small_state(world, 4)?, url, &SaveOptions::default())?));
    for ranks in [1, 2, 3] {
        check_loads(url, ranks, 4);
    }
}

#[test]
fn files_of_whole_tensors_are_written_to_a_store_and_loaded_from_it() {
    let url = "memory://whole/saved";
    spmd(2, |world| Ok(save(world, &small_state(world, 5)?, url, &SaveOptions::default())?));
    let source = Source::open(url).unwrap();
    for (target, most, n_files) in [
        ("memory://whole/model.safetensors", None, 1),
        ("memory://whole/one", None, 1),
        ("memory://whole/many", Some(50), 4),
    ] {
        let options = ConvertOptions { max_file_bytes: most, ..ConvertOptions::default() };
        to_safetensors(&source, target, &options).unwrap();
        check_loads(target, 2, 5);
        if most.is_some() || !target.ends_with(".safetensors") {
            assert_eq!(storage::open(target).unwrap().list().unwrap().len(), n_files, "{target}");
        }
        let again = to_safetensors(&source, target, &options).unwrap_err();
        assert_eq!(again, Error::Exists { path: target.into() });
    }
    // Fewer files take the place of many.
    let options = ConvertOptions { overwrite: true, ..ConvertOptions::default() };
    to_safetensors(&source, "memory://whole/many", &options).unwrap();
    let left = storage::open("memory://whole/many").unwrap().list().unwrap();
    let names: Vec<&str> = left.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["model.safetensors"]);
    check_loads("memory://whole/many", 2, 5);
    // The source is not what is replaced, nor what holds it.
    for target in [url, "memory://whole", "memory://whole/saved/inside"] {
        let error = to_safetensors(&source, target, &options).unwrap_err();
        assert!(matches!(error, Error::SamePlace { .. }), "{target}: {error}");
    }
}

#[test]
fn a_conversion_to_a_store_that_fails_leaves_nothing() {
    let url = "memory://fails/saved";
    spmd(1, |world| Ok(save(world, &small_state(world, 5)?, url, &SaveOptions::default())?));
    let source = Source::open(url).unwrap();
    let file = manifest(url).files[0].name.clone();
    // Its tensors are gone, after its headers were read.
    let (id, name) = file.split_once('/').unwrap();
    storage::destination(url).unwrap().new_checkpoint(id, true).discard(name);
    let options = ConvertOptions { max_file_bytes: Some(50), ..ConvertOptions::default() };
    to_safetensors(&source, "memory://fails/whole", &options).unwrap_err();
    assert!(storage::open("memory://fails/whole").unwrap().list().unwrap().is_empty());
}

#[test]
fn a_load_gives_the_old_or_the_new_one() {
    crate::replaced::load_while_it_is_saved("memory://replaced/model");
}

#[test]
fn objects_that_are_gone_with_their_checkpoint_are_not_missing_but_replaced() {
    let url = "memory://gone/model";
    let save_one = |version| {
        spmd(2, |world| {
            Ok(save(world, &small_state(world, version)?, url, &SaveOptions::default())?)
        });
    };
    save_one(1);
    let storage = storage::open(url).unwrap();
    let old = manifest(url).files.remove(0).name;
    let open = storage.open(&old).unwrap();
    save_one(2);
    let replaced = Error::Replaced { path: url.to_owned() };
    assert_eq!(storage.open(&old).err(), Some(replaced.clone()));
    assert_eq!(open.read_at(0, &mut [0; 8]), Err(replaced));
}
