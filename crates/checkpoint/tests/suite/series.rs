//! Checkpoints by step.

use std::fs;

use dtensor_checkpoint::{AsyncSaver, Error, MANIFEST_FILE, Manifest, SaveOptions, Series};
use dtensor_testing::spmd;

use crate::saved::{names_in, place, small_state, small_version};

#[test]
fn a_series_keeps_the_last_ones_and_knows_the_latest() {
    let (_directory, path, text) = place();
    let series = Series::new(text.clone()).keep(2);
    assert_eq!(series.latest().unwrap(), None);
    spmd(2, |world| {
        assert_eq!(series.latest_of(world)?, None);
        for step in [5, 10, 1_000_000_000, 20] {
            series.save(world, &small_state(world, step as i64)?, step, &SaveOptions::default())?;
            assert_eq!(series.latest_of(world)?, Some(step));
        }
        Ok(())
    });
    // The run went back to step 20: that is the latest, and stays.
    assert_eq!(names_in(&path), ["latest", "step-00000020", "step-1000000000"]);
    assert_eq!(fs::read_to_string(path.join("latest")).unwrap(), "step-00000020\n");
    assert_eq!(series.steps().unwrap(), [20, 1_000_000_000]);
    assert_eq!(series.path(20), format!("{text}/step-00000020"));
    assert_eq!(small_version(&path.join("step-00000020")), Ok(20));
}

/// Makes the checkpoint of a step one that was saved so many seconds earlier.
fn make_older(series: &Series, step: u64, seconds: u64) {
    let path = format!("{}/{MANIFEST_FILE}", series.path(step));
    let mut manifest = Manifest::parse(MANIFEST_FILE, &fs::read(&path).unwrap()).unwrap();
    manifest.time -= seconds;
    fs::write(&path, manifest.to_bytes()).unwrap();
}

#[test]
fn a_run_that_went_back_keeps_what_it_saves_from_there_on() {
    let (_directory, path, text) = place();
    let series = Series::new(text).keep(2);
    for (step, age) in [(200, 40), (300, 30), (100, 20), (150, 10)] {
        spmd(1, |world| {
            let state = small_state(world, step as i64)?;
            Ok(series.save(world, &state, step, &SaveOptions::default())?)
        });
        make_older(&series, step, age);
    }
    assert_eq!(series.steps().unwrap(), [100, 150]);
    // Also where the file is lost that names it.
    make_older(&series, 150, 15);
    fs::remove_file(path.join("latest")).unwrap();
    assert_eq!(series.latest().unwrap(), Some(100));
}

#[test]
fn what_is_not_complete_is_none_of_those_that_are_kept() {
    let (_directory, path, text) = place();
    let series = Series::new(text).keep(2);
    let save = |step: u64| {
        spmd(1, |world| {
            let state = small_state(world, step as i64)?;
            Ok(series.save(world, &state, step, &SaveOptions::default())?)
        });
    };
    save(1);
    fs::create_dir(path.join("step-00000002")).unwrap();
    save(3);
    assert_eq!(series.steps().unwrap(), [1, 3]);
    save(4);
    assert_eq!(series.steps().unwrap(), [3, 4]);
}

#[test]
fn where_latest_is_wrong_the_newest_complete_one_counts() {
    let (_directory, path, text) = place();
    let series = Series::new(text);
    spmd(1, |world| {
        for step in [1, 2, 3] {
            series.save(world, &small_state(world, step as i64)?, step, &SaveOptions::default())?;
        }
        Ok(())
    });
    let manifest = |step: u64| path.join(format!("step-{step:08}/dtensor.manifest.json"));
    for wrong in ["", "step-00000009\n", "nonsense", "step-3\n"] {
        fs::write(path.join("latest"), wrong).unwrap();
        assert_eq!(series.latest().unwrap(), Some(3), "{wrong}");
    }
    fs::write(path.join("latest"), "step-00000003\n").unwrap();
    let mut damaged = fs::read(manifest(3)).unwrap();
    damaged[100] ^= 1;
    fs::write(manifest(3), damaged).unwrap();
    assert_eq!(series.latest().unwrap(), Some(2));
    fs::remove_file(manifest(2)).unwrap();
    assert_eq!(series.latest().unwrap(), Some(1));
    fs::remove_file(path.join("latest")).unwrap();
    assert_eq!(series.steps().unwrap(), [1]);
}

#[test]
fn a_series_is_saved_in_the_background_and_removes_what_was_left() {
    let (_directory, path, text) = place();
    let series = Series::new(text).keep(2);
    fs::create_dir_all(path.join(".step-00000001.partial-0123456789abcdef")).unwrap();
    spmd(2, |world| {
        let mut saver = AsyncSaver::new();
        let mut last = None;
        for step in 1..=5 {
            let state = small_state(world, step as i64)?;
            let options = SaveOptions::default();
            last = Some(series.async_save(&mut saver, world, &state, step, &options)?);
        }
        last.unwrap().wait()?;
        Ok(())
    });
    assert_eq!(names_in(&path), ["latest", "step-00000004", "step-00000005"]);
    assert_eq!(series.latest().unwrap(), Some(5));
}

#[test]
fn what_fails_after_the_commit_says_that_the_checkpoint_is_whole() {
    let (_directory, path, text) = place();
    let series = Series::new(text);
    // Nothing can be put in the place of a directory.
    fs::create_dir_all(path.join("latest")).unwrap();
    for behind in [false, true] {
        let step = u64::from(behind);
        let errors = spmd(2, |world| {
            let state = small_state(world, step as i64)?;
            let options = SaveOptions::default();
            let mut saver = AsyncSaver::new();
            let outcome = match behind {
                false => series.save(world, &state, step, &options),
                true => series.async_save(&mut saver, world, &state, step, &options)?.wait(),
            };
            Ok(outcome.unwrap_err())
        });
        let Error::AfterCommit { path: saved, message } = &errors[0] else { panic!("{errors:?}") };
        assert_eq!(errors[0], errors[1]);
        assert!(saved.ends_with(&format!("step-{step:08}")), "{saved}");
        assert!(message.contains("latest"), "{message}");
        assert_eq!(small_version(&path.join(format!("step-{step:08}"))), Ok(step as i64));
    }
    assert_eq!(series.steps().unwrap(), [0, 1]);
}
