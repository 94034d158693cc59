//! The MPI suite under mpirun.
//!
//! The suite is the binary `mpi-suite` of `dtensor-testing`, built with the feature `mpi`. Between
//! it and this file there are three agreements:
//!
//! - `mpirun -n N mpi-suite` runs all its cases in order; rank 0 prints `N passed, N failed` alone
//!   on the last line, and every rank exits non-zero if any case failed.
//! - `mpi-suite --list-faults`, started without mpirun, prints one line per fault scenario: its
//!   name, a tab, and further flags for mpirun (most often none).
//! - `mpirun -n N mpi-suite --fault NAME` makes that fault happen. Each rank prints one line,
//!   `fault NAME: rank R: ` and then one of
//!   - `ok`: this rank got the error that it should get;
//!   - `lost`: this rank is the one that goes, and is about to;
//!   - `failed: ...`: this rank got something else, and what.
//!
//!   The exit code counts for nothing there: where a rank was killed, mpirun's own code says so.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    checks,
    error::{Error, Result},
    launcher::Launcher,
    process::{self, Ended, Output},
    program_tests,
    report::Report,
    train_tests,
};

/// 2 is the smallest group, 3 leaves uneven and empty shards, 4 is the smallest mesh of two axes.
pub const RANKS: [usize; 3] = [2, 3, 4];

/// Faults need a rank that fails and two that notice.
const FAULT_RANKS: usize = 3;

const SUITE: &str = "mpi-suite";
/// A test of the package that has the suite.
const TEST_BESIDE_SUITE: &str = "spmd";
const PROGRAM: &str = "dtensor";
/// A test of the package that has the program.
const TEST_BESIDE_PROGRAM: &str = "program";
/// The test of `comm` for mpirun.
const SETTINGS: &str = "mpi";
const SUITE_LIMIT: Duration = Duration::from_secs(5 * 60);
const FAULT_LIMIT: Duration = Duration::from_secs(60);

