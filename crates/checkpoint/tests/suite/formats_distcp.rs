//! PyTorch's classic distributed checkpoints.

use dtensor_checkpoint::{Catalog, Checksum, Format, Value};

use crate::formats_support::{
    Memory, assert_same, bytes_of, check_refused, contents, expected, golden,
};

#[test]
fn a_checkpoint_of_four_ranks_holds_the_whole_tensors_bit_by_bit() {
    let (truth, whole) = Catalog::open_path(golden("four_ranks/full.safetensors")).unwrap();
    let (storage, catalog) = Catalog::open_path(golden("four_ranks/dcp")).unwrap();
    assert_eq!(catalog.format, Format::Distcp);
    assert_eq!(catalog.files.len(), 4);
    assert_same(&contents(storage.as_ref(), &catalog), &contents(truth.as_ref(), &whole));
    assert_eq!(catalog.tensors["embed.weight"].chunks.len(), 4);
}

#[test]
fn nested_optimizer_state_and_values_have_dotted_names() {
    let (storage, catalog) = Catalog::open_path(golden("distcp_nested")).unwrap();
    assert_same(&contents(storage.as_ref(), &catalog), &expected("distcp_nested"));
    assert_eq!(catalog.files.len(), 3);
    assert_eq!(catalog.values["training.step"], Value::Int(12));
    // A tensor in a tuple: PyTorch stores the tuple as one object, or splits it up; either way it is found.
    assert_eq!(catalog.tensors["training.mixed.0"].shape, [3]);
}

#[test]
fn a_file_for_each_tensor_is_as_good() {
    let (storage, catalog) = Catalog::open_path(golden("distcp_files")).unwrap();
    assert_same(&contents(storage.as_ref(), &catalog), &expected("distcp_files"));
    assert_eq!(catalog.files.len(), 3);
}

#[test]
fn every_chunk_has_the_checksum_of_its_record() {
    let (storage, catalog) = Catalog::open_path(golden("four_ranks/dcp")).unwrap();
    for entry in catalog.tensors.values() {
        for chunk in entry.chunks.iter().filter(|chunk| !chunk.index.is_empty()) {
            let Checksum::Crc32 { start, bytes, crc } = chunk.checksum else { panic!("{chunk:?}") };
            let mut record = vec![0; bytes as usize];
            let file = storage.open(&catalog.files[chunk.file].name).unwrap();
            file.read_at(start, &mut record).unwrap();
            assert_eq!(crc32fast::hash(&record), crc);
        }
        assert_eq!(bytes_of(storage.as_ref(), &catalog, entry).len() as u64, entry.bytes());
    }
}

#[test]
fn a_missing_or_short_file_is_noticed() {
    let dcp = Memory::golden("four_ranks/dcp");
    check_refused(&dcp.clone().without("__2_0.distcp"), &["__2_0.distcp", "missing"]);
    let mut short = dcp.0["__2_0.distcp"].to_vec();
    short.pop();
    check_refused(&dcp.clone().with("__2_0.distcp", short), &["__2_0.distcp", "cut off"]);
    check_refused(&dcp.without(".metadata"), &["not finished", ".metadata"]);
}

#[test]
fn files_of_another_save_are_noticed() {
    let dcp = Memory::golden("four_ranks/dcp");
    let other = dcp.0["__3_0.distcp"].to_vec();
    check_refused(&dcp.with("__2_0.distcp", other), &["__2_0.distcp"]);
}

#[test]
fn compressed_checkpoints_are_refused_with_the_way_out() {
    check_refused(&Memory::golden("distcp_compressed"), &["compression", "_extensions"]);
}
