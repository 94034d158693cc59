//! Directories of safetensors files, sharded and plain.

use dtensor_checkpoint::{Catalog, Error, Format};
use serde_json::{Value as Json, json};

use crate::formats_support::{
    Memory, assert_same, check_refused, contents, expected, golden, refusal,
};

/// Name, shape, where it lies in the whole (if that is written down), bytes.
type Part<'a> = (&'a str, &'a [usize], Option<&'a [usize]>, &'a [u8]);

/// A file with these tensors.
fn file(tensors: &[Part<'_>], own: Option<Json>) -> Vec<u8> {
    let (mut header, mut offsets) = (serde_json::Map::new(), serde_json::Map::new());
    let mut data = Vec::new();
    for (name, shape, offset, bytes) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        header
            .insert((*name).into(), json!({"dtype": "U8", "shape": shape, "data_offsets": range}));
        if let Some(offset) = offset {
            offsets.insert((*name).into(), json!({"saved_offsets": offset}));
        }
        data.extend_from_slice(bytes);
    }
    let mut metadata = serde_json::Map::new();
    if !offsets.is_empty() {
        metadata.insert("DCP_SHARDING_INFO".into(), Json::Object(offsets).to_string().into());
    }
    if let Some(own) = own {
        metadata.insert("dtensor.tensors".into(), own.to_string().into());
    }
    header.insert("__metadata__".into(), Json::Object(metadata));
    let header = Json::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn shard(name: &str, shape: &[usize], offset: &[usize], bytes: &[u8]) -> Vec<u8> {
    file(&[(name, shape, Some(offset), bytes)], None)
}

fn whole(tensors: &[(&str, &[usize], &[u8])]) -> Vec<u8> {
    let tensors: Vec<_> = tensors.iter().map(|&(n, s, b)| (n, s, None, b)).collect();
    file(&tensors, None)
}

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<String, Json> =
        map.iter().map(|(name, file)| ((*name).into(), (*file).into())).collect();
    json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().into_bytes()
}

#[test]
fn shards_of_four_ranks_are_the_whole_tensors_bit_by_bit() {
    let (truth, whole) = Catalog::open_path(golden("four_ranks/full.safetensors")).unwrap();
    let (storage, catalog) = Catalog::open_path(golden("four_ranks/hf")).unwrap();
    assert_same(&contents(storage.as_ref(), &catalog), &contents(truth.as_ref(), &whole));
    assert_eq!(catalog.files.len(), 4);
}

#[test]
fn many_files_with_an_index_are_read() {
    let (storage, catalog) = Catalog::open_path(golden("hf_index")).unwrap();
    assert_same(&contents(storage.as_ref(), &catalog), &expected("hf_index"));
    assert_eq!(catalog.files.len(), 3);
    let without = Memory::golden("hf_index").without("model.safetensors.index.json");
    let catalog = Catalog::open(&without).unwrap();
    assert_same(&contents(&without, &catalog), &expected("hf_index"));
}

#[test]
fn consolidated_files_and_the_shards_that_they_were_made_of_are_the_same() {
    for name in ["hf_consolidated", "hf_consolidated/sharded"] {
        let (storage, catalog) = Catalog::open_path(golden(name)).unwrap();
        assert_same(&contents(storage.as_ref(), &catalog), &expected("hf_consolidated"));
    }
}

#[test]
fn only_files_of_the_index_count() {
    let memory = Memory::of([
        ("model-00001-of-00002.safetensors", whole(&[("a", &[2], &[1, 2])])),
        ("model-00002-of-00002.safetensors", whole(&[("b", &[], &[3])])),
        ("consolidated.safetensors", whole(&[("a", &[2], &[9, 9]), ("b", &[], &[9])])),
    ]);
    check_refused(&memory, &["`a` is in `consolidated.safetensors`", "stale"]);
    let two =
        [("a", "model-00001-of-00002.safetensors"), ("b", "model-00002-of-00002.safetensors")];
    let indexed = memory.with("model.safetensors.index.json", index(&two));
    let catalog = Catalog::open(&indexed).unwrap();
    assert_eq!((catalog.format, catalog.files.len()), (Format::Safetensors, 2));
    assert_eq!(contents(&indexed, &catalog)["tensors"]["a"]["hex"], "0102");
}

#[test]
fn what_an_index_promises_must_be_there() {
    let memory = Memory::of([("a.safetensors", whole(&[("a", &[2], &[1, 2])]))]);
    let with =
        |map: &[(&str, &str)]| memory.clone().with("model.safetensors.index.json", index(map));
    assert!(Catalog::open(&with(&[("a", "a.safetensors")])).is_ok());
    check_refused(&with(&[("a", "b.safetensors")]), &["`b.safetensors`", "missing"]);
    check_refused(&with(&[("a", "a.safetensors"), ("c", "a.safetensors")]), &["holds `c`"]);
    check_refused(&with(&[("a", "../a.safetensors")]), &["same place"]);
    check_refused(&with(&[("a", "/etc/passwd")]), &["same place"]);
    let no_map = memory.clone().with("model.safetensors.index.json", b"{}".to_vec());
    check_refused(&no_map, &["weight_map"]);
    let no_json = memory.clone().with("model.safetensors.index.json", b"[".to_vec());
    assert!(matches!(refusal(&no_json), Error::Broken { .. }));
}

