//! What cannot be read does not keep from reading the rest, and is never left out in silence.

use std::sync::Arc;

use dtensor::{DType, DeviceMesh, Placement::*, World, zeros};
use dtensor_checkpoint::{
    Catalog, DiffOptions, Error, LoadOptions, LocalFiles, Pattern, Reader, Selection, Source,
    State, Storage, StoredType, Value, VerifyOptions,
    convert::{Cast, ConvertOptions, to_safetensors},
    diff, load_from, verify,
};
use dtensor_testing::{Failure, spmd};
use serde_json::json;

use crate::{
    convert_support::{Place, bytes_of, open, part},
    formats_support::{Memory, unreadable},
    hostile_metadata::with_objects,
    hostile_support::{call, dict, global, int, list, text, tuple},
};

/// A dict whose one key is a tuple.
fn with_an_odd_key() -> Vec<u8> {
    [b"}(".to_vec(), text("b"), int(2), tuple(&[int(1)]), int(3), b"u".to_vec()].concat()
}

/// An integer of nine bytes.
fn large() -> Vec<u8> {
    [&[0x8a, 9][..], &[1; 9]].concat()
}

fn checkpoint() -> Memory {
    with_objects(&[
        ("args", call(global("my.training", "Config"), &[int(1)])),
        ("lr", dict(&[("now", int(7)), ("class", global("torch", "FloatStorage"))])),
        ("odd", with_an_odd_key()),
        ("seeds", list(&[large(), int(5)])),
        ("step", int(12)),
    ])
}

const UNREADABLE: [(&str, &str); 4] = [
    ("args", "my.training.Config"),
    ("lr.class", "another kind"),
    ("odd", "key that is neither"),
    ("seeds.0", "beyond 64 bits"),
];

fn check_reasons(found: impl IntoIterator<Item = (String, String)>) {
    let found: Vec<(String, String)> = found.into_iter().collect();
    assert_eq!(found.len(), UNREADABLE.len(), "{found:?}");
    for ((name, reason), (want, part)) in found.iter().zip(UNREADABLE) {
        assert!(name == want && reason.contains(part), "{name}: {reason}");
    }
}

#[test]
fn an_object_of_python_does_not_hide_the_others() {
    let memory = checkpoint();
    let catalog = Catalog::open(&memory).unwrap();
    check_reasons(catalog.unreadable.clone());
    assert_eq!(catalog.tensors.keys().collect::<Vec<_>>(), ["w"]);
    let values = [("lr.now", 7), ("odd.b", 2), ("seeds.1", 5), ("step", 12)];
    let values = values.map(|(name, value)| (name.to_owned(), Value::Int(value)));
    assert_eq!(catalog.values.clone().into_iter().collect::<Vec<_>>(), values);
    let storage: Arc<dyn Storage> = Arc::new(memory);
    let report = verify(&Arc::new(catalog), &storage, &VerifyOptions::default()).unwrap();
    assert!(report.is_whole());
    check_reasons(report.unreadable);
}

#[test]
fn one_value_of_a_file_of_torch_save_neither() {
    let reason = unreadable(&Memory::golden("torch_save/large_integer.pt"));
    assert!(reason.contains("beyond 64 bits") && reason.contains("seed"), "{reason}");
}

#[test]
fn what_the_metadata_ask_for_is_refused_as_before() {
    let name = with_objects(&[]).0[".metadata"].to_vec();
    let at = name.windows(7).position(|window| window == b"float32").unwrap();
    let mut other = name.clone();
    other[at..at + 7].copy_from_slice(b"float33");
    let memory = with_objects(&[("step", int(1))]).with(".metadata", other);
    assert!(matches!(Catalog::open(&memory), Err(Error::ForbiddenGlobal { .. })));
}

/// The same files in a directory, where it may be asked for others.
fn on_disk(memory: &Memory) -> (tempfile::TempDir, Arc<dyn Storage>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in &memory.0 {
        std::fs::write(directory.path().join(name), &**bytes).unwrap();
    }
    let storage = Arc::new(LocalFiles::new(directory.path()));
    (directory, storage)
}

fn state(world: &World, names: &[&str]) -> Result<State, Failure> {
    let mesh = DeviceMesh::of_world(world, "x")?;
    let mut state = State::new();
    state.insert("w", zeros(&[5, 2], DType::F32, &mesh, &[Shard(0)])?)?;
    for name in names {
        state.insert(*name, -1)?;
    }
    Ok(state)
}

#[test]
fn a_load_fails_only_if_it_asks_for_what_cannot_be_read() {
    let (_directory, storage) = on_disk(&checkpoint());
    spmd(2, |world| {
        let load = |state: &mut State, partial| {
            let options = LoadOptions { partial, ..LoadOptions::default() };
            load_from(world, state, Arc::clone(&storage), &options)
        };
        let mut good = state(world, &["step", "lr.now"])?;
        let report = load(&mut good, false)?;
        assert_eq!((report.tensors, report.values), (1, 2));
        assert_eq!(report.unexpected, ["args", "lr.class", "odd", "odd.b", "seeds.0", "seeds.1"]);
        assert_eq!(good.value("step"), Some(&Value::Int(12)));
        // The second is a part of what cannot be read, if there is such a part at all.
        for name in ["args", "args.lr"] {
            let error = load(&mut state(world, &[name])?, false).unwrap_err();
            assert!(
                matches!(&error, Error::Unreadable { name, reason } if name == "args" && reason.contains("Config")),
                "{error}"
            );
        }
        let mut part = state(world, &["args", "step"])?;
        let report = load(&mut part, true)?;
        assert_eq!((report.unreadable, report.missing), (vec!["args".to_owned()], vec![]));
        assert_eq!(part.value("args"), Some(&Value::Int(-1)));
        assert_eq!(part.value("step"), Some(&Value::Int(12)));
        Ok(())
    });
}

