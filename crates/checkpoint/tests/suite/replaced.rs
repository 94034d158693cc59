//! Checkpoints that are replaced while they are read: old or new, never a bit of both.

use std::{sync::mpsc, thread};

use dtensor::{Placement, World};
use dtensor_checkpoint::{
    Catalog, Error, LoadOptions, LocalFiles, MANIFEST_FILE, Reader, SaveOptions, Source, State,
    Storage, Value, VerifyOptions,
    convert::{ConvertOptions, to_safetensors},
    load, read_tensors, save, verify_at,
};
use dtensor_layout::IndexBox;
use dtensor_testing::{Failure, spmd};

use crate::saved::{as_bytes, elements, numbered, place, small_state};

fn save_version(place: &str, n_ranks: usize, version: i64) {
    spmd(n_ranks, |world| {
        let state = small_state(world, version)?;
        Ok(save(world, &state, place, &SaveOptions::default().sync(false))?)
    });
}

/// Loads the small state, cut in another way, and checks that it is of one version.
fn load_whole(world: &World, place: &str, verify: bool) -> Result<i64, Failure> {
    let mut state = State::new();
    state.insert("model.rows", numbered(world, &[5, 3], -1, Placement::Shard(1))?)?;
    state.insert("model.copied", numbered(world, &[4], -1, Placement::Shard(0))?)?;
    state.insert("model.columns", numbered(world, &[2, 7], -1, Placement::Replicate)?)?;
    state.insert("version", -1)?;
    load(world, &mut state, place, &LoadOptions { verify, ..LoadOptions::default() })?;
    let Some(Value::Int(version)) = state.value("version").cloned() else { panic!("no version") };
    for (name, numel) in [("model.rows", 15), ("model.copied", 4), ("model.columns", 14)] {
        let tensor = state.tensor(name).unwrap().full_tensor()?;
        assert_eq!(tensor.to_vec::<i64>()?, elements(numel, version), "{name} of {version}");
    }
    Ok(version)
}

/// Does something a number of times, each time while two saves are made.
fn while_it_is_saved(place: &str, times: i64, mut act: impl FnMut(i64)) {
    save_version(place, 3, 0);
    thread::scope(|scope| {
        let (asked, asks) = mpsc::channel();
        scope.spawn(move || {
            // Until nobody asks any more.
            for version in asks {
                save_version(place, 3, version);
            }
        });
        // Dropped at the end, however this ends.
        let asked = asked;
        for round in 0..times {
            for version in [2 * round + 1, 2 * round + 2] {
                asked.send(version).unwrap();
            }
            act(round);
        }
    });
}

/// Loads while it is saved, with and without a look at the checksums.
pub fn load_while_it_is_saved(place: &str) {
    let mut last = 0;
    while_it_is_saved(place, 120, |round| {
        let found = spmd(2, |world| load_whole(world, place, round % 2 == 0));
        assert_eq!(found[0], found[1], "the ranks have loaded different checkpoints");
        assert!(last <= found[0], "{found:?} after {last}");
        last = found[0];
    });
}

#[test]
fn a_load_gives_the_old_or_the_new_one_on_all_ranks_alike() {
    let (_directory, _, place) = place();
    load_while_it_is_saved(&place);
}

#[test]
fn what_was_opened_is_read_to_its_end() {
    let (_directory, path, place) = place();
    save_version(&place, 3, 1);
    let (storage, catalog) = Catalog::open_path(&path).unwrap();
    save_version(&place, 3, 2);
    let mut bytes = vec![0; 15 * 8];
    // Without checksums nothing else would tell.
    let reader = Reader::new(storage, catalog.into()).verifying(false);
    reader.read_box("model.rows", &IndexBox(vec![0..5, 0..3]), &mut bytes).unwrap();
    assert_eq!(bytes, as_bytes(&elements(15, 1)));
}

#[test]
fn one_file_is_read_to_its_end_though_another_has_its_name() {
    let (directory, _, place) = place();
    let file = directory.path().join("model.safetensors");
    let file = file.to_str().unwrap();
    let convert = |version| {
        save_version(&place, 2, version);
        let options = ConvertOptions { overwrite: true, ..ConvertOptions::default() };
        to_safetensors(&Source::open(&place).unwrap(), file, &options).unwrap();
    };
    convert(1);
    let (storage, catalog) = Catalog::open_path(file).unwrap();
    convert(2);
    assert!(matches!(storage.check_held(), Err(Error::Replaced { .. })));
    let mut bytes = vec![0; 15 * 8];
    let reader = Reader::new(storage, catalog.into());
    reader.read_box("model.rows", &IndexBox(vec![0..5, 0..3]), &mut bytes).unwrap();
    assert_eq!(bytes, as_bytes(&elements(15, 1)));
}

#[test]
fn files_that_are_gone_with_their_checkpoint_are_not_missing_but_replaced() {
    let (_directory, _, place) = place();
    save_version(&place, 2, 1);
    let held = LocalFiles::new(&place).hold().unwrap().unwrap();
    let names: Vec<String> = held.list().unwrap().into_iter().map(|file| file.name).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(held.check_held(), Ok(()));
    save_version(&place, 2, 2);
    let replaced = Error::Replaced { path: place.clone() };
    for name in names.iter().map(String::as_str).chain([MANIFEST_FILE]) {
        assert_eq!(held.open(name).err(), Some(replaced.clone()), "{name}");
    }
    assert_eq!(held.list(), Err(replaced.clone()));
    assert_eq!(held.check_held(), Err(replaced));
    // What was never there is no sign of anything.
    let held = LocalFiles::new(&place).hold().unwrap().unwrap();
    let missing = held.open("nothing").err().unwrap();
    assert!(matches!(missing, Error::Io { kind: std::io::ErrorKind::NotFound, .. }), "{missing}");
}

#[test]
fn verifying_and_reading_whole_tensors_begin_again() {
    let (_directory, _, place) = place();
    while_it_is_saved(&place, 60, |_| {
        let report = verify_at(&place, &VerifyOptions::default()).unwrap();
        assert!(report.is_whole(), "{:?}", report.damage);
        let rows = read_tensors(&place).unwrap()["model.rows"].to_vec::<i64>().unwrap();
        assert_eq!(rows, elements(15, rows[0]));
    });
}
