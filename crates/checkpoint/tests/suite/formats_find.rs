//! Which kind of checkpoint is at a place.

use std::fs;

use dtensor_checkpoint::{Catalog, Error, Format};

use crate::{
    formats_support::{Memory, check_refused, golden, refusal},
    hostile_support::{dict, pickle, saved, tensor},
};

fn format(name: &str) -> Format {
    Catalog::open_path(golden(name)).unwrap().1.format
}

#[test]
fn the_format_is_found_by_what_is_there() {
    assert_eq!(format("four_ranks/hf"), Format::ShardedSafetensors);
    assert_eq!(format("four_ranks/dcp"), Format::Distcp);
    assert_eq!(format("four_ranks/dcp/.metadata"), Format::Distcp);
    assert_eq!(format("four_ranks/full.safetensors"), Format::Safetensors);
    assert_eq!(format("hf_consolidated"), Format::Safetensors);
    assert_eq!(format("hf_consolidated/sharded"), Format::ShardedSafetensors);
    assert_eq!(format("torch_save/model.pt"), Format::TorchSave);
}

#[test]
fn a_file_is_known_by_its_content_and_not_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        let path = directory.path().join(to);
        fs::copy(golden(from), &path).unwrap();
        Catalog::open_path(&path).unwrap().1.format
    };
    assert_eq!(copy("torch_save/model.pt", "weights"), Format::TorchSave);
    assert_eq!(copy("four_ranks/full.safetensors", "model.bin"), Format::Safetensors);
}

#[test]
fn a_directory_with_one_file_of_torch_save_is_that_file() {
    let model = Memory::golden("torch_save/model.pt");
    assert_eq!(Catalog::open(&model).unwrap().format, Format::TorchSave);
    let bytes = model.0["model.pt"].to_vec();
    let hub = model.with("pytorch_model.bin", bytes);
    assert_eq!(Catalog::open(&hub).unwrap().files[0].name, "pytorch_model.bin");
    let two = Memory::golden("torch_save/model.pt").with("optimizer.pt", Vec::new());
    check_refused(&two, &["choose one", "`model.pt`, `optimizer.pt`"]);
}

#[test]
fn many_files_of_torch_save_with_an_index_are_one_checkpoint() {
    let part = |name: &str| {
        saved(pickle(dict(&[(name, tensor("0", 2, 0, &[2], &[1]))])), &[("0", vec![1; 8])])
    };
    let index = br#"{"weight_map": {"a": "1.bin", "b": "2.bin"}}"#.to_vec();
    let memory =
        Memory::of([("1.bin", part("a")), ("2.bin", part("b")), ("optimizer.bin", part("a"))])
            .with("pytorch_model.bin.index.json", index);
    let catalog = Catalog::open(&memory).unwrap();
    assert_eq!((catalog.format, catalog.files.len()), (Format::TorchSave, 2));
    assert_eq!(catalog.tensors["b"].chunks[0].file, 1);
    check_refused(&memory.clone().without("2.bin"), &["`2.bin`", "missing"]);
    check_refused(&memory.with("2.bin", part("c")), &["holds `b`"]);
}

#[test]
fn one_shard_is_no_checkpoint() {
    let path = golden("four_ranks/hf/shard-00001-model-00001-of-00001.safetensors");
    let Err(error) = Catalog::open_path(path) else { panic!("it was opened") };
    assert!(error.to_string().contains("open the directory"), "{error}");
}

#[test]
fn hidden_files_do_not_count() {
    let hf = Memory::golden("four_ranks/hf").with("._shard.safetensors", b"notes".to_vec());
    assert!(Catalog::open(&hf).is_ok());
}

#[test]
fn what_is_no_checkpoint_says_what_was_found() {
    let nothing = Memory::default();
    assert!(matches!(refusal(&nothing), Error::NoCheckpoint { .. }));
    check_refused(&nothing, &["memory", "no files"]);
    let notes = Memory::of((0..20).map(|n| (format!("note-{n:02}.txt"), vec![b'x'])));
    check_refused(&notes, &["`note-00.txt`", "and 12 more"]);
    let text = Memory::of([("weights.pt", b"not at all a checkpoint".to_vec())]);
    check_refused(&text, &["`weights.pt`", "neither"]);
    let alone = Memory::of([("__0.metadata", Vec::new()), ("__0_0.distcp", Vec::new())]);
    check_refused(&alone, &["use_collectives=True"]);
    for short in [&b""[..], b"P", b"PK\x03\x04", b"\x80\x02"] {
        refusal(&Memory::of([("weights.pt", short.to_vec())]));
    }
    assert!(matches!(Catalog::open_path(golden("absent")), Err(Error::NoCheckpoint { .. })));
}
