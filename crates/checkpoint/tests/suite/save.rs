//! What a save writes, and what it refuses.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use dtensor::{
    DTensor, DType, DeviceMesh, Placement::*, ReduceOp, Runner, Tensor, World, distribute_tensor,
    zeros,
};
use dtensor_checkpoint::{
    Error, RandomNumbers, SaveOptions, State, Stateful, Value, async_save, gather_states, save,
    save_objects, scatter_states,
};
use dtensor_testing::{Failure, spmd};
use serde_json::json;

use crate::saved::{
    Checkpoint, as_bytes, elements, names_in, numbered, place, small_state, small_version,
};

/// The errors of all ranks of a save that is refused.
fn refused(
    n_ranks: usize,
    path: &str,
    state: impl Fn(&World) -> Result<State, Failure> + Sync,
) -> Vec<Error> {
    spmd(n_ranks, |world| {
        let state = state(world)?;
        Ok(save(world, &state, path, &SaveOptions::default()).unwrap_err())
    })
}

#[test]
fn a_save_replaces_the_one_before() {
    let (directory, path, text) = place();
    let mut ids = Vec::new();
    for version in 0..3 {
        spmd(3, |world| {
            let saved = save(world, &small_state(world, version)?, &text, &SaveOptions::default())?;
            assert_eq!((saved.tensors, saved.bytes), (3, 33 * 8));
            assert_eq!(saved.place, path.canonicalize()?.to_str().unwrap());
            Ok(())
        });
        assert_eq!(small_version(&path), Ok(version));
        assert_eq!(names_in(directory.path()), ["model"]);
        ids.push(Checkpoint::read(&path).unwrap().manifest["id"].clone());
    }
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);
}

#[test]
fn ranks_with_nothing_to_write_write_no_file() {
    let (_directory, path, text) = place();
    let written = spmd(4, |world| {
        let mut state = State::new();
        // On ranks 1 and 3.
        let mesh = DeviceMesh::from_mesh(world, "x=2:2@1".parse()?)?;
        let whole = Tensor::from_vec(elements(5, 0), &[5])?;
        state.insert("odd", dtensor::distribute_tensor_from(&whole, &mesh, &[Shard(0)], None)?)?;
        Ok(save(world, &state, &text, &SaveOptions::default())?.written)
    });
    assert_eq!(written, [0, 24, 0, 16]);
    let checkpoint = Checkpoint::read(&path).unwrap();
    let files: Vec<&String> = checkpoint.headers.keys().collect();
    assert_eq!(
        files,
        [
            "shard-00002-model-00001-of-00001.safetensors",
            "shard-00004-model-00001-of-00001.safetensors"
        ]
    );
    assert_eq!(checkpoint.tensor("odd"), as_bytes(&elements(5, 0)));
}

#[test]
fn a_state_without_tensors_is_a_manifest() {
    let (_directory, path, text) = place();
    spmd(2, |world| {
        let mut state = State::new();
        state.insert("step", 7)?;
        state.insert("rate", 0.1)?;
        state.insert("name", "run")?;
        state.insert("key", vec![1_u8, 255])?;
        state.insert("none", Value::Nothing)?;
        state.insert("list", Value::EmptyList)?;
        save(world, &state, &text, &SaveOptions::default())?;
        Ok(())
    });
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert!(checkpoint.headers.is_empty());
    let want = json!({
        "step": 7, "rate": {"float": "0.1"}, "name": "run", "key": {"bytes": "01ff"}, "none": null, "list": [],
    });
    assert_eq!(*checkpoint.values(), want);
}

