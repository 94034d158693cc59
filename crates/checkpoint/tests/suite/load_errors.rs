//! What cannot be loaded: said on every rank, before anything is changed where that can be.

use std::{fs, sync::Arc};

use dtensor::{DType, DeviceMesh, Layout, Mesh, Placement, ReduceOp, World, full};
use dtensor_checkpoint::{
    Error, LoadOptions, LoadReport, MANIFEST_FILE, Misshapen, State, Storage, StoredType, Value,
    load, load_from,
};
use dtensor_testing::{Failure, spmd};

use crate::{
    load_support::{Files, check, state_of},
    load_written::{Whole, write},
};

const PARTIAL: LoadOptions<'static> = LoadOptions { verify: true, partial: true, progress: None };

fn two_tensors() -> [Whole; 2] {
    [
        Whole::new("layer.weight", StoredType::F32, &[6, 4]).cut(0, &[3, 3]),
        Whole::new("layer.bias", StoredType::F32, &[6]),
    ]
}

/// A checkpoint with two tensors and a value.
fn checkpoint() -> (tempfile::TempDir, Files) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &two_tensors(), &[("step", Value::Int(3))], 32);
    let files = Files::of(dir.path());
    (dir, files)
}

/// A state of ones.
fn ones(world: &World, shapes: &[(&str, &[usize])]) -> Result<State, Failure> {
    let mesh = DeviceMesh::of_world(world, "x")?;
    let mut state = State::new();
    for (name, shape) in shapes {
        state.insert(*name, full(shape, 1.0_f32, &mesh, &[Placement::Shard(0)])?)?;
    }
    Ok(state)
}

fn all_ones(state: &State) -> bool {
    let is_ones = |(name, _): (&str, _)| {
        let local = state.tensor(name).unwrap().to_local();
        local.to_vec::<f32>().unwrap().iter().all(|value| *value == 1.0)
    };
    state.iter().all(is_ones)
}

/// What loading into a state of ones gives, on every rank; nothing is changed if it is refused.
fn refused(
    files: &Files,
    n_ranks: usize,
    shapes: &[(&str, &[usize])],
    options: &LoadOptions<'_>,
) -> Vec<Error> {
    spmd(n_ranks, |world| {
        let mut state = ones(world, shapes)?;
        let error = load_from(world, &mut state, Arc::new(files.clone()), options).unwrap_err();
        assert!(all_ones(&state), "changed, though refused: {error}");
        Ok(error)
    })
}

#[test]
fn names_that_are_missing_are_an_error_that_names_the_nearest() {
    let (_dir, files) = checkpoint();
    for n_ranks in [1, 3] {
        let shapes: &[(&str, &[usize])] = &[("layer.bias", &[6]), ("layer.wieght", &[6, 4])];
        for error in refused(&files, n_ranks, shapes, &LoadOptions::default()) {
            assert_eq!(
                error,
                Error::Missing { name: "layer.wieght".into(), nearest: "`layer.weight`".into() }
            );
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_an_error_with_both() {
    let (_dir, files) = checkpoint();
    let shapes: &[(&str, &[usize])] = &[("layer.bias", &[6]), ("layer.weight", &[4, 6])];
    for error in refused(&files, 2, shapes, &LoadOptions::default()) {
        let (stored, wanted) = (vec![6, 4], vec![4, 6]);
        assert_eq!(error, Error::Misshapen { name: "layer.weight".into(), stored, wanted });
    }
}

#[test]
fn a_partial_load_reports_what_it_left_out() {
    let (_dir, files) = checkpoint();
    let tensors = two_tensors();
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let layout = Layout::parse(&[6], DType::F32, mesh.mesh(), "[S(0)]")?;
        let mut state = ones(world, &[("layer.weight", &[7, 4]), ("head", &[2])])?;
        state.insert_all("x", State::new())?;
        state.insert("layer.bias", full(&[6], 1.0_f32, &mesh, &[Placement::Shard(0)])?)?;
        state.insert("epoch", 1)?;
        let report = load_from(world, &mut state, Arc::new(files.clone()), &PARTIAL)?;
        let misshapen =
            Misshapen { name: "layer.weight".into(), stored: vec![6, 4], wanted: vec![7, 4] };
        let want = LoadReport {
            tensors: 1,
            values: 0,
            bytes: 12,
            missing: vec!["head".into(), "epoch".into()],
            unexpected: vec!["step".into()],
            unreadable: vec![],
            misshapen: vec![misshapen],
        };
        assert_eq!(report, want);
        check(world, &state, [(&tensors[1], &layout)]);
        assert_eq!(state.value("epoch"), Some(&Value::Int(1)));
        assert!(
            state
                .tensor("layer.weight")
                .unwrap()
                .to_local()
                .to_vec::<f32>()?
                .iter()
                .all(|one| *one == 1.0)
        );
        Ok(())
    });
}

#[test]
fn a_tensor_is_not_loaded_from_a_value_nor_a_value_from_a_tensor() {
    let (_dir, files) = checkpoint();
    spmd(1, |world| {
        let mut state = ones(world, &[("step", &[1])])?;
        state.insert("layer.bias", 2.5)?;
        let report = load_from(world, &mut state, Arc::new(files.clone()), &PARTIAL)?;
        assert_eq!(report.missing, ["step", "layer.bias"]);
        assert_eq!((report.tensors, report.values), (0, 0));
        assert_eq!(report.unexpected, ["layer.weight"]);
        Ok(())
    });
}

#[test]
fn a_pending_reduction_is_refused() {
    let (_dir, files) = checkpoint();
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        state.insert(
            "layer.bias",
            full(&[6], 1.0_f32, &mesh, &[Placement::Partial(ReduceOp::Sum)])?,
        )?;
        let error = load_from(world, &mut state, Arc::new(files.clone()), &PARTIAL).unwrap_err();
        assert!(error.to_string().contains("pending reduction"), "{error}");
        Ok(())
    });
}

