//! `dtensor train` under mpirun: with every setting it learns what it learns on threads, to the last bit, and speaks with one voice.

use std::{path::Path, process::Command, time::Duration};

use crate::{
    error::{Error, Result},
    launcher::Launcher,
    process::{self, Output},
    program_tests::Scratch,
};

const LIMIT: Duration = Duration::from_secs(3 * 60);

const TINY: &str = "train --json --layers 1 --dim 16 --heads 2 --seq 16 --batch 4";

/// Runs that have to be the same, with their ranks.
const RUNS: [(usize, &str); 5] = [
    (2, "--steps 3 --mesh fsdp=2 --detect-anomaly"),
    (2, "--steps 3 --mesh tp=2 --dtype bf16"),
    (2, "--steps 3 --mesh tp=2 --model llama"),
    (2, "--steps 3 --mesh cp=2 --dropout 0.2"),
    (4, "--steps 3 --mesh fsdp=2,tp=2 --model llama --dtype bf16 --dropout 0.2 --recompute"),
];

/// Runs as threads and as processes, and goes on with one as either.
pub fn compare(launcher: &Launcher, program: &Path) -> Result<()> {
    let scratch = Scratch::new()?;
    let compare = |ranks: usize, settings: &str| {
        let run = |mut command: Command, out: &str| {
            command.args(settings.split(' ')).arg("--out").arg(scratch.0.join(out));
            let lines = process::run_checked(&mut command, LIMIT, Output::CollectStdout)?;
            Ok::<_, Error>(lines.iter().map(|line| learnt(line).to_owned()).collect::<Vec<_>>())
        };
        let threads = run(Command::new(program), "threads")?;
        let mut processes = launcher.command(ranks);
        processes.arg(program);
        let processes = run(processes, "processes")?;
        match threads.len() == 3 && threads == processes {
            true => Ok(()),
            false => Err(Error::new(format!(
                "{settings}: on threads {threads:?}, under mpirun {processes:?}"
            ))),
        }
    };
    for (ranks, settings) in RUNS {
        compare(ranks, &format!("{TINY} {settings}"))?;
    }
    // From what processes have left, which is that of the last run.
    let from = scratch.0.join("first");
    let mut first = launcher.command(2);
    first.arg(program).args(TINY.split(' ')).arg("--out").arg(&from);
    first.args(["--steps", "2", "--mesh", "dp=2", "--dropout", "0.2", "--warmup", "9"]);
    process::run_checked(&mut first, LIMIT, Output::CollectStdout)?;
    let from = from.display();
    compare(2, &format!("train --json --steps 5 --mesh tp=2 --resume {from}"))
}

/// What a step has learnt: the line of a step without its times and its memory.
fn learnt(line: &str) -> &str {
    line.split_once(",\"ms\":").map_or(line, |(learnt, _)| learnt)
}

/// Runs for people and runs that fail, under mpirun: each thing is said once, whoever says it.
pub fn say_once(launcher: &Launcher, program: &Path) -> Result<()> {
    let scratch = Scratch::new()?;
    let told = TINY.replace(" --json", "");
    let profile = scratch.0.join("trace.json");
    let out = format!("--out {} --steps 2", scratch.0.join("a").display());
    let profiled = format!("{told} {out} --mesh dp=2 --profile {}", profile.display());
    for (settings, said) in [
        (&*profiled, "step 1/2  loss "),
        ("train --help", "Usage: "),
        ("train --modle gpt", "error: unexpected argument '--modle'"),
        (&*format!("{TINY} {out} --mesh dp=2 --dropout 1"), "error: --dropout is 1"),
        (&*format!("{TINY} {out} --mesh dp=2 --data no/such"), "error: --data no/such"),
        (&*format!("{TINY} {out} --mesh dp=3"), "error: the mesh dp=3 is for 3 ranks"),
        (&*format!("{TINY} {out} --mesh dp=2 --lr 1e30 --warmup 0"), "error: the "),
        (
            &*format!("{TINY} {out} --mesh tp=2 --lr 1e30 --warmup 0 --detect-anomaly"),
            "error: step 1: ",
        ),
    ] {
        let mut command = launcher.command(2);
        command.arg(program).args(settings.split(' '));
        let ended = process::run(&mut command, LIMIT, Output::Collect)?;
        let fails = said.starts_with("error: ");
        let times = ended.lines.iter().filter(|line| line.contains(said)).count();
        if times != 1 || ended.status.success() == fails {
            let lines = ended.lines.join("\n");
            let ended = ended.status;
            return Err(Error::new(format!(
                "{settings}: `{said}` {times} times, ended with {ended}:\n{lines}"
            )));
        }
    }
    let trace = std::fs::read_to_string(&profile)
        .map_err(|error| Error::new(format!("{}: {error}", profile.display())))?;
    match ["rank 0", "rank 1"].iter().all(|rank| trace.contains(&format!("\"name\":\"{rank}\""))) {
        true => Ok(()),
        false => Err(Error::new("a profile does not have both ranks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_has_no_times() {
        let line = "{\"step\":0,\"loss\":1.5,\"lr\":0.1,\"ms\":3.5,\"memory_bytes\":9}";
        assert_eq!(learnt(line), "{\"step\":0,\"loss\":1.5,\"lr\":0.1");
    }
}
