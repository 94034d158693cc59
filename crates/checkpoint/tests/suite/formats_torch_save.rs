//! Files of `torch.save`, as PyTorch 2.15 wrote them.

use dtensor_checkpoint::{Catalog, Checksum, Error, Format};

use crate::formats_support::{
    Memory, assert_same, check_refused, contents, expected, golden, only_chunk, refusal,
};

#[track_caller]
fn check(name: &str) -> Catalog {
    let name = format!("torch_save/{name}");
    let (storage, catalog) = Catalog::open_path(golden(&name)).unwrap();
    assert_eq!(catalog.format, Format::TorchSave);
    assert_same(&contents(storage.as_ref(), &catalog), &expected(&name));
    catalog
}

#[test]
fn a_state_dict_of_a_module_is_read_and_its_attributes_are_no_entries() {
    let catalog = check("model.pt");
    assert_eq!(catalog.tensors.len(), 4);
}

#[test]
fn a_training_checkpoint_is_flattened_with_dots() {
    let catalog = check("training.pt");
    assert!(catalog.tensors.contains_key("optimizer.state.0.exp_avg"));
    assert!(catalog.values.contains_key("optimizer.param_groups.0.betas.1"));
}

#[test]
fn every_dtype_is_read() {
    assert_eq!(check("dtypes.pth").tensors.len(), 17);
}

#[test]
fn views_and_shared_storages_are_read_where_they_lie() {
    let catalog = check("views.bin");
    let strides = |name| only_chunk(&catalog, name).0.strides.clone();
    assert_eq!(strides("transposed"), Some(vec![1, 6]));
    assert_eq!(strides("block"), Some(vec![6, 1]));
    assert_eq!(strides("repeated"), Some(vec![1, 0]));
    // A step of a dim of one element is never taken.
    assert_eq!(strides("one_row_of_dims"), None);
    assert_eq!(strides("whole"), None);
    assert_eq!(strides("empty_behind"), None);
    let offset = |name| only_chunk(&catalog, name).0.offset;
    assert_eq!(offset("tied"), offset("tied_again"));
    assert_eq!(offset("tail"), offset("tied") + 4 * 4);
}

#[test]
fn values_of_every_kind_are_read() {
    check("values.pt");
}

#[test]
fn protocol_4_says_the_same_as_protocol_2() {
    check("protocol4.pt");
}

#[test]
fn a_tensor_alone_has_the_name_of_its_file() {
    assert!(check("alone.pt").tensors.contains_key("alone"));
}

#[test]
fn the_checksum_is_that_of_the_storage_and_covers_the_chunk() {
    let (storage, catalog) = Catalog::open_path(golden("torch_save/views.bin")).unwrap();
    let (chunk, stored) = only_chunk(&catalog, "tail");
    let Checksum::Crc32 { start, bytes, crc } = chunk.checksum else { panic!("{chunk:?}") };
    assert!(start <= chunk.offset && chunk.offset + chunk.bytes(stored) <= start + bytes);
    let mut record = vec![0; bytes as usize];
    storage.open("views.bin").unwrap().read_at(start, &mut record).unwrap();
    assert_eq!(crc32fast::hash(&record), crc);
}

#[test]
fn a_file_that_was_written_without_checksums_is_read_without_them() {
    let catalog = check("without_crc.pt");
    assert_eq!(only_chunk(&catalog, "w").0.checksum, Checksum::None);
}

#[test]
fn a_flipped_bit_of_the_pickle_is_damage() {
    let memory = Memory::golden("torch_save/model.pt");
    let mut bytes = memory.0["model.pt"].to_vec();
    let at = bytes.windows(7).position(|window| window == b"storage").unwrap();
    bytes[at] ^= 1;
    assert!(matches!(refusal(&memory.with("model.pt", bytes)), Error::Damaged { .. }));
}

#[test]
fn what_is_not_supported_says_the_way_out() {
    let check = |name: &str, parts: &[&str]| {
        check_refused(&Memory::golden(&format!("torch_save/{name}")), parts)
    };
    check("legacy.pt", &["before 1.6", "newer PyTorch"]);
    check("conjugated.pt", &["`w`", "resolve_conj"]);
    check("script.pt", &["TorchScript", "state_dict()"]);
    check("sparse.pt", &["torch._utils._rebuild_sparse_tensor"]);
}

#[test]
fn a_global_that_is_not_in_the_list_is_named_with_its_place() {
    let memory = Memory::golden("torch_save/function.pt");
    let bytes = memory.0["function.pt"].to_vec();
    let name = b"cposixpath\njoin\n";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() as u64;
    let (file, global) = ("function.pt".to_owned(), "posixpath.join".to_owned());
    assert_eq!(refusal(&memory), Error::ForbiddenGlobal { file, at, global });
}

#[test]
fn big_endian_files_are_refused() {
    let memory = Memory::golden("torch_save/without_crc.pt");
    let mut bytes = memory.0["without_crc.pt"].to_vec();
    let at = bytes.windows(6).position(|window| window == b"little").unwrap();
    bytes[at..at + 6].copy_from_slice(b"big   ");
    check_refused(&memory.with("without_crc.pt", bytes), &["big-endian", "little-endian machine"]);
}
