//! Saves that are killed: old or new, never mixed.

use std::{
    env,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dtensor_checkpoint::{AsyncSaver, SaveOptions, save};
use dtensor_testing::spmd;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::{
    hostile_mutations::Random,
    saved::{names_in, place, small_state, small_version},
};

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

/// What fixes the moments and the signals, to repeat a run that has failed.
const SEED: &str = "DTENSOR_TEST_SEED";

#[test]
fn a_save_killed_anywhere_leaves_an_old_or_a_new_checkpoint_whole() {
    let seed = env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ clock());
    println!("{SEED}={seed}");
    // A process that aborts need not leave its memory on the disk.
    let no_core = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    setrlimit(Resource::Core, no_core).unwrap();
    let (directory, path, text) = place();
    let (mut random, mut at_least) = (Random(seed), 0);
    for round in 0..ROUNDS {
        at_least = kill_one(&path, &text, round, at_least, &mut random);
    }
    // What they have left is gone after the next save.
    spmd(2, |world| Ok(save(world, &small_state(world, 7)?, &text, &SaveOptions::default())?));
    assert_eq!(names_in(directory.path()), ["model"]);
}

/// The signals that end a process, whoever sends them: the system, a scheduler, a user, the process itself.
const SIGNALS: [Signal; 4] = [Signal::KILL, Signal::TERM, Signal::INT, Signal::ABORT];

/// Starts a process that saves, kills it, and looks at what there is. Gives the version that is there, which no later one may
/// fall behind.
fn kill_one(path: &Path, place: &str, round: u64, at_least: i64, random: &mut Random) -> i64 {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "kill::saves_until_it_is_killed", "--nocapture"]);
    command.env(PLACE, place).env(FIRST, (at_least + 1).to_string());
    if random.below(4) == 0 {
        command.env(BEHIND, "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // From its first save on, at any moment: a save takes about as long.
    let mut told = at_least;
    let saved = lines.find_map(|line| line.unwrap().strip_prefix("saved ")?.parse::<i64>().ok());
    told = told.max(saved.expect("it saved once"));
    let (wait, signal) = (random.below(6000), SIGNALS[random.below(SIGNALS.len())]);
    thread::sleep(Duration::from_micros(wait as u64));
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(signal.as_raw()), "round {round}: {ended}");
    for line in lines.map_while(Result::ok) {
        // The last line may be cut off.
        let version = line.strip_prefix("saved ").and_then(|version| version.parse::<i64>().ok());
        told = told.max(version.filter(|&version| version == told + 1).unwrap_or(told));
    }
    let how = || format!("round {round}, {signal:?} after {wait} us");
    let version = small_version(path).unwrap_or_else(|wrong| panic!("{}: {wrong}", how()));
    assert!(version == told || version == told + 1, "{}: {version} after {told}", how());
    version
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
