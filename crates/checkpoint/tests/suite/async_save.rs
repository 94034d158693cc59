//! Saving behind the back of the program.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use dtensor::{DType, DeviceMesh, Placement::*, ReduceOp, World, zeros};
use dtensor_checkpoint::{
    AsyncSaver, Error, Progress, SaveOptions, State, WhenBusy, async_save, save,
};
use dtensor_testing::spmd;

use crate::saved::{
    Checkpoint, as_bytes, elements, names_in, numbered, place, small_state, small_version,
};

/// Holds saves up, until it is let go.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<()>>);

impl Gate {
    /// Options with which a save stops before it has written all, as long as the gate is locked.
    fn options(&self) -> SaveOptions {
        let gate = self.clone();
        SaveOptions::default().progress(move |_| drop(gate.0.lock()))
    }
}

#[test]
fn what_is_changed_after_the_call_is_saved_as_it_was() {
    let (directory, path, text) = place();
    spmd(2, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let mut weight = numbered(world, &[7, 5], 0, Shard(0))?;
        let mut state = State::new();
        state.insert("weight", weight.clone())?;
        let saving = async_save(world, &state, &text, &gate.options())?;
        assert!(!saving.is_done());
        // In place: nobody else has the memory.
        drop(state);
        weight.modify_local(|local| {
            local.as_mut_slice::<i64>()?.fill(-1);
            Ok(())
        })?;
        drop(closed);
        let saved = saving.wait()?;
        assert_eq!((saved.tensors, saved.bytes), (1, 35 * 8));
        assert!(saving.is_done());
        let total = saved.written;
        assert_eq!(saving.progress(), Progress { done: total, total });
        assert_eq!(saving.wait()?, saved);
        Ok(())
    });
    assert_eq!(Checkpoint::read(&path).unwrap().tensor("weight"), as_bytes(&elements(35, 0)));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn the_program_may_use_the_world_meanwhile() {
    let (_directory, path, text) = place();
    spmd(3, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let saving = async_save(world, &small_state(world, 5)?, &text, &gate.options())?;
        for _ in 0..100 {
            let mut sum = [1.0_f32];
            world.group().all_reduce(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [3.0]);
        }
        drop(closed);
        saving.wait()?;
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(5));
}

#[test]
fn a_saver_keeps_its_memory_for_the_next_save() {
    let (_directory, path, text) = place();
    let kept = spmd(2, |world| {
        let mut saver = AsyncSaver::new();
        let mut kept = Vec::new();
        for version in 0..4 {
            saver
                .save(world, &small_state(world, version)?, &text, &SaveOptions::default())?
                .wait()?;
            kept.push(saver.kept_bytes());
        }
        Ok(kept)
    });
    // All that is saved, once over both ranks: 33 elements.
    assert_eq!(kept[0][0] + kept[1][0], 33 * 8);
    assert!(kept.iter().flatten().all(|bytes| [kept[0][0], kept[1][0]].contains(bytes)));
    assert_eq!(small_version(&path), Ok(3));
}

