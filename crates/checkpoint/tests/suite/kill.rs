//! Saves that are killed: old or new, never mixed.

use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use dtensor_checkpoint::{AsyncSaver, SaveOptions, save};
use dtensor_testing::spmd;

use crate::saved::{names_in, place, small_state, small_version};

/// What makes a process of this binary one that saves until it is killed: where to.
const PLACE: &str = "DTENSOR_TEST_SAVES_TO";

/// The first version that it saves.
const FIRST: &str = "DTENSOR_TEST_FIRST_VERSION";

/// Whether it saves in the background.
const BEHIND: &str = "DTENSOR_TEST_SAVES_BEHIND";

/// Killed so often.
const ROUNDS: u64 = 200;

/// Does nothing but in a process that a test has started to be killed.
#[test]
fn saves_until_it_is_killed() {
    let Ok(place) = env::var(PLACE) else { return };
    let first: i64 = env::var(FIRST).unwrap().parse().unwrap();
    let behind = env::var(BEHIND).is_ok();
    spmd(2, |world| {
        let options = SaveOptions::default();
        let mut saver = AsyncSaver::new();
        for version in first.. {
            let state = small_state(world, version)?;
            match behind {
                true => saver.save(world, &state, &place, &options)?.wait()?,
                false => save(world, &state, &place, &options)?,
            };
            if world.rank() == 0 {
                println!("saved {version}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_save_killed_anywhere_leaves_an_old_or_a_new_checkpoint_whole() {
    let (directory, path, text) = place();
    let mut at_least = 0;
    for round in 0..ROUNDS {
        at_least = kill_one(&path, &text, round, at_least);
    }
    // What they have left is gone after the next save.
    spmd(2, |world| Ok(save(world, &small_state(world, 7)?, &text, &SaveOptions::default())?));
    assert_eq!(names_in(directory.path()), ["model"]);
}

/// Starts a process that saves, kills it, and looks at what there is. Gives the version that is there, which no later one may
/// fall behind.
fn kill_one(path: &Path, place: &str, round: u64, at_least: i64) -> i64 {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "kill::saves_until_it_is_killed", "--nocapture"]);
    command.env(PLACE, place).env(FIRST, (at_least + 1).to_string());
    if round % 4 == 3 {
        command.env(BEHIND, "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // From its first save on, a moment more each time: the moments fall into every phase of a save.
    let mut told = at_least;
    let saved = lines.find_map(|line| line.unwrap().strip_prefix("saved ")?.parse::<i64>().ok());
    told = told.max(saved.expect("it saved once"));
    thread::sleep(Duration::from_micros(round * 7919 % 6000));
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines.map_while(Result::ok) {
        // The last line may be cut off.
        let version = line.strip_prefix("saved ").and_then(|version| version.parse::<i64>().ok());
        told = told.max(version.filter(|&version| version == told + 1).unwrap_or(told));
    }
    let version = small_version(path).unwrap_or_else(|wrong| panic!("round {round}: {wrong}"));
    assert!(version == told || version == told + 1, "round {round}: {version} after {told}");
    version
}