#[test]
fn the_index_of_a_variant_is_used_if_it_is_the_only_one() {
    let memory = Memory::of([
        ("model.fp16-00001-of-00002.safetensors", whole(&[("a", &[1], &[1])])),
        (
            "model.fp16.safetensors.index.json",
            index(&[("a", "model.fp16-00001-of-00002.safetensors")]),
        ),
    ]);
    assert!(Catalog::open(&memory).is_ok());
}

#[test]
fn a_missing_file_of_a_numbered_series_is_noticed_without_an_index() {
    let hf = Memory::golden("hf_index").without("model.safetensors.index.json");
    let name = "model-00003-of-00003.safetensors";
    check_refused(&hf.clone().without(name), &[name, "missing", "2 others"]);
    let from_zero = Memory::of([
        ("m-00000-of-00002.safetensors", whole(&[("a", &[1], &[1])])),
        ("m-00001-of-00002.safetensors", whole(&[("b", &[1], &[1])])),
    ]);
    assert!(Catalog::open(&from_zero).is_ok());
    // Each rank holds parts of some of the files; together they are a series.
    let shards = Memory::of([
        ("shard-00001-model-00001-of-00002.safetensors", shard("a", &[1], &[0], &[1])),
        ("shard-00003-model-00002-of-00002.safetensors", shard("b", &[1], &[0], &[1])),
    ]);
    assert!(Catalog::open(&shards).is_ok());
    let one = shards.without("shard-00003-model-00002-of-00002.safetensors");
    check_refused(&one, &["model-00002-of-00002.safetensors", "missing"]);
}

#[test]
fn a_missing_shard_is_noticed_where_it_leaves_a_hole() {
    let hf = Memory::golden("four_ranks/hf");
    for rank in 1..=4 {
        let name = format!("shard-{rank:05}-model-00001-of-00001.safetensors");
        check_refused(&hf.clone().without(&name), &["a file is missing"]);
    }
}

#[test]
fn the_last_shard_is_missed_where_the_global_shape_is_written_down() {
    let own = |layout: &str| Some(json!({"a": {"shape": [5], "layout": layout}}));
    let first = file(&[("a", &[3], Some(&[0]), &[1, 2, 3])], own("[S(0)] on (dp=2)"));
    let last = file(&[("a", &[2], Some(&[3]), &[4, 5])], own("[S(0)] on (dp=2)"));
    let both = Memory::of([("1.safetensors", first.clone()), ("2.safetensors", last)]);
    let catalog = Catalog::open(&both).unwrap();
    assert_eq!(catalog.tensors["a"].layout.as_deref(), Some("[S(0)] on (dp=2)"));
    check_refused(&both.clone().without("2.safetensors"), &["3 of 5 elements"]);
    let other = file(&[("a", &[2], Some(&[3]), &[4, 5])], own("[S(0)] on (dp=4)"));
    check_refused(&both.with("2.safetensors", other), &["two saves"]);
    // PyTorch writes empty shards at the end of the tensor, which gives its shape away.
    let empty = shard("a", &[0], &[5], &[]);
    let holes = Memory::of([("1.safetensors", first), ("3.safetensors", empty.clone())]);
    check_refused(&holes, &["3 of 5 elements"]);
}

#[test]
fn shards_of_two_saves_are_not_mixed() {
    let half = |start, bytes: &[u8]| shard("a", &[2], &[start], bytes);
    let good =
        Memory::of([("1.safetensors", half(0, &[1, 2])), ("2.safetensors", half(2, &[3, 4]))]);
    assert_eq!(Catalog::open(&good).unwrap().tensors["a"].shape, [4]);
    let stale = good.clone().with("3.safetensors", shard("a", &[3], &[1], &[7, 7, 7]));
    check_refused(&stale, &["overlap"]);
    let dims = good.clone().with("3.safetensors", shard("a", &[2, 1], &[4, 0], &[7, 7]));
    check_refused(&dims, &["2 dims", "1 dims", "two saves"]);
    let plain = good.with("3.safetensors", whole(&[("a", &[4], &[7; 4])]));
    check_refused(&plain, &["`a`"]);
}

#[test]
fn scalars_and_empty_tensors_are_whole_once() {
    let scalar = file(&[("s", &[], Some(&[]), &[7]), ("e", &[0, 3], Some(&[0, 0]), &[])], None);
    let memory = Memory::of([("1.safetensors", scalar.clone())]);
    let catalog = Catalog::open(&memory).unwrap();
    assert_eq!(catalog.tensors["s"].shape, [0; 0]);
    assert_eq!(catalog.tensors["e"].shape, [0, 3]);
    check_refused(&memory.with("2.safetensors", scalar), &["`s`", "overlap"]);
}

#[test]
fn offsets_that_make_no_sense_are_refused() {
    let check = |offset: &[usize], parts: &[&str]| {
        check_refused(&Memory::of([("1.safetensors", shard("a", &[2], offset, &[1, 2]))]), parts)
    };
    check(&[0, 0], &["one number per dim"]);
    check(&[usize::MAX], &["beyond any tensor"]);
    check(&[usize::MAX - 2], &["larger than any file"]);
    check(&[1 << 40], &["2 of 1099511627778 elements"]);
    let huge: &[usize] = &[1 << 60, 1 << 60, 1 << 60, 0];
    let memory = Memory::of([("1.safetensors", shard("a", &[0; 4], huge, &[]))]);
    assert_eq!(Catalog::open(&memory).unwrap().tensors["a"].bytes(), 0);
}
