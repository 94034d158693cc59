//! Whether chunks are a whole tensor: against counting element by element.

use std::ops::Range;

use dtensor_checkpoint::Catalog;
use proptest::prelude::*;
use serde_json::json;

use crate::formats_support::Memory;

type Box3 = [Range<usize>; 3];

/// A file of one chunk.
fn shard(index: &Box3) -> Vec<u8> {
    let shape = index.each_ref().map(Range::len);
    let bytes: usize = shape.iter().product();
    let offsets = json!({"a": {"saved_offsets": index.each_ref().map(|range| range.start)}});
    let header = json!({
        "__metadata__": {"DCP_SHARDING_INFO": offsets.to_string()},
        "a": {"dtype": "U8", "shape": shape, "data_offsets": [0, bytes]},
    });
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes]].concat()
}

/// Whether every element up to the largest end is in one box, and in one only.
fn covers(boxes: &[Box3]) -> bool {
    let end = |dim: usize| boxes.iter().map(|index| index[dim].end).max().unwrap();
    let holders = |at: [usize; 3]| {
        boxes
            .iter()
            .filter(|index| index.iter().zip(at).all(|(range, at)| range.contains(&at)))
            .count()
    };
    (0..end(0)).all(|i| (0..end(1)).all(|j| (0..end(2)).all(|k| holders([i, j, k]) == 1)))
}

/// Boxes that are cut out of a whole, a part of them at a time, so that they are no grid.
fn tiling() -> impl Strategy<Value = Vec<Box3>> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, 0..5_usize), 0..8);
    cuts.prop_map(|cuts| {
        let mut boxes: Vec<Box3> = vec![[0..4, 0..3, 0..5]];
        for (which, dim, at) in cuts {
            let position = which.index(boxes.len());
            let mut lower = boxes[position].clone();
            let at = at.clamp(lower[dim].start, lower[dim].end);
            let mut upper = lower.clone();
            (lower[dim].end, upper[dim].start) = (at, at);
            boxes[position] = lower;
            boxes.push(upper);
        }
        boxes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn chunks_are_accepted_exactly_if_each_element_is_held_once(
        mut boxes in tiling(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, 0..4_usize), 0..3),
    ) {
        for (which, dim, kind) in changes {
            let position = which.index(boxes.len());
            let range = &mut boxes[position][dim];
            match kind {
                0 => range.end += 1,
                1 => range.start = range.start.saturating_sub(1),
                2 => (range.start, range.end) = (range.start + 1, range.end + 1),
                _ if boxes.len() > 1 => {
                    boxes.remove(position);
                }
                _ => {}
            }
        }
        let files = boxes.iter().enumerate().map(|(n, index)| (format!("{n}.safetensors"), shard(index)));
        let opened = Catalog::open(&Memory::of(files));
        prop_assert_eq!(opened.is_ok(), covers(&boxes), "{:?} {:?}", boxes, opened);
    }
}
