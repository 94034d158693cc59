//! Checkpoints of every kind made into whole tensors in safetensors files.

use std::fs;

use dtensor_checkpoint::{
    DiffOptions, Error, Format, Pattern, Selection, StoredType,
    convert::{ConvertOptions, Converted, to_safetensors},
};
use serde_json::json;

use crate::convert_support::{
    Place, assert_same, bytes_of, entry, floats, golden, header, names_in, open, part, refused,
};

fn convert(source: &str, target: &str, options: &ConvertOptions<'_>) -> Result<Converted, Error> {
    to_safetensors(&open(source), target, options)
}

fn only(patterns: &[&str]) -> Selection {
    Selection { only: patterns.iter().copied().map(Pattern::new).collect(), ..Selection::default() }
}

#[test]
fn what_four_ranks_of_pytorch_saved_becomes_one_file_of_whole_tensors() {
    let place = Place::new();
    for kind in ["dcp", "hf"] {
        let target = place.path(&format!("{kind}.safetensors"));
        let source = golden(&format!("four_ranks/{kind}"));
        let converted = convert(&source, &target, &ConvertOptions::default()).unwrap();
        assert_eq!((converted.tensors, converted.bytes, converted.files.len()), (7, 1062, 1));
        let truth = golden("four_ranks/full.safetensors");
        assert_same(&truth, &target);
        assert_eq!(open(&target).catalog().format, Format::Safetensors);
        // The same bytes in the same order as the format's own library writes them.
        let ((ours, start), (truth_header, truth_start)) = (header(&target), header(&truth));
        assert_eq!((ours["__metadata__"].clone(), start % 8), (json!({"format": "pt"}), 0));
        assert_eq!(ours["embed.weight"], truth_header["embed.weight"]);
        assert_eq!(fs::read(&target).unwrap()[start..], fs::read(&truth).unwrap()[truth_start..]);
    }
    assert_eq!(place.names(), ["dcp.safetensors", "hf.safetensors"]);
}

#[test]
fn files_of_torch_save_are_converted_with_their_views_and_values() {
    let place = Place::new();
    for name in ["model.pt", "views.bin", "training.pt", "values.pt"] {
        let source = golden(&format!("torch_save/{name}"));
        let target = place.path(&format!("{name}.safetensors"));
        let converted = convert(&source, &target, &ConvertOptions::default()).unwrap();
        let (before, after) = (open(&source), open(&target));
        assert_eq!(converted.values, before.catalog().values.len(), "{name}");
        let found = dtensor_checkpoint::diff(&before, &after, &Default::default()).unwrap();
        assert!(found.is_equal(false), "{name}: {found:?}");
    }
}

