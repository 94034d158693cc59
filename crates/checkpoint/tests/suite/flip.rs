//! Every flipped bit is found, on every rank.

use std::sync::Arc;

use dtensor::{DType, Layout};
use dtensor_checkpoint::{
    Error, LoadOptions, MANIFEST_FILE, SaveOptions, StoredType, Value, load_from, save,
};
use dtensor_testing::spmd;

use crate::{
    load_support::{Files, layouts_of, state_of},
    load_written::{Whole, write},
};

fn written(tensors: &[Whole], block: usize) -> Files {
    let dir = tempfile::tempdir().unwrap();
    let values = [("step", Value::Int(7)), ("name", Value::Text("run".into()))];
    write(dir.path(), tensors, &values, block);
    Files::of(dir.path())
}

/// Loads files in which single bits are flipped, one at a time, and demands an error each time on every rank. The ranks are
/// started once, because that takes longer than loading.
fn all_are_found(
    files: &Files,
    flips: &[(String, usize)],
    tensors: &[Whole],
    n_ranks: usize,
    layout: &str,
) {
    let layouts = layouts_of(tensors, n_ranks, layout);
    spmd(n_ranks, |world| {
        let mut state = state_of(world, tensors.iter().zip(&layouts))?;
        let options = LoadOptions { partial: true, ..LoadOptions::default() };
        load_from(world, &mut state, Arc::new(files.clone()), &options)?;
        for (name, bit) in flips {
            let mut bytes = files.files[name].to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let flipped = files.with(name, bytes);
            let found = load_from(world, &mut state, Arc::new(flipped), &options);
            let Err(error) = found else {
                panic!("bit {bit} of `{name}` was not found on {n_ranks} ranks, {layout}")
            };
            let is_damage = matches!(
                error,
                Error::Damaged { .. } | Error::Broken { .. } | Error::OnRank { .. }
            );
            assert!(
                is_damage && error.to_string().contains(name.as_str()),
                "bit {bit} of `{name}`: {error}"
            );
        }
        Ok(())
    });
}

#[test]
fn every_bit_of_every_file_is_covered() {
    let tensors = [
        Whole::new("w", StoredType::F32, &[3, 4]).cut(0, &[2, 1]),
        Whole::new("b", StoredType::F32, &[3]),
    ];
    let files = written(&tensors, 16);
    let flips = files
        .files
        .iter()
        .flat_map(|(name, bytes)| (0..bytes.len() * 8).map(|bit| (name.clone(), bit)));
    let flips: Vec<_> = flips.collect();
    assert!(flips.len() > 10_000);
    all_are_found(&files, &flips, &tensors, 1, "[S(0)]");
    // Several ranks find the same by passing on what they have read. That takes longer, and so it is fewer bits of the headers.
    let in_data = |(name, bit): &(String, usize)| {
        name != MANIFEST_FILE && bit / 8 + 48 >= files.files[name].len()
    };
    let some: Vec<_> =
        flips.iter().filter(|flip| in_data(flip) || flip.1 % 67 == 0).cloned().collect();
    all_are_found(&files, &some, &tensors, 2, "[S(0)]");
    all_are_found(&files, &some, &tensors, 3, "[R]");
}

#[test]
fn every_bit_of_what_a_save_writes_is_covered() {
    let tensors =
        [Whole::new("w", StoredType::F32, &[3, 4]), Whole::new("b", StoredType::F32, &[5])];
    let layouts = layouts_of(&tensors, 2, "[S(0)]");
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("model");
    spmd(2, |world| {
        let mut state = state_of(world, tensors.iter().zip(&layouts))?;
        state.insert("step", 7)?;
        state.insert("key", vec![1_u8, 255])?;
        Ok(save(world, &state, place.to_str().unwrap(), &SaveOptions::default())?)
    });
    let files = Files::of(&place);
    assert_eq!(files.files.len(), 3);
    let flips = files
        .files
        .iter()
        .flat_map(|(name, bytes)| (0..bytes.len() * 8).map(|bit| (name.clone(), bit)));
    let flips: Vec<_> = flips.collect();
    all_are_found(&files, &flips, &tensors, 1, "[S(0)]");
    let some: Vec<_> = flips.iter().step_by(29).cloned().collect();
    all_are_found(&files, &some, &tensors, 2, "[R]");
}

#[test]
fn flips_in_every_region_of_a_larger_checkpoint_are_found() {
    let tensors = [
        Whole::new("a", StoredType::F32, &[700, 900]).cut(0, &[300, 400]),
        Whole::new("b", StoredType::F32, &[300, 5]).cut(1, &[2, 3]),
        Whole::new("c", StoredType::F32, &[1, 600_000]).cut(1, &[599_999, 1]),
    ];
    let files = written(&tensors, 1 << 20);
    let mut flips = Vec::new();
    for (name, bytes) in &files.files {
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut places = vec![0, 7, 8, bytes.len() / 2, bytes.len() - 1];
        if name != MANIFEST_FILE {
            // The end of the JSON, the spaces after it, and around every place where a tensor or a block may begin.
            places.extend([header - 9, header - 1, header]);
            let blocks = (header..bytes.len())
                .step_by(1 << 20)
                .flat_map(|place| [place, place.saturating_sub(1)]);
            places.extend(blocks);
            for cut in [
                300 * 900 * 4,
                300 * 900 * 4 + 300 * 2 * 4,
                400 * 900 * 4,
                400 * 900 * 4 + 300 * 3 * 4,
            ] {
                places.extend([header + cut - 1, header + cut]);
            }
        }
        flips.extend(
            places
                .into_iter()
                .filter(|place| *place < bytes.len())
                .map(|place| (name.clone(), place * 8 + place % 8)),
        );
    }
    for (n_ranks, layout) in [(1, "[S(0)]"), (2, "[S(1)]")] {
        all_are_found(&files, &flips, &tensors, n_ranks, layout);
    }
}

#[test]
fn without_verification_headers_are_still_verified_and_tensors_are_not() {
    let tensors = [Whole::new("w", StoredType::F32, &[3, 4])];
    let files = written(&tensors, 16);
    let (name, bytes) = files.files.iter().find(|(name, _)| *name != MANIFEST_FILE).unwrap();
    let flipped = |place: usize| {
        let mut bytes = bytes.to_vec();
        bytes[place] ^= 4;
        files.with(name, bytes)
    };
    let layout = Layout::parse(&[3, 4], DType::F32, &"x=1".parse().unwrap(), "[R]").unwrap();
    let options = LoadOptions { verify: false, partial: true, ..LoadOptions::default() };
    spmd(1, |world| {
        let mut state = state_of(world, [(&tensors[0], &layout)])?;
        load_from(world, &mut state, Arc::new(flipped(bytes.len() - 1)), &options)?;
        load_from(world, &mut state, Arc::new(flipped(20)), &options).unwrap_err();
        Ok(())
    });
}
