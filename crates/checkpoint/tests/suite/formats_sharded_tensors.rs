//! State dicts with ShardedTensors, of which every rank has saved its shards with `torch.save`, as PyTorch 2.15 wrote them.

use dtensor_checkpoint::{Catalog, Error, Format, StoredType, Value};

use crate::{
    formats_support::{Memory, bytes_of, check_refused, golden, refusal, unreadable},
    hostile_support::{call, dict, global, pickle, saved, text},
};

const PLACE: &str = "sharded_tensors";

#[test]
fn the_files_of_all_ranks_are_one_checkpoint() {
    let (storage, catalog) = Catalog::open_path(golden(PLACE)).unwrap();
    assert_eq!((catalog.format, catalog.files.len()), (Format::TorchSave, 2));
    let names: Vec<&str> = catalog.tensors.keys().map(String::as_str).collect();
    assert_eq!(names, ["bias", "deep.boxes", "deep.param", "rank0.rng", "rank1.rng", "rows"]);
    for (name, shape, n_chunks) in
        [("rows", [5, 3], 2), ("deep.boxes", [4, 4], 3), ("deep.param", [2, 4], 2)]
    {
        let entry = &catalog.tensors[name];
        assert_eq!((&*entry.shape, entry.chunks.len()), (&shape[..], n_chunks), "{name}");
        assert_eq!(entry.stored, StoredType::F32);
        let bytes = bytes_of(storage.as_ref(), &catalog, entry);
        let values: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let want: Vec<f32> = (0..values.len()).map(|position| position as f32).collect();
        assert_eq!(values, want, "{name}");
    }
    // Both ranks have saved these.
    assert_eq!(catalog.tensors["bias"].chunks.len(), 1);
    assert_eq!(catalog.values["step"], Value::Int(7));
    // What differs is nobody's for all.
    for rank in 0..2_i64 {
        assert_eq!(catalog.values[&format!("rank{rank}.rank")], Value::Int(rank));
        let entry = &catalog.tensors[&format!("rank{rank}.rng")];
        let bytes = bytes_of(storage.as_ref(), &catalog, entry);
        assert_eq!(bytes, [rank.to_le_bytes(), 5_i64.to_le_bytes()].concat());
    }
    assert!(!catalog.values.contains_key("rank"));
}

#[test]
fn the_shards_of_one_rank_are_not_the_tensor() {
    for other in ["rank0.pt", "rank1.pt"] {
        check_refused(&Memory::golden(PLACE).without(other), &["a file is missing"]);
    }
    // The same rank twice.
    let rank0 = Memory::golden(PLACE).0["rank0.pt"].to_vec();
    check_refused(&Memory::golden(PLACE).with("rank1.pt", rank0), &["overlap"]);
}

#[test]
fn no_other_attribute_of_the_class_can_be_asked_for() {
    let class = || global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor");
    let attribute = |name| call(global("builtins", "getattr"), &[class(), text(name)]);
    let memory = |name| {
        let state = pickle(dict(&[("w", attribute(name))]));
        Memory::of([("model.pt", saved(state, &[]))])
    };
    match refusal(&memory("__init__")) {
        Error::ForbiddenGlobal { global, .. } => assert_eq!(global, "builtins.getattr"),
        error => panic!("{error}"),
    }
    // This one is a class, and a class is no value.
    assert!(unreadable(&memory("ProcessGroupState")).contains("another kind"));
}
