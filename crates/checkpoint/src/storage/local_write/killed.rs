//! Saves that are killed where two directories cannot be exchanged in one step: old or new, never mixed.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
};

use dtensor::{DeviceMesh, Placement::Shard, Runner, full};

use super::{super::replace::with_a_break, *};
use crate::{Catalog, SaveOptions, State, Value, read_tensors, save::random_number, save_to};

/// What makes a process of this binary one that saves until it is killed: where to.
const PLACE: &str = "DTENSOR_TEST_SAVES_IN_TWO_STEPS_TO";

/// The first version that it saves.
const FIRST: &str = "DTENSOR_TEST_FIRST_VERSION";

/// Killed so often.
const ROUNDS: usize = 60;

/// A directory of a file system that exchanges nothing.
struct NoExchange(LocalFiles);

impl Destination for NoExchange {
    fn place(&self) -> String {
        Destination::place(&self.0)
    }

    fn new_checkpoint(&self, id: &str, sync: bool) -> Box<dyn NewCheckpoint> {
        let new = NewDirectory::new(resolved(self.0.root()), id, sync);
        let replace: Replace = |new, target, old| match target.exists() {
            // Long enough for some to be killed just there.
            true => with_a_break(new, target, old, || thread::sleep(Duration::from_millis(1))),
            false => fs::rename(new, target),
        };
        Box::new(NewDirectory { replace, ..new })
    }
}

/// Does nothing but in a process that a test has started to be killed.
#[test]
fn saves_until_it_is_killed() {
    let Ok(place) = env::var(PLACE) else { return };
    let first: i64 = env::var(FIRST).unwrap().parse().unwrap();
    let destination = NoExchange(LocalFiles::new(place));
    let options = SaveOptions::default().sync(false);
    let saved = Runner::threads(2).run(|world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        for version in first.. {
            let mut state = State::new();
            state.insert("x", full(&[5], version as f64, &mesh, &[Shard(0)])?)?;
            state.insert("version", version)?;
            save_to(world, &state, &destination, &options)?;
            if world.rank() == 0 {
                println!("saved {version}");
            }
        }
        Ok::<_, Error>(())
    });
    saved.unwrap();
}

#[test]
fn a_save_in_two_steps_killed_anywhere_leaves_an_old_or_a_new_checkpoint_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let (mut at_least, mut n_between) = (0, 0);
    for round in 0..ROUNDS {
        at_least = kill_one(&path, at_least, round);
        n_between += usize::from(!path.exists());
    }
    assert!(n_between > 0 && n_between < ROUNDS, "{n_between} of {ROUNDS} between the steps");
}

/// Starts a process that saves, kills it, and looks at what there is. Gives the version that is there, which no later one may fall
/// behind.
fn kill_one(path: &Path, at_least: i64, round: usize) -> i64 {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "storage::local_write::killed::saves_until_it_is_killed"]);
    command.arg("--nocapture").env(PLACE, path).env(FIRST, (at_least + 1).to_string());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let version = |line: String| line.strip_prefix("saved ")?.parse::<i64>().ok();
    let told = lines.find_map(|line| version(line.unwrap())).expect("it saved once");
    thread::sleep(Duration::from_micros(random_number() % 3000));
    child.kill().unwrap();
    child.wait().unwrap();
    // A last line that is cut off has a smaller number, or none.
    let told = lines.map_while(Result::ok).filter_map(version).fold(told, i64::max);
    let place = path.to_str().unwrap();
    let tensors = read_tensors(place).unwrap_or_else(|error| panic!("round {round}: {error}"));
    let (_, catalog) = Catalog::open_path(path).unwrap();
    let Value::Int(there) = catalog.values["version"] else { panic!("round {round}") };
    assert_eq!(tensors["x"].as_slice::<f64>().unwrap(), [there as f64; 5], "round {round}");
    assert!(there == told || there == told + 1, "round {round}: {there} after {told}");
    there
}