#[test]
fn complex_elements_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[Whole::new("z", StoredType::C64, &[3])], &[], 64);
    let files = Files::of(dir.path());
    for error in refused(&files, 2, &[("z", &[3])], &LoadOptions::default()) {
        assert!(matches!(&error, Error::Unsupported { place, .. } if place == "z"), "{error}");
    }
}

#[test]
fn a_file_that_is_gone_or_cut_off_is_an_error_on_every_rank() {
    let (_dir, files) = checkpoint();
    let shapes: &[(&str, &[usize])] = &[("layer.bias", &[6]), ("layer.weight", &[6, 4])];
    let names: Vec<String> =
        files.files.keys().filter(|name| *name != MANIFEST_FILE).cloned().collect();
    assert_eq!(names.len(), 2);
    for n_ranks in [1, 2, 3] {
        for name in &names {
            let errors = refused(&files.without(name), n_ranks, shapes, &LoadOptions::default());
            assert!(
                errors.iter().all(|error| error.to_string().contains(name.as_str())),
                "{errors:?}"
            );
            let whole = &files.files[name];
            for length in [0, 4, 8, 40, whole.len() - 1] {
                let cut = files.with(name, whole[..length].to_vec());
                let errors = refused(&cut, n_ranks, shapes, &LoadOptions::default());
                assert!(
                    errors.iter().all(|error| error.to_string().contains("bytes")),
                    "{errors:?}"
                );
            }
            let longer = files.with(name, [whole.as_slice(), &[0]].concat());
            refused(&longer, n_ranks, shapes, &LoadOptions::default());
        }
    }
}

#[test]
fn a_place_without_a_checkpoint_is_the_same_error_on_every_rank() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "nothing").unwrap();
    for (path, part) in
        [(dir.path().to_path_buf(), "notes.txt"), (dir.path().join("nowhere"), "nowhere")]
    {
        for n_ranks in [1, 3] {
            let errors = spmd(n_ranks, |world| {
                let mut state = State::new();
                Ok(load(world, &mut state, path.to_str().unwrap(), &LoadOptions::default())
                    .unwrap_err())
            });
            assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
            assert!(errors[0].to_string().contains(part), "{}", errors[0]);
        }
    }
}

#[test]
fn a_rank_that_cannot_read_stops_all_of_them() {
    let (_dir, files) = checkpoint();
    let tensors = two_tensors();
    for layout in ["[S(0)]", "[S(1)]", "[R]"] {
        let mut stopped = 0;
        for broken in 0..3 {
            let outcomes = spmd(3, |world| {
                let failing = (world.rank() == broken).then_some("shard");
                let storage: Arc<dyn Storage> = Arc::new(Files { failing, ..files.clone() });
                let mesh = Mesh::from_sizes(&[3])?;
                let layouts = tensors.each_ref().map(|whole| {
                    let copies = Layout::parse(&whole.shape, DType::F32, &mesh, "[R]").unwrap();
                    Layout::parse(&whole.shape, DType::F32, &mesh, layout).unwrap_or(copies)
                });
                let mut state = state_of(world, tensors.iter().zip(&layouts))?;
                Ok(load_from(world, &mut state, storage, &PARTIAL))
            });
            // Not every rank has something to read of so little.
            let Err(cause) = &outcomes[broken] else {
                assert!(outcomes.iter().all(Result::is_ok), "{layout}: {outcomes:?}");
                continue;
            };
            assert!(matches!(cause, Error::Io { .. }), "{layout}: {outcomes:?}");
            let told = Err(Error::OnRank { rank: broken, message: cause.to_string() });
            let others = outcomes.iter().enumerate().filter(|(rank, _)| *rank != broken);
            others.for_each(|(_, outcome)| assert_eq!(*outcome, told, "{layout}"));
            stopped += 1;
        }
        assert!(stopped > 0, "{layout}");
    }
}

#[test]
fn after_an_error_the_world_goes_on() {
    let (_dir, files) = checkpoint();
    let whole = &two_tensors()[1];
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let layout = Layout::parse(&[6], DType::F32, mesh.mesh(), "[S(0)]")?;
        let mut state = state_of(world, [(whole, &layout)])?;
        let failing = (world.rank() == 0).then_some("shard");
        let broken = Files { failing, ..files.clone() };
        load_from(world, &mut state, Arc::new(broken), &PARTIAL).unwrap_err();
        load_from(world, &mut state, Arc::new(files.clone()), &PARTIAL)?;
        check(world, &state, [(whole, &layout)]);
        Ok(())
    });
}

#[test]
fn ranks_with_different_states_are_told_where_they_differ() {
    let (_dir, files) = checkpoint();
    for odd in 0..3 {
        let errors = spmd(3, |world| {
            let mut state = ones(world, &[("layer.bias", &[6])])?;
            if world.rank() == odd {
                state = ones(world, &[("layer.bias", &[6]), ("layer.weight", &[6, 4])])?;
            }
            Ok(load_from(world, &mut state, Arc::new(files.clone()), &PARTIAL)
                .unwrap_err()
                .to_string())
        });
        assert!(
            errors
                .iter()
                .all(|error| error.contains("entry 1")
                    && error.contains("`layer.weight`, f32[6, 4]")),
            "{errors:?}"
        );
    }
}
