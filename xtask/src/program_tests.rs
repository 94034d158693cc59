//! The program under mpirun: what it prints and writes there is what it prints on threads and writes alone, to the last bit, and
//! Ctrl-C leaves a checkpoint.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    checks,
    error::{Error, Result},
    launcher::Launcher,
    meshes::ways_to_cut,
    process::{self, Output},
};

const LIMIT: Duration = Duration::from_secs(3 * 60);

/// Seconds after which a run is interrupted. It then has to be beyond its first step, and a run of 2 ranks is after one.
const INTERRUPTED_AFTER: &str = "6";

/// Ways to cut a model over so many ranks: all that the tests on threads have, but of 4 ranks. There, what is recomputed and other words
/// for the same would double the time, and differ in nothing that processes could change.
fn meshes(ranks: usize) -> Vec<String> {
    let mut ways = ways_to_cut(ranks);
    if ranks > 3 {
        ways.retain(|way| {
            !way.contains("--recompute") && (!way.contains("--parallel") || way.contains("+sp"))
        });
    }
    ways
}

/// Replays the known run on every mesh of so many ranks, as threads and as processes. It fails by itself where it is another run.
pub fn replay(launcher: &Launcher, program: &Path, ranks: usize) -> Result<()> {
    let golden = checks::workspace().join("crates/cli/tests/golden/train");
    for mesh in meshes(ranks) {
        let run = |mut command: Command| {
            command
                .args(["train", "--json", "--golden"])
                .arg(&golden)
                .arg("--mesh")
                .args(mesh.split(' '));
            process::run_checked(&mut command, LIMIT, Output::CollectStdout)
        };
        let threads = run(Command::new(program))?;
        let mut processes = launcher.command(ranks);
        processes.arg(program);
        judge(&threads, &run(processes)?).map_err(|why| Error::new(format!("{mesh}: {why}")))?;
    }
    Ok(())
}

/// Interrupts a run, and goes on from what it leaves.
pub fn interrupt(launcher: &Launcher, program: &Path) -> Result<()> {
    let out = Scratch::new()?;
    let mpirun = launcher.patient_command(2);
    let mut command = Command::new("timeout");
    // In the foreground: otherwise it signals its whole group after the child, and mpirun takes the second of two signals for the
    // wish to leave at once.
    command.args(["--foreground", "--signal=INT", "--kill-after=60", INTERRUPTED_AFTER]);
    command.arg(mpirun.get_program()).args(mpirun.get_args()).arg(program);
    // Steps of a millisecond: more lines than a pipe holds that nobody reads any more.
    let settings = "train --json --layers 1 --dim 16 --heads 2 --seq 16 --batch 4 --steps 1000000";
    command.args(settings.split(' ')).arg("--out").arg(&out.0);
    let ended = process::run(&mut command, LIMIT, Output::CollectStdout)?;
    if ended.lines.is_empty() {
        return Err(Error::new(format!("no step was made; ended with {}", ended.status)));
    }
    // The last thing that a run writes: it was not killed on the way.
    if !out.0.join("loss.svg").is_file() {
        return Err(Error::new("the run was interrupted and did not end by itself"));
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).arg(out.0.join("checkpoint"));
        if arguments.contains(&"train") {
            // Else it writes where it is started: into the workspace.
            command.arg("--out").arg(&out.0);
        }
        process::run_checked(&mut command, LIMIT, Output::CollectStdout)
    };
    run(&["ckpt", "verify"])?;
    let done = step_in(&run(&["ckpt", "inspect", "--json"])?.concat())?;
    let more = 3;
    let steps = (done + more).to_string();
    let lines = run(&["train", "--json", "--steps", &steps, "--resume"])?;
    match lines.len() as u64 == more && done >= ended.lines.len() as u64 {
        true => Ok(()),
        false => Err(Error::new(format!(
            "{} lines, a checkpoint of step {done}, and {} lines of the {more} steps after it",
            ended.lines.len(),
            lines.len()
        ))),
    }
}