#[test]
fn values_that_do_not_lie_in_order_are_written_in_order() {
    let (_directory, path, text) = place();
    // More than is made consecutive at a time, and rows that are longer than that.
    let shapes = [[3, 5], [1500, 1100], [700_000, 2], [2, 700_000]];
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        for [rows, columns] in shapes {
            let whole = Tensor::from_vec(elements(rows * columns, 1), &[rows, columns])?;
            let turned = whole.transpose(0, 1)?.contiguous().transpose(0, 1)?;
            assert!(!turned.is_contiguous());
            let tensor =
                DTensor::from_local_with_shape(&turned, &mesh, &[Replicate], &[rows, columns])?;
            state.insert(format!("{rows}x{columns}"), tensor)?;
        }
        save(world, &state, &text, &SaveOptions::default().sync(false))?;
        Ok(())
    });
    let checkpoint = Checkpoint::read(&path).unwrap();
    for [rows, columns] in shapes {
        let part = &checkpoint.parts[&format!("{rows}x{columns}")];
        assert!(part[0].bytes == as_bytes(&elements(rows * columns, 1)), "{rows}x{columns}");
    }
}

#[test]
fn thousands_of_small_tensors_are_written_in_large_pieces() {
    let (_directory, path, text) = place();
    let n_calls = Arc::new(AtomicU64::new(0));
    spmd(2, |world| {
        let mut state = State::new();
        for index in 0..2000 {
            let tensor =
                zeros(&[300], DType::F32, &DeviceMesh::of_world(world, "x")?, &[Shard(0)])?;
            state.insert(format!("t{index}"), tensor)?;
        }
        let calls = Arc::clone(&n_calls);
        let options = SaveOptions::default().progress(move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        save(world, &state, &text, &options)?;
        Ok(())
    });
    // 1.2 MB a rank, in pieces of at most a MiB.
    assert_eq!(n_calls.load(Ordering::Relaxed), 4);
    assert_eq!(Checkpoint::read(&path).unwrap().parts.len(), 2000);
}

#[test]
fn progress_ends_where_it_should() {
    let (_directory, _path, text) = place();
    let told = spmd(2, |world| {
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = Arc::clone(&told);
        let options = SaveOptions::default()
            .sync(false)
            .progress(move |progress| teller.lock().unwrap().push(progress));
        let mut state = State::new();
        state.insert("large", numbered(world, &[1 << 19], 0, Shard(0))?)?;
        state.insert("small", numbered(world, &[3], 0, Shard(0))?)?;
        save(world, &state, &text, &options)?;
        let told = told.lock().unwrap().clone();
        Ok(told)
    });
    for (told, total) in told.iter().zip([(2 << 20) + 16, (2 << 20) + 8]) {
        assert!(told.is_sorted_by_key(|progress| progress.done));
        assert!(told.iter().all(|progress| progress.total == total));
        assert_eq!(told.last().unwrap().done, total);
    }
}

#[test]
fn ranks_may_be_done_further_apart_than_the_deadline() {
    let (directory, path, text) = place();
    let deadline = Duration::from_secs(4);
    let saved = Runner::threads(3).deadline(deadline).run(|world| {
        let options = match world.rank() {
            1 => SaveOptions::default()
                .progress(move |_| thread::sleep(deadline + Duration::from_secs(2))),
            _ => SaveOptions::default(),
        };
        Ok::<_, Failure>(save(world, &small_state(world, 6)?, &text, &options)?)
    });
    assert_eq!(saved.unwrap().len(), 3);
    assert_eq!(small_version(&path), Ok(6));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_pending_tensor_is_refused_by_name_before_anything_is_written() {
    let (directory, _path, text) = place();
    let errors = refused(2, &text, |world| {
        let mut state = small_state(world, 0)?;
        let mesh = DeviceMesh::of_world(world, "x")?;
        state.insert("grad", zeros(&[3], DType::F32, &mesh, &[Partial(ReduceOp::Sum)])?)?;
        Ok(state)
    });
    let want = Error::Partial { name: "grad".into(), layout: "[P(sum)]".into() };
    assert_eq!(errors, [want.clone(), want]);
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_tensor_with_the_name_that_the_format_needs_is_refused() {
    let (_directory, _path, text) = place();
    let errors = refused(2, &text, |world| {
        let mut state = State::new();
        state.insert("__metadata__", numbered(world, &[3], 0, Shard(0))?)?;
        Ok(state)
    });
    assert!(matches!(&errors[1], Error::Unsupported { place, .. } if place == "__metadata__"));
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn values_that_no_manifest_can_hold_are_refused_and_the_old_checkpoint_stays() {
    let (directory, path, text) = place();
    spmd(2, |world| Ok(save(world, &small_state(world, 1)?, &text, &SaveOptions::default())?));
    // A control character takes six bytes of the hundred million that a manifest may have.
    let large = "\u{1}".repeat(17_000_000);
    let errors = refused(2, &text, |world| {
        let mut state = small_state(world, 2)?;
        state.insert("notes", large.as_str())?;
        Ok(state)
    });
    assert!(matches!(&errors[0], Error::Unsupported { what, .. } if what.contains("manifest")));
    assert_eq!(errors[0], errors[1]);
    assert_eq!(small_version(&path), Ok(1));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_tensor_whose_parts_no_reader_can_put_together_is_refused() {
    let (directory, _path, text) = place();
    // Two ranks for each of seven dims.
    let errors = refused(128, &text, |world| {
        let axes = ["a", "b", "c", "d", "e", "f", "g"].map(|axis| (axis, 2));
        let placements: Vec<_> = (0..7).map(Shard).collect();
        let mesh = DeviceMesh::new(world, &axes)?;
        let mut state = State::new();
        state.insert("w", zeros(&[2; 7], DType::F32, &mesh, &placements)?)?;
        Ok(state)
    });
    assert!(matches!(&errors[0], Error::Unsupported { what, .. } if what.contains("`w`")));
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn states_that_differ_between_ranks_are_refused_with_the_first_difference() {
    let (directory, _path, text) = place();
    type Change = fn(&World, &mut State) -> Result<(), Failure>;
    let changes: [(Change, &str, &str); 4] = [
        (
            |world, state| Ok(state.insert(format!("name{}", world.rank()), 1)?),
            "entry 4",
            "`name0`, Int(1) on rank 0 and `name2`, Int(1) on rank 2",
        ),
        (
            |world, state| Ok(state.insert("loss", world.rank() as f64)?),
            "entry 4",
            "`loss`, Float(0.0) on rank 0 and `loss`, Float(1.0) on rank 1",
        ),
        (
            |world, state| match world.rank() {
                2 => Ok(state.insert("more", 1)?),
                _ => Ok(()),
            },
            "entry 4",
            "is nothing on rank 0 and `more`, Int(1) on rank 2",
        ),
        (
            |world, state| {
                let mesh = DeviceMesh::of_world(world, "x")?;
                let placement = if world.rank() == 1 { Replicate } else { Shard(0) };
                Ok(state.insert("w", dtensor::empty(&[3], DType::F32, &mesh, &[placement])?)?)
            },
            "entry 4",
            "`w`, f32[3] on x=3: [S(0)] on rank 0 and `w`, f32[3] on x=3: [R] on rank 1",
        ),
    ];
    for (index, (change, what, text_of_error)) in changes.into_iter().enumerate() {
        let errors = refused(3, &text, |world| {
            let mut state = small_state(world, 0)?;
            match (index, world.rank()) {
                // Rank 1 agrees with rank 0 on the name.
                (0, 1) => state.insert("name0", 1)?,
                _ => change(world, &mut state)?,
            }
            Ok(state)
        });
        let text = errors[0].to_string();
        assert!(text.contains(what) && text.contains(text_of_error), "{text}");
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    }
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn ranks_that_save_to_different_places_are_refused() {
    let (directory, _path, text) = place();
    let errors = spmd(2, |world| {
        let path = format!("{text}{}", world.rank());
        Ok(save(world, &small_state(world, 0)?, &path, &SaveOptions::default()).unwrap_err())
    });
    assert!(errors[1].to_string().contains("the place is"), "{}", errors[1]);
    assert_eq!(errors[0], errors[1]);
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn what_is_no_checkpoint_is_not_overwritten() {
    type Make = fn(&Path);
    let cases: [(&str, Make); 3] = [
        ("`thesis.txt`", |path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("thesis.txt"), "years of work").unwrap();
        }),
        ("a file", |path| fs::write(path, "thesis.txt").unwrap()),
        ("`config.json`", |path| {
            let path = path.to_str().unwrap();
            spmd(1, |world| {
                Ok(save(world, &small_state(world, 1)?, path, &SaveOptions::default())?)
            });
            fs::write(format!("{path}/config.json"), "{}").unwrap();
        }),
    ];
    for (found, make) in cases {
        let (directory, path, text) = place();
        make(&path);
        let before = names_in(&path);
        let errors = refused(2, &text, |world| small_state(world, 0));
        assert!(
            matches!(&errors[0], Error::Occupied { found: it, .. } if it == found),
            "{}",
            errors[0]
        );
        assert!(
            matches!(&errors[1], Error::OnRank { rank: 0, message } if message.contains(found))
        );
        assert_eq!(names_in(&path), before);
        assert_eq!(names_in(directory.path()), ["model"]);
    }
}

#[test]
fn an_empty_directory_is_a_place_for_a_checkpoint_and_so_is_one_behind_a_link() {
    let (directory, path, text) = place();
    fs::create_dir(&path).unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for (version, to) in [(1, text.as_str()), (2, link.to_str().unwrap())] {
        spmd(2, |world| {
            Ok(save(world, &small_state(world, version)?, to, &SaveOptions::default())?)
        });
        assert_eq!(small_version(&path), Ok(version));
        assert_eq!(names_in(directory.path()), ["link", "model"]);
    }
}

#[test]
fn directories_on_the_way_are_made() {
    let (directory, _path, _text) = place();
    let path = directory.path().join("runs/7/model");
    spmd(2, |world| {
        let path = path.to_str().unwrap();
        Ok(save(world, &small_state(world, 3)?, path, &SaveOptions::default())?)
    });
    assert_eq!(small_version(&path), Ok(3));
}

#[test]
fn what_killed_saves_left_is_removed_and_what_is_not_theirs_stays() {
    let (directory, path, text) = place();
    let dead = ".model.partial-0123456789abcdef";
    let others = [".model.partial-notes", ".other.partial-0123456789abcdef"];
    for name in
        [dead, others[0], others[1], ".model.old-0123456789abcdef", ".model.notes-0123456789abcdef"]
    {
        fs::create_dir(directory.path().join(name)).unwrap();
        fs::write(directory.path().join(name).join("file"), "half").unwrap();
    }
    spmd(1, |world| Ok(save(world, &small_state(world, 3)?, &text, &SaveOptions::default())?));
    assert_eq!(small_version(&path), Ok(3));
    assert_eq!(names_in(directory.path()), [others[0], others[1], "model"]);
}

#[test]
fn an_old_checkpoint_that_was_on_its_way_out_is_found_and_put_back() {
    let (directory, path, text) = place();
    let save_version = |version| {
        spmd(1, |world| {
            Ok(save(world, &small_state(world, version)?, &text, &SaveOptions::default())?)
        });
    };
    save_version(1);
    fs::rename(&path, directory.path().join(".model.old-0123456789abcdef")).unwrap();
    // A reader takes it where it is.
    let storage = dtensor_checkpoint::storage::open(&text).unwrap();
    assert!(storage.list().unwrap().iter().any(|file| file.name == "dtensor.manifest.json"));
    // A save that fails has put it back.
    spmd(1, |world| {
        let options = SaveOptions::default().progress(|_| panic!("on purpose"));
        async_save(world, &small_state(world, 2)?, &text, &options)?.wait().unwrap_err();
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(1));
    save_version(3);
    assert_eq!(small_version(&path), Ok(3));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_read_only_directory_is_an_error_on_every_rank_and_the_old_checkpoint_stays() {
    let (directory, path, text) = place();
    spmd(2, |world| Ok(save(world, &small_state(world, 1)?, &text, &SaveOptions::default())?));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let errors = as_nobody(|| refused(2, &text, |world| small_state(world, 2)));
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let denied = |error: &Error| {
        matches!(error, Error::Io { kind: std::io::ErrorKind::PermissionDenied, .. })
    };
    assert!(denied(&errors[0]), "{}", errors[0]);
    assert!(
        matches!(&errors[1], Error::OnRank { rank: 0, message } if message.contains("ermission denied"))
    );
    assert_eq!(small_version(&path), Ok(1));
    assert_eq!(names_in(directory.path()), ["model"]);
}

/// Runs a test on a thread without the rights of root, whom no directory refuses anything. Threads inherit their rights from the one
/// that starts them.
fn as_nobody<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(65534)).unwrap();
            }
            test()
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn objects_are_saved_together_and_go_on_from_their_parts() {
    let (_directory, path, text) = place();
    spmd(2, |world| {
        dtensor::random::manual_seed(u64::MAX - 5);
        dtensor::rand(&[3], DType::F32, &DeviceMesh::of_world(world, "x")?, &[Shard(0)])?;
        let model = small_state(world, 4)?;
        save_objects(
            world,
            &[("model", &model), ("random", &RandomNumbers)],
            &text,
            &SaveOptions::default(),
        )?;
        let state = gather_states(&[("model", &model), ("random", &RandomNumbers)])?;
        let before = dtensor::random::state();
        dtensor::random::manual_seed(1);
        let mut other = small_state(world, 9)?;
        scatter_states(&mut [("model", &mut other), ("random", &mut RandomNumbers)], &state)?;
        assert_eq!(dtensor::random::state(), before);
        assert_eq!(other.value("version"), Some(&Value::Int(4)));
        let error = other.load_state(&State::new()).unwrap_err();
        assert!(matches!(error, Error::Missing { .. }));
        Ok(())
    });
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert_eq!(
        *checkpoint.values(),
        json!({"model.version": 4, "random.seed": -6, "random.offset": 1})
    );
    assert_eq!(checkpoint.tensor("model.model.rows"), as_bytes(&elements(15, 4)));
}

#[test]
fn a_fake_world_saves_nothing() {
    let world = World::fake(8, 0).unwrap();
    let mut state = State::new();
    let mesh = DeviceMesh::of_world(&world, "x").unwrap();
    state.insert("w", zeros(&[8], DType::F32, &mesh, &[Shard(0)]).unwrap()).unwrap();
    let error = save(&world, &state, "/nowhere", &SaveOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn a_tensor_of_another_world_is_refused_on_every_rank() {
    let (directory, _path, text) = place();
    let errors = refused(2, &text, |world| {
        let mesh = match world.rank() {
            1 => DeviceMesh::of_world(&World::fake(2, 1)?, "x")?,
            _ => DeviceMesh::of_world(world, "x")?,
        };
        let mut state = State::new();
        let whole = Tensor::zeros(&[4], DType::F32)?;
        state.insert("w", dtensor::distribute_tensor_from(&whole, &mesh, &[Shard(0)], None)?)?;
        Ok(state)
    });
    assert!(matches!(&errors[0], Error::OnRank { rank: 1, .. }), "{}", errors[0]);
    assert!(matches!(&errors[1], Error::Unsupported { .. }), "{}", errors[1]);
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_tensor_without_dims_is_saved() {
    let (_directory, path, text) = place();
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        state.insert("scalar", distribute_tensor(&Tensor::scalar(5_i64), &mesh, &[Replicate])?)?;
        Ok(save(world, &state, &text, &SaveOptions::default())?)
    });
    assert_eq!(Checkpoint::read(&path).unwrap().tensor("scalar"), as_bytes(&[5]));
}
