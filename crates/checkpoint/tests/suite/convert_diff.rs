//! What differs between checkpoints.

use dtensor_checkpoint::{
    Diff, DiffOptions, Difference, Error, Pattern, Selection, StoredType, Tolerance, Value,
    Verdict,
    convert::{ConvertOptions, to_safetensors},
    diff,
};

use crate::convert_support::{Place, assert_same, floats, golden, open, part};

fn found(a: &str, b: &str, options: &DiffOptions<'_>) -> Diff {
    diff(&open(a), &open(b), options).unwrap()
}

#[test]
fn checkpoints_of_different_kinds_are_equal_if_their_tensors_are() {
    assert_same(&golden("four_ranks/dcp"), &golden("four_ranks/hf"));
    assert_same(&golden("four_ranks/hf"), &golden("four_ranks/full.safetensors"));
}

#[test]
fn every_kind_of_difference_is_told_by_name() {
    let place = Place::new();
    let a = place.file(
        "a.safetensors",
        &[
            floats("same", &[2], &[1.0, f32::NAN]),
            floats("shape", &[2], &[1.0, 2.0]),
            floats("type", &[1], &[1.0]),
            floats("values", &[2, 2], &[1.0, 2.0, f32::NAN, 4.0]),
            floats("old", &[1], &[1.0]),
        ],
    );
    let b = place.file(
        "b.safetensors",
        &[
            floats("same", &[2], &[1.0, f32::NAN]),
            floats("shape", &[2, 1], &[1.0, 2.0]),
            part("type", StoredType::F64, &[1], 1.0_f64.to_le_bytes().to_vec()),
            floats("values", &[2, 2], &[1.0, 2.5, 3.0, 4.0]),
            floats("new", &[1], &[1.0]),
        ],
    );
    let options = DiffOptions::default();
    let diff = found(&a, &b, &options);
    let verdicts: Vec<(&str, Verdict)> =
        diff.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.verdict(false))).collect();
    assert_eq!(
        verdicts,
        [
            ("new", Verdict::OnlyInB),
            ("old", Verdict::OnlyInA),
            ("same", Verdict::Equal),
            ("shape", Verdict::Shape),
            ("type", Verdict::Type),
            ("values", Verdict::Values),
        ]
    );
    assert_eq!(
        diff.tensors["values"].difference,
        Some(Difference { beyond: 2, nan_in_one: 1, max_absolute: 0.5, max_relative: 0.2 })
    );
    assert_eq!(diff.tensors["type"].verdict(true), Verdict::Equal);
    assert!(!diff.is_equal(true));
}

#[test]
fn a_cast_is_within_the_precision_of_its_type() {
    let place = Place::new();
    let numbers: Vec<f32> = (0..5000).map(|index| (index as f32).sin()).collect();
    let a = place.file("a.safetensors", &[floats("w", &[50, 100], &numbers)]);
    let b = place.path("b.safetensors");
    let casts = vec!["bf16".parse().unwrap()];
    to_safetensors(&open(&a), &b, &ConvertOptions { casts, ..ConvertOptions::default() }).unwrap();
    let options = |relative| DiffOptions {
        tolerance: Tolerance { absolute: 0.0, relative },
        ignore_types: true,
        ..DiffOptions::default()
    };
    assert!(found(&a, &b, &options(1.0 / 256.0)).is_equal(true));
    let strict = found(&a, &b, &options(1.0 / 4096.0));
    assert!(strict.tensors["w"].difference.unwrap().beyond > 1000);
}

#[test]
fn one_element_of_a_large_tensor_is_found_whichever_piece_it_is_in() {
    let place = Place::new();
    let size = 3 << 20;
    for position in [0, (2 << 20) - 1, 2 << 20, size - 1] {
        let mut bytes = vec![0; size];
        let a = place.file("a.safetensors", &[part("w", StoredType::I8, &[size], bytes.clone())]);
        bytes[position] = 0xfe;
        let b = place.file("b.safetensors", &[part("w", StoredType::I8, &[size], bytes)]);
        // So many threads that pieces are as small as they get.
        let options = DiffOptions { threads: 40, ..DiffOptions::default() };
        let difference = found(&a, &b, &options).tensors["w"].difference.unwrap();
        assert_eq!((difference.beyond, difference.max_absolute), (1, 2.0), "{position}");
    }
}

#[test]
fn values_differ_by_name_and_content() {
    let place = Place::new();
    let source = golden("torch_save/training.pt");
    let target = place.path("b.safetensors");
    let first = open(&source).catalog().values.keys().next().unwrap().clone();
    let exclude = vec![Pattern::new(first.clone())];
    let select = Selection { exclude, ..Selection::default() };
    to_safetensors(
        &open(&source),
        &target,
        &ConvertOptions { select, ..ConvertOptions::default() },
    )
    .unwrap();
    let diff = found(&source, &target, &DiffOptions::default());
    let names: Vec<&String> = diff.values.keys().collect();
    assert_eq!(names, [&first]);
    assert!(matches!(&diff.values[&first], (Some(_), None::<Value>)));
}

#[test]
fn names_of_the_first_are_changed_and_patterns_may_match_either() {
    let place = Place::new();
    let a =
        place.file("a.safetensors", &[floats("m.w", &[1], &[1.0]), floats("m.x", &[1], &[1.0])]);
    let b = place.file("b.safetensors", &[floats("w", &[1], &[1.0]), floats("y", &[1], &[1.0])]);
    let rename = vec!["m.*=*".parse().unwrap()];
    let exclude = vec![Pattern::new("*x"), Pattern::new("y")];
    let select = Selection { exclude, rename, ..Selection::default() };
    let diff = found(&a, &b, &DiffOptions { select, ..DiffOptions::default() });
    assert!(diff.is_equal(false) && diff.tensors.len() == 1, "{diff:?}");
    let only = vec![Pattern::new("nothing")];
    let select = Selection { only, ..Selection::default() };
    let error = dtensor_checkpoint::diff(
        &open(&a),
        &open(&b),
        &DiffOptions { select, ..DiffOptions::default() },
    );
    assert!(matches!(error, Err(Error::NoMatch { .. })));
}
