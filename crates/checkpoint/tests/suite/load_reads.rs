//! How files are read: each byte once over all ranks, and in few calls.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use dtensor_checkpoint::{
    Catalog, Error, LoadOptions, MANIFEST_FILE, Reader, Storage, StoredType, VerifyOptions,
    load_from, verify,
};
use dtensor_layout::IndexBox;
use dtensor_testing::spmd;

use crate::{
    load_support::{Counts, Files, check, layouts_of, state_of},
    load_written::{Whole, write},
};

fn written(tensors: &[Whole], block: usize) -> Files {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), tensors, &[], block);
    Files::of(dir.path())
}

/// Loads on so many ranks, and gives the reads that all of them have made.
fn reads(files: &Files, tensors: &[Whole], n_ranks: usize, layout: &str) -> Arc<Counts> {
    let files = Files { counts: Arc::default(), ..files.clone() };
    let layouts = layouts_of(tensors, n_ranks, layout);
    spmd(n_ranks, |world| {
        let mut state = state_of(world, tensors.iter().zip(&layouts))?;
        load_from(world, &mut state, Arc::new(files.clone()), &LoadOptions::default())?;
        check(world, &state, tensors.iter().zip(&layouts));
        Ok(())
    });
    files.counts
}

#[test]
fn every_byte_is_read_once_over_all_ranks() {
    let tensors = [
        Whole::new("a", StoredType::F32, &[40, 9]).cut(0, &[13, 27]),
        Whole::new("b", StoredType::F32, &[7, 30]).cut(1, &[11, 19]),
    ];
    for block in [64, 1 << 20] {
        let files = written(&tensors, block);
        for n_ranks in [1, 2, 3, 4] {
            for layout in ["[R]", "[S(0)]", "[S(1)]"] {
                let counts = reads(&files, &tensors, n_ranks, layout);
                // The length of a header is read before the header, and with it.
                assert_eq!(counts.bytes.load(Relaxed), files.total() + 2 * 8, "{n_ranks} {layout}");
            }
        }
    }
}

#[test]
fn blocks_that_threads_read_at_the_same_time_arrive_once_and_the_first_damage_is_told() {
    let large = Whole::new("large", StoredType::F32, &[1300, 1000]).cut(0, &[600, 700]);
    let tensors = [Whole::new("before", StoredType::F32, &[5]), large];
    let files = written(&tensors, 1 << 20);
    let counts = reads(&files, &tensors, 1, "[R]");
    assert_eq!(counts.bytes.load(Relaxed), files.total() + 2 * 8);

    let name = files.files.keys().find(|name| *name != MANIFEST_FILE).unwrap();
    let mut damaged = files.files[name].to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    damaged[last - (1 << 20)] ^= 1;
    let damaged = files.with(name, damaged);
    let layouts = layouts_of(&tensors, 1, "[R]");
    spmd(1, |world| {
        let mut state = state_of(world, tensors.iter().zip(&layouts))?;
        for _ in 0..20 {
            let found =
                load_from(world, &mut state, Arc::new(damaged.clone()), &LoadOptions::default());
            let Err(Error::Damaged { what, .. }) = found else { panic!("{found:?}") };
            let end: usize =
                what.trim_end_matches(')').rsplit("..").next().unwrap().parse().unwrap();
            assert!(end <= last, "{what}");
        }
        Ok(())
    });
}

#[test]
fn thousands_of_small_tensors_are_few_reads() {
    let tensor = |index: usize| {
        Whole::new(&format!("layer.{index}"), StoredType::F32, &[4, 8]).cut(0, &[2, 2])
    };
    let tensors: Vec<Whole> = (0..2000).map(tensor).collect();
    let files = written(&tensors, 1 << 20);
    for (n_ranks, layout) in [(1, "[R]"), (2, "[S(0)]"), (2, "[S(1)]"), (4, "[R]")] {
        let counts = reads(&files, &tensors, n_ranks, layout);
        assert!(counts.reads.load(Relaxed) <= 8, "{} reads", counts.reads.load(Relaxed));
    }
}

#[test]
fn tensors_that_are_not_asked_for_are_not_read() {
    let [large, small] =
        [Whole::new("large", StoredType::F32, &[4000]), Whole::new("small", StoredType::F32, &[3])];
    let files = written(&[large, small.clone()], 1 << 20);
    let counts = reads(&files, &[small], 2, "[R]");
    assert!(counts.bytes.load(Relaxed) < files.total() - 15_000);
}

#[test]
fn any_box_is_read_and_only_the_blocks_that_hold_it() {
    let whole = Whole::new("a", StoredType::I32, &[9, 4, 10]).cut(1, &[1, 3]);
    let files = written(std::slice::from_ref(&whole), 64);
    let catalog = Arc::new(Catalog::open(&files).unwrap());
    let reader = Reader::new(Arc::new(files.clone()), catalog);
    for part in [
        [0..9, 0..4, 0..10],
        [3..4, 0..2, 5..9],
        [8..9, 3..4, 9..10],
        [0..9, 1..1, 0..10],
        [2..7, 1..4, 0..10],
    ] {
        let mut bytes = vec![0; part.iter().map(std::ops::Range::len).product::<usize>() * 4];
        reader.read_box("a", &IndexBox(part.to_vec()), &mut bytes).unwrap();
        assert_eq!(bytes, whole.part(&part));
    }
    let before = files.counts.bytes.load(Relaxed);
    reader.read_box("a", &IndexBox(vec![4..5, 2..3, 0..1]), &mut [0; 4]).unwrap();
    assert_eq!(files.counts.bytes.load(Relaxed) - before, 64);
    for (part, bytes) in
        [(vec![0..9, 0..4], 4), (vec![0..10, 0..1, 0..1], 40), (vec![0..1, 0..1, 0..1], 5)]
    {
        reader.read_box("a", &IndexBox(part), &mut vec![0; bytes]).unwrap_err();
    }
    reader.read_box("b", &IndexBox(Vec::new()), &mut [0; 4]).unwrap_err();
}

#[test]
fn verifying_reads_every_byte_and_lists_all_damage() {
    let tensors = [
        Whole::new("a", StoredType::F32, &[40, 9]).cut(0, &[13, 27]),
        Whole::new("b", StoredType::F32, &[7, 30]).cut(1, &[11, 19]),
    ];
    let files = written(&tensors, 64);
    let catalog = Arc::new(Catalog::open(&files).unwrap());
    let look = |files: Files| {
        let files: Arc<dyn Storage> = Arc::new(files);
        verify(&catalog, &files, &VerifyOptions { threads: 2, ..VerifyOptions::default() }).unwrap()
    };
    let before = files.counts.bytes.load(Relaxed);
    let report = look(files.clone());
    assert!(report.is_whole());
    assert_eq!((report.files, report.tensors, report.unverified_bytes), (3, 2, 0));
    assert_eq!(report.verified_bytes, 4 * (40 * 9 + 7 * 30));
    assert_eq!(files.counts.bytes.load(Relaxed) - before, files.total() + 2 * 8);

    let (name, bytes) = files.files.iter().find(|(name, _)| *name != MANIFEST_FILE).unwrap();
    let mut damaged = bytes.to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    damaged[last - 200] ^= 16;
    let report = look(files.with(name, damaged));
    assert_eq!(report.damage.len(), 2, "{:?}", report.damage);
    assert!(report.damage.iter().all(|error| error.to_string().contains(name.as_str())));
    assert!(!look(files.without(name)).is_whole());
    assert!(!look(files.with(name, bytes[..last].to_vec())).is_whole());
}