/// Checkpoints converted, verified and compared by processes that share the work, and by one.
pub fn checkpoints(launcher: &Launcher, program: &Path) -> Result<()> {
    const RANKS: usize = 3;
    let scratch = Scratch::new()?;
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let failed = |error: std::io::Error| Error::new(format!("{}: {error}", scratch.0.display()));
    let source = path("source.safetensors");
    std::fs::write(&source, numbers(SHARED_MIB)).map_err(failed)?;
    let run = |together: bool, arguments: &[&str]| {
        let mut command = match together {
            true => launcher.command(RANKS),
            false => Command::new(program),
        };
        if together {
            command.arg(program);
        }
        command.args(["ckpt"]).args(arguments).arg("--json");
        process::run(&mut command, LIMIT, Output::CollectStdout)
    };
    // What is asked for, and whether the answer is that something is wrong.
    let same = |arguments: &[&str], is_wrong: bool| {
        let (alone, together) = (run(false, arguments)?, run(true, arguments)?);
        let success = !is_wrong;
        match alone.lines == together.lines
            && alone.status.success() == success
            && together.status.success() == success
        {
            true => Ok(()),
            false => Err(Error::new(format!(
                "{arguments:?} gives {:?} alone ({}), and {:?} under mpirun ({})",
                alone.lines, alone.status, together.lines, together.status
            ))),
        }
    };
    let convert = |together: bool, target: &str, arguments: &[&str]| {
        let ended =
            run(together, &[&arguments[..1], &[&source, target], &arguments[1..]].concat())?;
        match ended.status.success() && ended.lines.len() == 1 {
            true => Ok(()),
            false => Err(Error::new(format!("{arguments:?}: {}, {:?}", ended.status, ended.lines))),
        }
    };
    let (alone, together) = (path("alone.safetensors"), path("together.safetensors"));
    convert(false, &alone, &["convert"])?;
    convert(true, &together, &["convert"])?;
    if std::fs::read(&alone).map_err(failed)? != std::fs::read(&together).map_err(failed)? {
        return Err(Error::new("what processes have converted together is another file"));
    }
    let sharded = path("sharded");
    convert(true, &sharded, &["reshard", "--mesh", "2"])?;
    same(&["verify", &sharded], false)?;
    same(&["diff", &together, &sharded], false)?;
    // A bit of the last number of some file.
    let entries = std::fs::read_dir(&sharded).map_err(failed)?.flatten().map(|entry| entry.path());
    let mut shards =
        entries.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let shard = shards.next().ok_or_else(|| Error::new("nothing was resharded"))?;
    let mut bytes = std::fs::read(&shard).map_err(failed)?;
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    std::fs::write(&shard, bytes).map_err(failed)?;
    same(&["verify", &sharded], true)?;
    same(&["diff", &together, &sharded, "--no-verify"], true)
}

/// More than a process reads in one go, so that there is something to share.
const SHARED_MIB: usize = 24;

/// A safetensors file of so many MiB of numbers, each another.
fn numbers(mebibytes: usize) -> Vec<u8> {
    let bytes = mebibytes << 20;
    let header = format!(
        "{{\"w\":{{\"dtype\":\"I32\",\"shape\":[{},4],\"data_offsets\":[0,{bytes}]}}}}",
        bytes / 16
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..bytes as u32 / 4).flat_map(u32::to_le_bytes));
    file
}

/// The step of a run, in what `ckpt inspect --json` says of its checkpoint.
fn step_in(inspected: &str) -> Result<u64> {
    let rest = inspected.split_once("\"step\":").map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| Error::new("the checkpoint of a run has no step"))
}

/// Lines that say the same, of which the last is not one of the steps.
fn judge(threads: &[String], processes: &[String]) -> std::result::Result<(), String> {
    if threads.len() < 2 {
        return Err(format!("{} lines are no run", threads.len()));
    }
    if threads.len() != processes.len() {
        return Err(format!("{} lines on threads, {} of mpirun", threads.len(), processes.len()));
    }
    let pairs = threads.iter().zip(processes);
    match pairs.into_iter().find(|(one, other)| one != other) {
        Some((one, other)) => Err(format!("on threads {one}, under mpirun {other}")),
        None => Ok(()),
    }
}

/// A directory that goes with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("dtensor-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_equal_only_to_the_last_digit() {
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_string).collect() };
        let run = lines("{\"step\":0,\"loss\":1.25}\n{\"mesh\":\"dp=2\"}");
        assert_eq!(judge(&run, &run), Ok(()));
        let other = lines("{\"step\":0,\"loss\":1.26}\n{\"mesh\":\"dp=2\"}");
        assert!(judge(&run, &other).unwrap_err().contains("1.26"));
        assert!(judge(&run, &run[..1]).unwrap_err().contains("1 of mpirun"));
        assert!(judge(&[], &[]).is_err());
    }

    #[test]
    fn the_step_is_read_from_what_is_said_of_a_checkpoint() {
        assert_eq!(step_in("{\"values\":{\"seed\":7,\"step\":1486}}").unwrap(), 1486);
        assert!(step_in("{\"values\":{}}").is_err());
    }

    #[test]
    fn the_numbers_of_a_file_are_as_many_as_its_header_says() {
        let file = numbers(1);
        let header = 8 + file[0] as usize;
        assert_eq!(file.len(), header + (1 << 20));
        assert!(file[8..header].ends_with(b"\"shape\":[65536,4],\"data_offsets\":[0,1048576]}}"));
    }

    #[test]
    fn every_number_of_ranks_that_is_tested_has_meshes() {
        for ranks in crate::mpi_tests::RANKS {
            assert!(!meshes(ranks).is_empty(), "{ranks}");
        }
    }
}
