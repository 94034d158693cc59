//! Conversions that several processes share; here these are threads.

use std::fs;

use dtensor_checkpoint::{
    Error, MANIFEST_FILE, StoredType,
    convert::{ConvertOptions, PlacementPlan, to_native, to_safetensors},
};
use dtensor_testing::spmd;

use crate::convert_support::{Place, floats, names_in, open, part};

fn source(place: &Place) -> String {
    let numbers: Vec<f32> = (0..9000).map(|number| number as f32 / 3.0).collect();
    let parts = [
        floats("a", &[300, 10], &numbers[..3000]),
        floats("b", &[9000], &numbers),
        floats("empty", &[0, 4], &[]),
        floats("scalar", &[], &numbers[5..6]),
        part("bytes", StoredType::U8, &[77], (0..77).collect()),
    ];
    place.file("source.safetensors", &parts)
}

/// Whether two directories hold the same, but for the id of a save.
fn assert_same_files(one: &str, other: &str) {
    let names = names_in(one);
    assert_eq!(names, names_in(other));
    for name in names.iter().filter(|name| *name != MANIFEST_FILE) {
        let read = |directory: &str| fs::read(format!("{directory}/{name}")).unwrap();
        assert!(read(one) == read(other), "{name}");
    }
}

#[test]
fn together_they_write_what_one_writes_alone() {
    let place = Place::new();
    let source = source(&place);
    let alone = ConvertOptions { max_file_bytes: Some(13_000), ..ConvertOptions::default() };
    to_safetensors(&open(&source), &place.path("hub"), &alone).unwrap();
    let plan: PlacementPlan = "empty = R\nscalar = R\n* = S(0)".parse().unwrap();
    let mesh = "x=5".parse().unwrap();
    let alone = to_native(&open(&source), &place.path("native"), &mesh, &plan, &alone).unwrap();
    for n_ranks in [1, 2, 3, 8] {
        let (hub, one) = (place.path("hub again"), place.path("one.safetensors"));
        let native = place.path("native again");
        spmd(n_ranks, |world| {
            let options = ConvertOptions {
                max_file_bytes: Some(13_000),
                group: Some(world.group()),
                overwrite: true,
                ..ConvertOptions::default()
            };
            to_safetensors(&open(&source), &hub, &options)?;
            let converted = to_native(&open(&source), &native, &mesh, &plan, &options)?;
            assert_eq!(converted, alone);
            let options = ConvertOptions { max_file_bytes: None, ..options };
            Ok(to_safetensors(&open(&source), &one, &options)?)
        });
        assert_same_files(&hub, &place.path("hub"));
        assert_same_files(&native, &place.path("native"));
        assert!(open(&native).catalog().files.len() > 2);
        let names = place.names();
        assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
    }
}

#[test]
fn what_one_of_them_cannot_write_is_an_error_for_all_and_leaves_nothing() {
    let place = Place::new();
    let source = source(&place);
    fs::create_dir(place.path("occupied")).unwrap();
    fs::write(place.path("occupied/diary.txt"), "mine").unwrap();
    spmd(3, |world| {
        let options = ConvertOptions { group: Some(world.group()), ..ConvertOptions::default() };
        let mesh = "x=4".parse().unwrap();
        let plan = PlacementPlan::new();
        let source = open(&source);
        for overwrite in [false, true] {
            let options = ConvertOptions { overwrite, ..options.clone() };
            let target = place.path("occupied");
            let found = [
                to_safetensors(&source, &target, &options).unwrap_err(),
                to_native(&source, &target, &mesh, &plan, &options).unwrap_err(),
            ];
            for error in found {
                match world.rank() {
                    0 => assert!(!matches!(error, Error::OnRank { .. }), "{error}"),
                    _ => assert!(matches!(error, Error::OnRank { rank: 0, .. }), "{error}"),
                }
            }
        }
        Ok(())
    });
    assert_eq!(names_in(&place.path("occupied")), ["diary.txt"]);
    assert_eq!(place.names(), ["occupied", "source.safetensors"]);
}
