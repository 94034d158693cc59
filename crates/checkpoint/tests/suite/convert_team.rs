//! Work that several processes share; here these are threads.

use std::{fs, sync::Mutex};

use dtensor_checkpoint::{
    DiffOptions, Error, MANIFEST_FILE, Progress, StoredType, VerifyOptions,
    convert::{ConvertOptions, PlacementPlan, to_native, to_safetensors},
    diff, verify_at,
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

/// Some MiB in two tensors, so that there is something to share: a process does a MiB at least.
fn large(place: &Place, name: &str, wrong: &[usize]) -> String {
    let mut bytes: Vec<u8> = (0..9_u32 << 18).flat_map(|number| number.to_le_bytes()).collect();
    wrong.iter().for_each(|&position| bytes[position] ^= 1);
    let (one, other) = bytes.split_at(3 << 20);
    let parts = [
        part("one", StoredType::I32, &[3 << 10, 256], one.to_vec()),
        part("other", StoredType::I32, &[6 << 18], other.to_vec()),
    ];
    place.file(name, &parts)
}

/// Keeps the last of what is told.
#[derive(Default)]
struct Told(Mutex<Progress>);

impl Told {
    fn tell(&self, now: Progress) {
        let mut last = self.0.lock().unwrap();
        *last = Progress { done: now.done.max(last.done), ..now };
    }

    /// The bytes of this process, of which everything is done.
    fn bytes(self) -> u64 {
        let Progress { done, total } = self.0.into_inner().unwrap();
        assert_eq!(done, total);
        done
    }
}

/// Whether each of the processes has done its part of all bytes.
#[track_caller]
fn assert_fair(bytes: &[u64]) {
    let all = 9 << 20;
    assert_eq!(bytes.iter().sum::<u64>(), all);
    // Pieces are not cut, nor is what a file of our own has a checksum of.
    let fair = all / bytes.len() as u64;
    assert!(bytes.iter().all(|bytes| bytes.abs_diff(fair) <= 1 << 20), "{bytes:?}");
}

#[test]
fn all_of_them_write_to_one_file() {
    let place = Place::new();
    let source = large(&place, "source.safetensors", &[]);
    let (mesh, plan) = ("x=1".parse().unwrap(), PlacementPlan::new());
    // So many threads have pieces of no more than a MiB.
    let alone = ConvertOptions { threads: 64, ..ConvertOptions::default() };
    to_safetensors(&open(&source), &place.path("one.safetensors"), &alone).unwrap();
    to_native(&open(&source), &place.path("native"), &mesh, &plan, &alone).unwrap();
    for n_ranks in [2, 3] {
        let (one, native) = (place.path("again.safetensors"), place.path("native again"));
        let bytes = spmd(n_ranks, |world| {
            let told = [Told::default(), Told::default()];
            let tell = told.each_ref().map(|told| |now: Progress| told.tell(now));
            let options =
                ConvertOptions { group: Some(world.group()), overwrite: true, ..alone.clone() };
            let into_one = ConvertOptions { progress: Some(&tell[0]), ..options.clone() };
            to_safetensors(&open(&source), &one, &into_one)?;
            let options = ConvertOptions { progress: Some(&tell[1]), ..options };
            to_native(&open(&source), &native, &mesh, &plan, &options)?;
            Ok(told.map(Told::bytes))
        });
        assert!(fs::read(&one).unwrap() == fs::read(place.path("one.safetensors")).unwrap());
        assert_same_files(&native, &place.path("native"));
        assert!(verify_at(&native, &VerifyOptions::default()).unwrap().is_whole());
        for kind in 0..2 {
            assert_fair(&Vec::from_iter(bytes.iter().map(|bytes| bytes[kind])));
        }
    }
}

#[test]
fn what_some_of_them_find_damaged_all_of_them_know() {
    let place = Place::new();
    let source = large(&place, "source.safetensors", &[]);
    let (mesh, plan) = ("x=1".parse().unwrap(), PlacementPlan::new());
    let native = place.path("native");
    to_native(&open(&source), &native, &mesh, &plan, &ConvertOptions::default()).unwrap();
    let look = |n_ranks: usize| {
        let (reports, bytes): (Vec<_>, Vec<_>) = spmd(n_ranks, |world| {
            let told = Told::default();
            let tell = |now: Progress| told.tell(now);
            let (threads, group) = (2, Some(world.group()));
            let report =
                verify_at(&native, &VerifyOptions { threads, group, progress: Some(&tell) })?;
            Ok((report, told))
        })
        .into_iter()
        .unzip();
        let alone = verify_at(&native, &VerifyOptions::default()).unwrap();
        assert!(reports.iter().all(|report| *report == alone), "{reports:?}, and alone {alone:?}");
        (alone, bytes)
    };
    let (report, told) = look(2);
    assert!(report.is_whole());
    let bytes: Vec<u64> = told.into_iter().map(Told::bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), 9 << 20);
    assert!(bytes.iter().all(|&bytes| bytes > 0), "{bytes:?}");

    let file = names_in(&native).into_iter().find(|name| name != MANIFEST_FILE).unwrap();
    let path = format!("{native}/{file}");
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    let end = bad.len();
    for position in [end - 1, end - (5 << 20), end - (8 << 20)] {
        bad[position] ^= 1;
    }
    fs::write(&path, &bad).unwrap();
    for n_ranks in [2, 3] {
        assert_eq!(look(n_ranks).0.damage.len(), 3);
    }
    // The header, and the end of the file.
    for broken in [&[&[1], &good[1..]].concat(), &good[..end - 1]] {
        fs::write(&path, broken).unwrap();
        assert_eq!(look(3).0.damage.len(), 1);
    }
    fs::remove_file(&path).unwrap();
    assert!(!look(3).0.is_whole());
}

#[test]
fn together_they_find_the_differences_that_one_finds() {
    let place = Place::new();
    let (a, b) = (
        large(&place, "a.safetensors", &[]),
        large(&place, "b.safetensors", &[0, 4, 3 << 20, (9 << 20) - 4]),
    );
    let alone = diff(&open(&a), &open(&b), &DiffOptions::default()).unwrap();
    let beyond = |name: &str| alone.tensors[name].difference.unwrap().beyond;
    assert_eq!((beyond("one"), beyond("other")), (2, 2));
    for n_ranks in [1, 2, 3] {
        let bytes = spmd(n_ranks, |world| {
            let told = Told::default();
            let tell = |now: Progress| told.tell(now);
            let (threads, group) = (64, Some(world.group()));
            let options =
                DiffOptions { threads, group, progress: Some(&tell), ..DiffOptions::default() };
            assert_eq!(diff(&open(&a), &open(&b), &options)?, alone);
            Ok(told.bytes())
        });
        assert_fair(&bytes);
    }
}
