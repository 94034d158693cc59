//! Conversion in pieces: whatever the source is cut into, little is read twice and little is kept.

use std::sync::{Arc, Mutex};

use dtensor_checkpoint::{
    Catalog, LocalFiles, Progress, Source, StoredType,
    convert::{ConvertOptions, PlacementPlan, to_native, to_safetensors},
};
use dtensor_layout::Mesh;
use proptest::prelude::*;

use crate::convert_support::{Counting, Part, Place, assert_same, bytes_of, open, part};

/// Elements whose bytes tell where they are.
fn numbered(
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    width: usize,
) -> Vec<u8> {
    rows.flat_map(|row| columns.clone().map(move |column| (row * width + column) as u32))
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// A matrix cut into boxes at these rows and columns, each in a file of its own.
fn cut(place: &Place, shape: [usize; 2], row_cuts: &[usize], column_cuts: &[usize]) -> String {
    let ends = |cuts: &[usize], size: usize| [&[0], cuts, &[size]].concat();
    let (rows, columns) = (ends(row_cuts, shape[0]), ends(column_cuts, shape[1]));
    std::fs::create_dir(place.path("cut")).unwrap();
    let mut number = 0;
    for rows in rows.windows(2) {
        for columns in columns.windows(2) {
            number += 1;
            let bytes = numbered(rows[0]..rows[1], columns[0]..columns[1], shape[1]);
            let size = [rows[1] - rows[0], columns[1] - columns[0]];
            let offsets = Some(vec![rows[0], columns[0]]);
            let part = Part { offsets, ..part("w", StoredType::U32, &size, bytes) };
            place.file(&format!("cut/part-{number}.safetensors"), &[part]);
        }
    }
    place.path("cut")
}

/// The same checkpoint with its reads counted.
fn counted(path: &str) -> (Source, Arc<Mutex<Vec<usize>>>) {
    let reads = Arc::new(Mutex::new(Vec::new()));
    let storage = Arc::new(Counting { files: LocalFiles::new(path), reads: reads.clone() });
    let catalog = Catalog::open(&*storage).unwrap();
    reads.lock().unwrap().clear();
    (Source::new(storage, catalog), reads)
}

#[test]
fn columns_and_rows_stream_in_reads_of_some_mebibytes() {
    // 24 MiB, and rows that are no part of a block.
    let shape = [2048, 3072];
    for (rows, columns) in [(vec![], vec![1000]), (vec![700, 701], vec![]), (vec![100], vec![2047])]
    {
        let place = Place::new();
        let source = cut(&place, shape, &rows, &columns);
        let (counted, reads) = counted(&source);
        let target = place.path("whole.safetensors");
        let latest = Mutex::new(Progress::default());
        let progress = |now: Progress| {
            let mut latest = latest.lock().unwrap();
            *latest = Progress { done: latest.done.max(now.done), ..now };
        };
        let options =
            ConvertOptions { threads: 2, progress: Some(&progress), ..ConvertOptions::default() };
        to_safetensors(&counted, &target, &options).unwrap();
        let bytes = shape[0] * shape[1] * 4;
        let reads = reads.lock().unwrap();
        // Of columns, the ends of what a piece needs are read twice.
        let read = reads.iter().sum::<usize>();
        assert!(read == bytes || !columns.is_empty() && read < 2 * bytes, "{read} of {bytes}");
        assert!(reads.iter().all(|&read| read <= 4 << 20), "{:?}", reads.iter().max());
        let (done, total) = (bytes as u64, bytes as u64);
        assert_eq!(*latest.lock().unwrap(), Progress { done, total });
        assert!(bytes_of(&open(&target), "w") == numbered(0..shape[0], 0..shape[1], shape[1]));
    }
}

#[test]
fn blocks_with_checksums_are_read_once_where_both_are_cut_alike() {
    let place = Place::new();
    let mesh = Mesh::new(&[("dp", 3)]).unwrap();
    let source = cut(&place, [1000, 3000], &[], &[]);
    let options = ConvertOptions::default();
    to_native(&open(&source), &place.path("native"), &mesh, &PlacementPlan::new(), &options)
        .unwrap();
    let (counted, reads) = counted(&place.path("native"));
    to_safetensors(&counted, &place.path("whole.safetensors"), &options).unwrap();
    assert_eq!(reads.lock().unwrap().iter().sum::<usize>(), 12_000_000);
    assert_same(&source, &place.path("whole.safetensors"));
}

fn cuts(size: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(1..size, 0..4).prop_map(|cuts| cuts.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// So many threads that pieces are as small as they get, and every part is cut.
    #[test]
    fn any_cut_becomes_any_other(
        (rows, columns) in (cuts(90), cuts(1100)),
        mesh in prop::sample::select(vec!["a=1", "a=3", "a=2,b=2", "a=4,b=2"]),
        placement in prop::sample::select(vec!["S(0)", "S(1)", "R"]),
    ) {
        let place = Place::new();
        let source = cut(&place, [90, 1100], &rows, &columns);
        let truth = numbered(0..90, 0..1100, 1100);
        let options = ConvertOptions { threads: 500, ..ConvertOptions::default() };
        let whole = place.path("whole.safetensors");
        to_safetensors(&open(&source), &whole, &options).unwrap();
        prop_assert!(bytes_of(&open(&whole), "w") == truth);
        let mesh: Mesh = mesh.parse().unwrap();
        let placements = vec![placement; mesh.n_axes()].join(", ");
        let plan: PlacementPlan = format!("w = {placements}").parse().unwrap();
        to_native(&open(&source), &place.path("native"), &mesh, &plan, &options).unwrap();
        let native = open(&place.path("native"));
        prop_assert!(bytes_of(&native, "w") == truth);
    }
}