fn without(patterns: &[&str]) -> Selection {
    let exclude = patterns.iter().copied().map(Pattern::new).collect();
    Selection { exclude, ..Selection::default() }
}

#[test]
fn a_conversion_and_a_comparison_go_on_without_it_only_if_it_is_excluded() {
    let place = Place::new();
    let source = || {
        let memory = checkpoint();
        let catalog = Catalog::open(&memory).unwrap();
        Source::new(Arc::new(memory), catalog)
    };
    let convert = |select: Selection| {
        let options = ConvertOptions { select, ..ConvertOptions::default() };
        to_safetensors(&source(), &place.path("x.safetensors"), &options)
    };
    let error = convert(Selection::default()).unwrap_err();
    assert!(matches!(&error, Error::Unreadable { name, .. } if name == "args"), "{error}");
    assert!(error.to_string().contains("exclude `args`"), "{error}");
    let converted = convert(without(&["args", "lr.class", "odd", "seeds.0"])).unwrap();
    assert_eq!((converted.tensors, converted.values), (1, 4));
    let options = DiffOptions::default();
    let error = diff(&source(), &source(), &options).unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error}");
    let select = without(&["args", "lr.class", "odd", "seeds.0"]);
    let found = diff(&source(), &source(), &DiffOptions { select, ..DiffOptions::default() });
    assert!(found.unwrap().is_equal(false));
}

/// A safetensors file with a tensor of a packed type between two others.
fn packed(dtype: &str, shape: &[usize], bytes: usize) -> Memory {
    let header = json!({
        "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        "p": {"dtype": dtype, "shape": shape, "data_offsets": [2, 2 + bytes]},
        "z": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [2 + bytes, 3 + bytes]},
    });
    let header = header.to_string().into_bytes();
    let data = vec![127; bytes + 3];
    let length = (header.len() as u64).to_le_bytes().to_vec();
    Memory::of([("x.safetensors", [length, header, data].concat())])
}

#[test]
fn elements_smaller_than_a_byte_are_listed_and_the_other_tensors_read() {
    for (dtype, shape, bytes) in
        [("F4", &[3, 2][..], 3), ("F6_E2M3", &[4], 3), ("F6_E3M2", &[2, 4], 6), ("F4", &[0], 0)]
    {
        let memory = packed(dtype, shape, bytes);
        let catalog = Catalog::open(&memory).unwrap();
        let reason = &catalog.unreadable["p"];
        assert!(reason.contains(dtype) && reason.contains(&format!("{bytes} bytes")), "{reason}");
        let reader = Reader::new(Arc::new(memory), Arc::new(catalog));
        let mut byte = [0];
        reader.read_box("z", &dtensor_layout::IndexBox::whole(&[1]), &mut byte).unwrap();
        assert_eq!(byte, [127]);
        let error = reader.read_box("p", &dtensor_layout::IndexBox::whole(shape), &mut []);
        assert!(matches!(error, Err(Error::Unreadable { .. })));
    }
    // Half a byte is none.
    for (dtype, shape, bytes) in [("F4", &[3][..], 1), ("F4", &[3], 2), ("F5", &[8], 5)] {
        Catalog::open(&packed(dtype, shape, bytes)).unwrap_err();
    }
}

#[test]
fn newer_types_of_a_byte_are_copied_and_cast_from_but_not_to() {
    let place = Place::new();
    let types = [StoredType::F8E8M0, StoredType::F8E4M3Fnuz, StoredType::F8E5M2Fnuz];
    let parts = types.map(|stored| part(stored.name(), stored, &[2], vec![0x40, 0x7f]));
    let source = place.file("x.safetensors", &parts);
    let convert = |target: &str, casts: Vec<Cast>| {
        let options = ConvertOptions { casts, ..ConvertOptions::default() };
        to_safetensors(&open(&source), &place.path(target), &options).unwrap();
        open(&place.path(target))
    };
    let copied = convert("copied.safetensors", Vec::new());
    let wide = convert("wide.safetensors", vec!["f32".parse().unwrap()]);
    for (stored, numbers) in
        types.into_iter().zip([[(-63.0_f32).exp2(), 1.0], [1.0, 240.0], [1.0, 57344.0]])
    {
        assert_eq!(copied.catalog().tensors[stored.name()].stored, stored);
        assert_eq!(bytes_of(&copied, stored.name()), [0x40, 0x7f]);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(bytes_of(&wide, stored.name()), bytes, "{stored}");
        assert!(matches!(stored.name().parse::<Cast>(), Err(Error::BadText { .. })));
    }
    assert!(
        diff(&copied, &wide, &DiffOptions::default()).unwrap().tensors["F8_E8M0"]
            .difference
            .is_some_and(|difference| difference.beyond == 0)
    );
    // Into a tensor they go as the numbers that they are.
    let (_directory, storage) = on_disk(&packed("F4", &[2], 1));
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        state.insert("z", zeros(&[1], DType::F32, &mesh, &[Replicate])?)?;
        load_from(world, &mut state, Arc::clone(&storage), &LoadOptions::default())?;
        assert_eq!(state.tensor("z").unwrap().to_local().to_vec::<f32>()?, [1.0]);
        state.insert("p", nothing_of(&mesh)?)?;
        let error = load_from(world, &mut state, Arc::clone(&storage), &LoadOptions::default());
        assert!(matches!(error, Err(Error::Unreadable { name, .. }) if name == "p"));
        Ok(())
    });
}

fn nothing_of(mesh: &DeviceMesh) -> Result<dtensor::DTensor, Failure> {
    Ok(zeros(&[2], DType::F32, mesh, &[Replicate])?)
}