#[test]
fn a_largest_size_makes_several_files_with_an_index() {
    let place = Place::new();
    let tensors = ["a", "b", "c", "d"].map(|name| floats(name, &[10], &[1.0; 10]));
    let large = floats("bb", &[40], &[2.0; 40]);
    let source =
        place.file("x.safetensors", &tensors.into_iter().chain([large]).collect::<Vec<_>>());
    let options = ConvertOptions { max_file_bytes: Some(80), ..ConvertOptions::default() };
    let converted = convert(&source, &place.path("hub"), &options).unwrap();
    let names: Vec<&str> = converted.files.iter().map(|file| file.name.as_str()).collect();
    let file = |number| format!("model-0000{number}-of-00003.safetensors");
    assert_eq!(names, [file(1), file(2), file(3)]);
    let index = fs::read_to_string(place.path("hub/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let map = json!({"a": file(1), "b": file(1), "bb": file(2), "c": file(3), "d": file(3)});
    assert_eq!(index, json!({"metadata": {"total_size": 320}, "weight_map": map}));
    assert_same(&source, &place.path("hub"));
    for (name, size) in converted.files.iter().map(|file| (&file.name, file.size)) {
        assert_eq!(fs::metadata(place.path(&format!("hub/{name}"))).unwrap().len(), size);
    }
}

#[test]
fn a_directory_with_one_file_needs_no_index() {
    let place = Place::new();
    convert(&golden("four_ranks/dcp"), &place.path("hub"), &ConvertOptions::default()).unwrap();
    assert_eq!(names_in(&place.path("hub")), ["model.safetensors"]);
    assert_same(&golden("four_ranks/full.safetensors"), &place.path("hub"));
}

#[test]
fn floats_are_cast_and_nothing_else_is() {
    let place = Place::new();
    let source = place.file(
        "x.safetensors",
        &[
            floats("w", &[3], &[1.0, 257.0 / 256.0, f32::NAN]),
            floats("norm", &[1], &[3.0]),
            part("steps", StoredType::I64, &[1], 7_i64.to_le_bytes().to_vec()),
            part("mask", StoredType::Bool, &[2], vec![0, 1]),
        ],
    );
    let casts = ["norm=f64", "bf16"].map(|text| text.parse().unwrap()).to_vec();
    let target = place.path("y.safetensors");
    let options = ConvertOptions { casts, ..ConvertOptions::default() };
    let converted = convert(&source, &target, &options).unwrap();
    assert_eq!(converted.bytes, 3 * 2 + 8 + 8 + 2);
    let after = open(&target);
    let types = ["w", "norm", "steps", "mask"].map(|name| entry(&after, name).stored);
    assert_eq!(types, [StoredType::Bf16, StoredType::F64, StoredType::I64, StoredType::Bool]);
    assert_eq!(bytes_of(&after, "w")[..4], [0x80, 0x3f, 0x80, 0x3f]);
    assert_eq!(bytes_of(&after, "norm"), 3.0_f64.to_le_bytes());
}

#[test]
fn names_are_chosen_left_out_and_changed() {
    let place = Place::new();
    let rename = vec!["layers.*.attn.*=h.*.*".parse().unwrap()];
    let exclude = vec![Pattern::new("*.norm.*")];
    let select = Selection { exclude, rename, ..only(&["layers.*", "head.*"]) };
    let target = place.path("y.safetensors");
    let options = ConvertOptions { select, ..ConvertOptions::default() };
    convert(&golden("four_ranks/dcp"), &target, &options).unwrap();
    let after = open(&target);
    let names: Vec<&String> = after.catalog().tensors.keys().collect();
    assert_eq!(names, ["h.0.wo.weight", "h.0.wq.weight", "head.weight"]);
    let truth = open(&golden("four_ranks/full.safetensors"));
    assert_eq!(bytes_of(&after, "h.0.wq.weight"), bytes_of(&truth, "layers.0.attn.wq.weight"));
}

#[test]
fn scalars_truth_values_integers_and_tensors_without_elements_stay_what_they_are() {
    let place = Place::new();
    let mut parts: Vec<_> = StoredType::ALL
        .into_iter()
        .filter(|dtype| *dtype != StoredType::C128)
        .map(|dtype| part(dtype.name(), dtype, &[], (1..=dtype.size() as u8).collect()))
        .collect();
    parts.push(part("none", StoredType::U8, &[0], vec![]));
    parts.push(part("no rows", StoredType::F64, &[3, 0, 2], vec![]));
    let source = place.file("x.safetensors", &parts);
    let target = place.path("y.safetensors");
    convert(&source, &target, &ConvertOptions::default()).unwrap();
    assert_same(&source, &target);
    let after = open(&target);
    assert_eq!(entry(&after, "no rows").shape, [3, 0, 2]);
    assert_eq!(bytes_of(&after, "I16"), [1, 2]);
    assert_eq!(after.catalog().tensors.len(), StoredType::ALL.len() - 1 + 2);
}

#[test]
fn a_checkpoint_without_tensors_is_a_file_without_tensors() {
    let place = Place::new();
    let source = place.file("x.safetensors", &[]);
    let target = place.path("y.safetensors");
    convert(&source, &target, &ConvertOptions::default()).unwrap();
    assert_eq!(open(&target).catalog().tensors.len(), 0);
}

#[test]
fn names_may_be_any_text() {
    let place = Place::new();
    let names = ["../x", "a/b", "é \"q\" \\", "\n\u{0}\u{1b}[31m", "", "=", "*", &"n".repeat(5000)];
    let source = place.file("x.safetensors", &names.map(|name| floats(name, &[1], &[1.0])));
    let options = ConvertOptions { max_file_bytes: Some(8), ..ConvertOptions::default() };
    convert(&source, &place.path("hub"), &options).unwrap();
    assert_same(&source, &place.path("hub"));
    assert_eq!(names_in(&place.path("hub")).len(), names.len() / 2 + 1);
}

#[test]
fn the_name_that_headers_use_themselves_is_refused() {
    let place = Place::new();
    let source = place.file("x.safetensors", &[floats("w", &[1], &[1.0])]);
    let rename = vec!["w=__metadata__".parse().unwrap()];
    let select = Selection { rename, ..Selection::default() };
    let options = ConvertOptions { select, ..ConvertOptions::default() };
    let error = refused(&place, || convert(&source, &place.path("y.safetensors"), &options));
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn a_type_that_the_format_does_not_have_is_refused_and_can_be_left_out() {
    let place = Place::new();
    let (source, target) = (golden("torch_save/dtypes.pth"), place.path("y.safetensors"));
    let error = refused(&place, || convert(&source, &target, &ConvertOptions::default()));
    assert!(error.to_string().starts_with("dtype C128 in `complex128`"), "{error}");
    let select = Selection { exclude: vec![Pattern::new("complex128")], ..Selection::default() };
    let options = ConvertOptions { select: select.clone(), ..ConvertOptions::default() };
    convert(&source, &target, &options).unwrap();
    let options = DiffOptions { select, ..DiffOptions::default() };
    let found = dtensor_checkpoint::diff(&open(&source), &open(&target), &options).unwrap();
    assert!(found.is_equal(false) && found.tensors.len() > 10, "{found:?}");
}

#[test]
fn a_target_where_the_source_is_is_refused() {
    let place = Place::new();
    let source = place.file("x.safetensors", &[floats("w", &[1], &[1.0])]);
    let inside = Place::new();
    inside.file("x.safetensors", &[floats("w", &[1], &[1.0])]);
    let overwrite = ConvertOptions { overwrite: true, ..ConvertOptions::default() };
    let twisted = place.path("../").replace("../", "") + &format!("{}/../x.safetensors", "sub");
    fs::create_dir(place.path("sub")).unwrap();
    for (source, target) in [
        (source.clone(), source.clone()),
        (source, twisted),
        (inside.path(""), inside.path("y.safetensors")),
        (inside.path(""), inside.path("deep")),
    ] {
        let error = refused(&place, || convert(&source, &target, &overwrite));
        assert!(matches!(error, Error::SamePlace { .. }), "{target}: {error}");
    }
}

#[test]
fn what_exists_is_replaced_only_if_that_is_allowed() {
    let place = Place::new();
    let (old, new) = (floats("old", &[1], &[1.0]), floats("new", &[1], &[2.0]));
    let target = place.file("y.safetensors", &[old]);
    let source = place.file("x.safetensors", &[new]);
    let error = refused(&place, || convert(&source, &target, &ConvertOptions::default()));
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let overwrite = ConvertOptions { overwrite: true, ..ConvertOptions::default() };
    convert(&source, &target, &overwrite).unwrap();
    assert_same(&source, &target);
    // A directory: an empty one is as good as none, and of a full one only checkpoints are replaced.
    let hub = place.path("hub");
    fs::create_dir(&hub).unwrap();
    convert(&source, &hub, &ConvertOptions::default()).unwrap();
    let several = ConvertOptions { max_file_bytes: Some(1), ..overwrite.clone() };
    convert(&golden("four_ranks/dcp"), &hub, &several).unwrap();
    assert_same(&golden("four_ranks/dcp"), &hub);
    fs::write(place.path("hub/tokenizer.json"), "{}").unwrap();
    let error = refused(&place, || convert(&source, &hub, &overwrite));
    assert!(error.to_string().contains("`tokenizer.json`"), "{error}");
    let error = refused(&place, || convert(&source, &format!("{hub}.safetensors/x"), &overwrite));
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_damaged_source_leaves_nothing_at_the_target() {
    let place = Place::new();
    for name in ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp", ".metadata"] {
        fs::copy(golden(&format!("four_ranks/dcp/{name}")), place.path(name)).unwrap();
    }
    let path = place.path("__2_0.distcp");
    let mut bytes = fs::read(&path).unwrap();
    let source = open(&golden("four_ranks/dcp"));
    let chunk = &entry(&source, "layers.0.attn.wq.weight").chunks[0];
    let file = place.path(&source.catalog().files[chunk.file].name);
    if file != path {
        bytes = fs::read(&file).unwrap();
    }
    bytes[chunk.offset as usize + 5] ^= 1;
    fs::write(&file, bytes).unwrap();
    let target = Place::new();
    let convert =
        || convert(&place.path(""), &target.path("y.safetensors"), &ConvertOptions::default());
    let error = refused(&target, convert);
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn patterns_and_casts_that_match_nothing_are_refused() {
    let place = Place::new();
    let source = golden("four_ranks/dcp");
    let target = place.path("y.safetensors");
    let select = only(&["layer.*"]);
    let casts = vec!["norms.*=bf16".parse().unwrap()];
    for options in [
        ConvertOptions { select, ..ConvertOptions::default() },
        ConvertOptions { casts, ..ConvertOptions::default() },
    ] {
        let error = refused(&place, || convert(&source, &target, &options));
        assert!(matches!(error, Error::NoMatch { .. }), "{error}");
    }
}