pub fn run(report: &mut Report, ranks: &[usize]) -> Result<()> {
    let Programs { suite, settings, program } = report.step("build for mpirun", build)?;
    let launcher = Launcher::detect()?;
    for &n in ranks {
        report.step(&format!("mpi-suite, {n} ranks"), || run_suite(&launcher, &suite, n))?;
        report.step(&format!("comm's tests, {n} ranks"), || run_tests(&launcher, &settings, n))?;
        report
            .step(&format!("train, {n} ranks"), || program_tests::replay(&launcher, &program, n))?;
    }
    report.step("train, 1 rank", || program_tests::replay(&launcher, &program, 1))?;
    report.step("train, settings", || train_tests::compare(&launcher, &program))?;
    report.step("train, said once", || train_tests::say_once(&launcher, &program))?;
    report.step("ckpt, 3 ranks", || program_tests::checkpoints(&launcher, &program))?;
    report.step("train, interrupted", || program_tests::interrupt(&launcher, &program))?;
    for fault in report.step("list of faults", || list_faults(&suite))? {
        report.step(&format!("fault {}", fault.name), || run_fault(&launcher, &suite, &fault))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Fault {
    name: String,
    extra_flags: Vec<String>,
}

/// What mpirun starts.
struct Programs {
    suite: PathBuf,
    /// What depends on the settings of the MPI world: an ordinary test program, whose ranks are
    /// processes if mpirun starts it.
    settings: PathBuf,
    /// What users run.
    program: PathBuf,
}

/// Builds them as the tests of the whole workspace are built: with the same features of all dependencies, so that after
/// those tests nothing is left to compile.
fn build() -> Result<Programs> {
    let mut command = checks::cargo(&["test", "--no-run", "--workspace"]);
    command.args(["--features", checks::Mpi::Present.features()]);
    // A test of a package brings the package's programs with it.
    command.args(["--test", SETTINGS, "--test", TEST_BESIDE_SUITE, "--test", TEST_BESIDE_PROGRAM]);
    // Asking cargo where a program is holds for any target directory and any configured target.
    command.arg("--message-format=json-render-diagnostics");
    let messages = process::run_checked(&mut command, checks::LIMIT, Output::CollectStdout)?;
    let find = |name: &str| {
        let path = messages.iter().find_map(|message| executable(message, name));
        path.ok_or_else(|| Error::new(format!("cargo built {name} but did not say where")))
    };
    Ok(Programs { suite: find(SUITE)?, settings: find(SETTINGS)?, program: find(PROGRAM)? })
}

/// The tests one after the other: the ranks must make the same calls in the same order.
fn run_tests(launcher: &Launcher, tests: &Path, ranks: usize) -> Result<()> {
    let mut command = launcher.command(ranks);
    command.arg(tests).arg("--test-threads=1");
    // Their lines come mixed, so only mpirun's exit code says that all ranks have passed.
    process::run_checked(&mut command, SUITE_LIMIT, Output::Show).map(drop)
}

fn run_suite(launcher: &Launcher, suite: &Path, ranks: usize) -> Result<()> {
    let mut command = launcher.command(ranks);
    command.arg(suite);
    let ended = process::run(&mut command, SUITE_LIMIT, Output::ShowAndCollectStdout)?;
    judge_suite(&ended, launcher)
}

fn list_faults(suite: &Path) -> Result<Vec<Fault>> {
    let mut command = Command::new(suite);
    command.arg("--list-faults");
    let lines = process::run_checked(&mut command, process::SHORT, Output::CollectStdout)?;
    let faults: Vec<Fault> = lines
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| parse_fault(line))
        .collect::<Result<_>>()?;
    if faults.is_empty() {
        // Silence here would look like a pass.
        return Err(Error::new("mpi-suite lists no fault scenario"));
    }
    Ok(faults)
}

fn run_fault(launcher: &Launcher, suite: &Path, fault: &Fault) -> Result<()> {
    let mut command = launcher.fault_command(FAULT_RANKS, &fault.extra_flags);
    command.arg(suite).args(["--fault", &fault.name]);
    // Nor does mpirun's end count. Where it keeps survivors it sometimes does not notice that they are
    // gone; what matters is that every rank has said its word, and with it that it did not hang.
    let (_, lines) = process::run_within(&mut command, FAULT_LIMIT, Output::Collect)?;
    let verdict = judge_fault(&fault.name, &lines, FAULT_RANKS);
    if verdict.is_err() {
        // Panics and errors are what a fault is made of; they are shown only where they explain.
        for line in &lines {
            println!("    {line}");
        }
    }
    verdict
}

/// The path in one of cargo's messages, if it is about this program. One field does not make a JSON
/// parser worth its compile time.
fn executable(message: &str, name: &str) -> Option<PathBuf> {
    let (_, rest) = message.split_once(r#""executable":""#)?;
    let (path, _) = rest.split_once('"')?;
    let path = PathBuf::from(path);
    let stem = path.file_stem()?.to_str()?;
    let rest = stem.strip_prefix(name)?;
    let is_hash =
        rest.strip_prefix('-').is_some_and(|hash| hash.chars().all(|c| c.is_ascii_hexdigit()));
    (rest.is_empty() || is_hash).then_some(path)
}

/// A suite has passed when exactly one rank said so and at least one case ran. Several summaries
/// mean that each process took itself for the only rank: mpirun and mpicc are of different MPIs.
fn judge_suite(ended: &Ended, launcher: &Launcher) -> Result<()> {
    let summaries: Vec<(usize, usize)> =
        ended.lines.iter().filter_map(|line| parse_summary(line)).collect();
    let status = ended.status;
    match summaries[..] {
        [(passed, 0)] if passed > 0 && status.success() => Ok(()),
        [(passed, failed)] => {
            Err(Error::new(format!("{passed} passed, {failed} failed, ended with {status}")))
        }
        [] => Err(Error::new(format!("ended with {status}, without `N passed, N failed`"))),
        _ => Err(Error::new(format!(
            "{} ranks each took themselves for the only one: {} is not of the MPI that mpicc \
             builds for; set MPICC and MPIRUN",
            summaries.len(),
            launcher.describe()
        ))),
    }
}

/// `3 passed, 0 failed`, with nothing else on the line.
fn parse_summary(line: &str) -> Option<(usize, usize)> {
    let (passed, failed) = line.trim().split_once(" passed, ")?;
    Some((passed.parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?))
}

fn parse_fault(line: &str) -> Result<Fault> {
    let (name, flags) = line.split_once('\t').unwrap_or((line, ""));
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(Error::new(format!("`{line}` is not a scenario: a name, a tab, mpirun flags")));
    }
    let extra_flags = flags.split_whitespace().map(String::from).collect();
    Ok(Fault { name: name.to_string(), extra_flags })
}

/// Every rank has to speak, and exactly once: a rank that printed nothing may have hung until the
/// launcher ended it, or returned data as if nothing had happened.
fn judge_fault(name: &str, lines: &[String], ranks: usize) -> Result<()> {
    let prefix = format!("fault {name}: rank ");
    let mut words: Vec<Option<&str>> = vec![None; ranks];
    for line in lines {
        let Some(rest) = line.trim().strip_prefix(&prefix) else { continue };
        let Some((rank, word)) = rest.split_once(": ") else { continue };
        match rank.parse().ok().and_then(|rank: usize| words.get_mut(rank)) {
            Some(slot @ None) => *slot = Some(word),
            Some(Some(_)) => return Err(Error::new(format!("rank {rank} reported twice"))),
            None => return Err(Error::new(format!("rank {rank} is not one of {ranks}"))),
        }
    }
    for (rank, word) in words.iter().enumerate() {
        match *word {
            Some("ok" | "lost") => {}
            Some(other) => return Err(Error::new(format!("rank {rank}: {other}"))),
            None => return Err(Error::new(format!("rank {rank} reported nothing"))),
        }
    }
    if !words.contains(&Some("ok")) {
        return Err(Error::new("no rank survived to get an error"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| line.to_string()).collect()
    }

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let library = r#"{"reason":"compiler-artifact","executable":null,"fresh":true}"#;
        let other = r#"{"reason":"compiler-artifact","executable":"/t/debug/build-script"}"#;
        let binary = r#"{"reason":"compiler-artifact","executable":"/t/debug/mpi-suite"}"#;
        let test = r#"{"reason":"compiler-artifact","executable":"/t/debug/deps/mpi-03af"}"#;
        for message in [library, other, test] {
            assert_eq!(executable(message, "mpi-suite"), None);
        }
        assert_eq!(executable(binary, "mpi-suite"), Some(PathBuf::from("/t/debug/mpi-suite")));
        assert_eq!(executable(test, "mpi"), Some(PathBuf::from("/t/debug/deps/mpi-03af")));
        assert_eq!(executable(binary, "mpi"), None);
    }

    #[track_caller]
    fn check_suite(output: &[&str], exit_code: i32, want: std::result::Result<(), &str>) {
        // A raw status has the exit code in its second byte.
        let ended = Ended { status: ExitStatus::from_raw(exit_code << 8), lines: lines(output) };
        let launcher = Launcher::new("mpirun", "mpirun (Open MPI) 4.1.4");
        match (judge_suite(&ended, &launcher), want) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(part)) if error.to_string().contains(part) => {}
            (got, want) => panic!("{output:?}: got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn a_suite_passes_only_with_one_summary_of_passed_cases_and_exit_code_0() {
        check_suite(&["case a", "12 passed, 0 failed"], 0, Ok(()));
        check_suite(&["11 passed, 1 failed"], 1, Err("1 failed"));
        check_suite(&["11 passed, 1 failed"], 0, Err("1 failed"));
        check_suite(&["12 passed, 0 failed"], 1, Err("exit status: 1"));
        check_suite(&["0 passed, 0 failed"], 0, Err("0 passed"));
        check_suite(&["case a", "12 passed, some failed"], 0, Err("without `N passed"));
        check_suite(&["12 passed, 0 failed"; 2], 0, Err("Open MPI 4"));
    }

    #[test]
    fn a_fault_is_a_name_and_perhaps_flags() {
        let fault = |name: &str, flags: &[&str]| Fault {
            name: name.to_string(),
            extra_flags: lines(flags),
        };
        assert_eq!(parse_fault("killed"), Ok(fault("killed", &[])));
        assert_eq!(parse_fault("killed\t"), Ok(fault("killed", &[])));
        assert_eq!(parse_fault("dtype \t--mca x 1"), Ok(fault("dtype", &["--mca", "x", "1"])));
        assert!(parse_fault("two words\t").is_err());
        assert!(parse_fault("\t--mca x 1").is_err());
    }

    #[track_caller]
    fn check_fault(output: &[&str], want: std::result::Result<(), &str>) {
        let got = judge_fault("killed", &lines(output), 3).map_err(|error| error.to_string());
        assert_eq!(got, want.map_err(String::from), "{output:?}");
    }

    #[test]
    fn a_fault_passes_only_if_every_rank_reports_and_one_survives() {
        let [zero, one, two] =
            ["fault killed: rank 0: ok", "fault killed: rank 1: lost", "fault killed: rank 2: ok"];
        check_fault(&["noise", two, zero, one, "fault other: rank 0: failed: x"], Ok(()));
        check_fault(&[zero, one], Err("rank 2 reported nothing"));
        check_fault(&[zero, one, two, two], Err("rank 2 reported twice"));
        check_fault(&[zero, one, two, "fault killed: rank 3: ok"], Err("rank 3 is not one of 3"));
        check_fault(
            &[zero, one, "fault killed: rank 2: failed: got 8 values"],
            Err("rank 2: failed: got 8 values"),
        );
        check_fault(
            &[0, 1, 2]
                .map(|rank| format!("fault killed: rank {rank}: lost"))
                .each_ref()
                .map(|s| s.as_str()),
            Err("no rank survived to get an error"),
        );
    }
}
