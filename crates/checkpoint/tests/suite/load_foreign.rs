//! PyTorch's files, loaded on ranks.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use dtensor::{DType, Layout, Mesh};
use dtensor_checkpoint::{Catalog, Error, LoadOptions, Reader, StoredType, load, load_from};
use dtensor_layout::IndexBox;
use dtensor_testing::spmd;
use serde_json::Value as Json;

use crate::formats_support::golden;
use crate::{
    load_support::{Files, check, state_of},
    load_written::Whole,
};

/// The tensors of a safetensors file, parsed here.
fn truth() -> Vec<Whole> {
    let bytes = fs::read(golden("four_ranks/full.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Json> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let numbers = |json: &Json| -> Vec<usize> {
        json.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
    };
    let tensor = |(name, about): (&String, &Json)| {
        let stored = StoredType::from_name(about["dtype"].as_str().unwrap()).unwrap();
        let range = numbers(&about["data_offsets"]);
        let mut whole = Whole::new(name, stored, &numbers(&about["shape"]));
        whole.bytes = bytes[start + range[0]..start + range[1]].to_vec();
        whole
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

#[test]
fn golden_checkpoints_load_bit_for_bit_on_any_number_of_ranks() {
    let tensors = truth();
    assert_eq!(tensors.len(), 7);
    for name in ["four_ranks/hf", "four_ranks/dcp", "four_ranks/full.safetensors"] {
        let path = golden(name);
        for (mesh, text) in [
            ("x=1", "[R]"),
            ("x=2", "[S(0)]"),
            ("x=2", "[S(1)]"),
            ("x=3", "[S(0)]"),
            ("x=3", "[R]"),
            ("x=4", "[S(1)]"),
            ("x=2,y=2", "[S(0), S(0)]"),
            ("x=2,y=2", "[S(1), S(0)]"),
        ] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layout = |whole: &Whole| {
                let dtype = whole.stored.dtype().unwrap();
                let copies = vec!["R"; mesh.n_axes()].join(", ");
                Layout::parse(&whole.shape, dtype, &mesh, text)
                    .unwrap_or_else(|_| Layout::parse(&whole.shape, dtype, &mesh, &copies).unwrap())
            };
            let layouts: Vec<Layout> = tensors.iter().map(layout).collect();
            spmd(mesh.size(), |world| {
                let mut state = state_of(world, tensors.iter().zip(&layouts))?;
                load(world, &mut state, path.to_str().unwrap(), &LoadOptions::default())?;
                check(world, &state, tensors.iter().zip(&layouts));
                Ok(())
            });
        }
    }
}

#[test]
fn every_byte_of_pytorchs_files_is_read_once_over_all_ranks() {
    let tensors = truth();
    for name in ["four_ranks/hf", "four_ranks/dcp"] {
        let files = Files::of(&golden(name));
        let read_on = |n_ranks: usize| {
            let files = Files { counts: Arc::default(), ..files.clone() };
            let mesh = Mesh::from_sizes(&[n_ranks]).unwrap();
            let layout = |whole: &Whole| {
                Layout::parse(&whole.shape, whole.stored.dtype().unwrap(), &mesh, "[R]").unwrap()
            };
            let layouts: Vec<Layout> = tensors.iter().map(layout).collect();
            spmd(n_ranks, |world| {
                let mut state = state_of(world, tensors.iter().zip(&layouts))?;
                load_from(world, &mut state, Arc::new(files.clone()), &LoadOptions::default())?;
                check(world, &state, tensors.iter().zip(&layouts));
                Ok(())
            });
            files.counts.bytes.load(Relaxed)
        };
        let alone = read_on(1);
        assert!(alone > 0);
        for n_ranks in [2, 3, 4] {
            assert_eq!(read_on(n_ranks), alone, "{name} on {n_ranks} ranks");
        }
    }
}

#[test]
fn a_file_of_pytorchs_that_is_broken_is_the_same_error_on_all_ranks() {
    let tensors = truth();
    let files = Files::of(&golden("four_ranks/dcp"));
    let mut metadata = files.files[".metadata"].to_vec();
    metadata.truncate(100);
    let broken = files.with(".metadata", metadata);
    let errors = spmd(3, |world| {
        let mesh = Mesh::from_sizes(&[3]).unwrap();
        let layout = Layout::parse(&tensors[0].shape, DType::F32, &mesh, "[R]").unwrap();
        let mut state = state_of(world, [(&tensors[0], &layout)])?;
        Ok(load_from(world, &mut state, Arc::new(broken.clone()), &LoadOptions::default())
            .unwrap_err())
    });
    assert!(matches!(errors[0], Error::Broken { .. }), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

/// All tensors of a file that tensors of ours can be, read whole, and compared with what the generator noted beside the file.
fn read_whole(file: &str) -> Vec<Whole> {
    let (storage, catalog) = Catalog::open_path(golden(file)).unwrap();
    let noted = fs::read_to_string(golden(&format!("{file}.json"))).ok();
    let noted: Json = noted.map_or(Json::Null, |text| serde_json::from_str(&text).unwrap());
    let reader = Reader::new(storage, Arc::new(catalog));
    let mut all = Vec::new();
    for (name, entry) in &reader.catalog().tensors {
        if entry.stored.dtype().is_none() {
            continue;
        }
        let mut whole = Whole::new(name, entry.stored, &entry.shape);
        let index = IndexBox(entry.shape.iter().map(|&size| 0..size).collect());
        reader.read_box(name, &index, &mut whole.bytes).unwrap();
        if let Some(hex) = noted["tensors"][name]["hex"].as_str() {
            let found: String = whole.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, hex, "`{name}` of {file}");
        }
        all.push(whole);
    }
    all
}

#[test]
fn views_in_files_of_torch_save_are_loaded_as_they_are_read() {
    let names: Vec<String> = fs::read_dir(golden("torch_save"))
        .unwrap()
        .map(|entry| format!("torch_save/{}", entry.unwrap().file_name().into_string().unwrap()))
        .filter(|name| !name.ends_with(".json"))
        .collect();
    let mut loaded = 0;
    for name in &names {
        let Ok((_, catalog)) = Catalog::open_path(golden(name)) else { continue };
        loaded += catalog
            .tensors
            .values()
            .filter(|entry| entry.chunks.iter().any(|chunk| chunk.strides.is_some()))
            .count();
        let tensors = read_whole(name);
        for (mesh, text) in [("x=1", "[R]"), ("x=2", "[S(0)]"), ("x=3", "[R]")] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layout = |whole: &Whole| {
                let dtype = whole.stored.dtype().unwrap_or(DType::F32);
                Layout::parse(&whole.shape, dtype, &mesh, text)
                    .unwrap_or_else(|_| Layout::parse(&whole.shape, dtype, &mesh, "[R]").unwrap())
            };
            let layouts: Vec<Layout> = tensors.iter().map(layout).collect();
            spmd(mesh.size(), |world| {
                let mut state = state_of(world, tensors.iter().zip(&layouts))?;
                load(world, &mut state, golden(name).to_str().unwrap(), &LoadOptions::default())?;
                check(world, &state, tensors.iter().zip(&layouts));
                Ok(())
            });
        }
    }
    assert!(loaded > 0, "no golden file has a view");
}