#[test]
fn a_second_save_waits_for_the_first() {
    let (_directory, path, text) = place();
    spmd(2, |world| {
        let mut saver = AsyncSaver::new();
        let saves: Vec<_> = (1..=3)
            .map(|version| {
                let state = small_state(world, version)?;
                Ok::<_, dtensor_testing::Failure>(saver.save(
                    world,
                    &state,
                    &text,
                    &SaveOptions::default(),
                )?)
            })
            .collect::<Result<_, _>>()?;
        assert!(saves[0].is_done() && saves[1].is_done());
        for saving in saves {
            saving.wait()?;
        }
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(3));
}

#[test]
fn a_second_save_is_refused_on_all_ranks_if_one_is_busy() {
    let (directory, path, text) = place();
    spmd(2, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let mut saver = AsyncSaver::new().when_busy(WhenBusy::Refuse);
        // Nobody is done before rank 1 is, which waits.
        let options = match world.rank() {
            0 => SaveOptions::default(),
            _ => gate.options(),
        };
        let saving = saver.save(world, &small_state(world, 1)?, &text, &options)?;
        assert!(saver.is_busy());
        let error = saver.save(world, &small_state(world, 2)?, &text, &options).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(closed);
        saving.wait()?;
        world.group().barrier()?;
        saver.save(world, &small_state(world, 3)?, &text, &SaveOptions::default())?.wait()?;
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(3));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_save_to_a_place_where_another_one_is_under_way_is_refused_whoever_makes_it() {
    let (directory, path, text) = place();
    spmd(2, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let saving = async_save(world, &small_state(world, 1)?, &text, &gate.options())?;
        // The same place by another name.
        let other_name = format!("{}/./model", directory.path().display());
        for place in [&text, &other_name] {
            let state = small_state(world, 2)?;
            let options = SaveOptions::default();
            let behind = async_save(world, &state, place, &options).unwrap_err();
            let at_once = save(world, &state, place, &options).unwrap_err();
            // Not told by rank 0, but known on all ranks.
            for error in [behind, at_once] {
                assert!(matches!(error, Error::Busy { .. }), "rank {}: {error}", world.rank());
            }
        }
        // Beside it there is room.
        save(world, &small_state(world, 4)?, &format!("{text}2"), &SaveOptions::default())?;
        world.group().barrier()?;
        drop(closed);
        saving.wait()?;
        world.group().barrier()?;
        save(world, &small_state(world, 3)?, &text, &SaveOptions::default())?;
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(3));
    assert_eq!(names_in(directory.path()), ["model", "model2"]);
}

#[test]
fn a_save_to_a_place_where_another_process_saves_is_refused() {
    let (directory, path, text) = place();
    let theirs = directory.path().join(".model.partial-0123456789abcdef");
    fs::create_dir(&theirs).unwrap();
    // As another process would have it: locks are of what was opened.
    let lock = fs::File::open(&theirs).unwrap();
    lock.try_lock().unwrap();
    let errors = spmd(2, |world| {
        Ok(save(world, &small_state(world, 1)?, &text, &SaveOptions::default()).unwrap_err())
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Busy { .. })), "{errors:?}");
    assert!(theirs.exists());
    drop(lock);
    spmd(2, |world| Ok(save(world, &small_state(world, 2)?, &text, &SaveOptions::default())?));
    assert_eq!(small_version(&path), Ok(2));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn where_a_busy_saver_writes_to_is_told_alike_on_all_ranks() {
    let (_directory, _path, text) = place();
    let errors = spmd(2, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let mut saver = AsyncSaver::new().when_busy(WhenBusy::Refuse);
        let saving = saver.save(world, &small_state(world, 1)?, &text, &gate.options())?;
        let elsewhere = format!("{text}-2");
        let state = small_state(world, 2)?;
        // One rank has a saver that is not busy.
        let error = match world.rank() {
            0 => AsyncSaver::new().save(world, &state, &elsewhere, &SaveOptions::default()),
            _ => saver.save(world, &state, &elsewhere, &SaveOptions::default()),
        };
        let error = error.unwrap_err();
        world.group().barrier()?;
        drop(closed);
        saving.wait()?;
        Ok(error)
    });
    assert_eq!(errors, vec![Error::Busy { path: text }; 2]);
}

#[test]
fn a_failure_in_the_background_is_told_on_every_rank() {
    let (directory, path, text) = place();
    spmd(3, |world| {
        Ok(async_save(world, &small_state(world, 1)?, &text, &SaveOptions::default())?.wait()?)
    });
    let texts = spmd(3, |world| {
        let options = match world.rank() {
            1 => SaveOptions::default().progress(|_| panic!("out of cheese")),
            _ => SaveOptions::default(),
        };
        let error =
            async_save(world, &small_state(world, 2)?, &text, &options)?.wait().unwrap_err();
        let Error::OnRank { rank: 1, message } = error else { panic!("{error}") };
        Ok(message)
    });
    assert!(texts.iter().all(|text| text.contains("out of cheese")), "{texts:?}");
    assert_eq!(small_version(&path), Ok(1));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn what_can_be_refused_at_once_is() {
    let (directory, _path, text) = place();
    fs::create_dir_all(format!("{text}/thesis")).unwrap();
    spmd(2, |world| {
        let mut state = small_state(world, 1)?;
        let refused = async_save(world, &state, &text, &SaveOptions::default()).unwrap_err();
        assert!(
            matches!(refused, Error::Occupied { .. } | Error::OnRank { rank: 0, .. }),
            "{refused}"
        );
        let mesh = DeviceMesh::of_world(world, "x")?;
        state.insert("grad", zeros(&[3], DType::F32, &mesh, &[Partial(ReduceOp::Sum)])?)?;
        let refused = async_save(world, &state, &text, &SaveOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::Partial { .. }), "{refused}");
        Ok(())
    });
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_rank_that_is_not_heard_of_is_named() {
    let (directory, path, text) = place();
    spmd(2, |world| {
        Ok(async_save(world, &small_state(world, 1)?, &text, &SaveOptions::default())?.wait()?)
    });
    let errors = spmd(2, |world| {
        let gate = Gate::default();
        let closed = gate.0.lock().unwrap();
        let options = match world.rank() {
            1 => gate.options(),
            _ => SaveOptions::default(),
        };
        let options = options.patience(Duration::from_millis(300));
        let saving = async_save(world, &small_state(world, 2)?, &text, &options)?;
        if world.rank() == 0 {
            let error = saving.wait().unwrap_err();
            world.group().barrier()?;
            return Ok(error);
        }
        // It comes too late.
        world.group().barrier()?;
        drop(closed);
        Ok(saving.wait().unwrap_err())
    });
    assert!(
        matches!(&errors[0], Error::OnRank { rank: 1, message } if message.contains("not heard of")),
        "{}",
        errors[0]
    );
    assert!(
        matches!(&errors[1], Error::OnRank { rank: 0, message } if message.contains("gave the save up")),
        "{}",
        errors[1]
    );
    assert_eq!(small_version(&path), Ok(1));
    assert_eq!(names_in(directory.path()), ["model"]);
}

#[test]
fn a_save_that_nobody_waits_for_is_finished_before_the_saver_is_gone() {
    let (_directory, path, text) = place();
    spmd(2, |world: &World| {
        let mut saver = AsyncSaver::new();
        drop(saver.save(world, &small_state(world, 8)?, &text, &SaveOptions::default())?);
        Ok(())
    });
    assert_eq!(small_version(&path), Ok(8));
}
