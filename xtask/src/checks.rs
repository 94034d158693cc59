use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    process::{self, Output},
    report::Report,
};

/// No step of cargo comes near it; it is there for tests that wait for ever.
pub const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Whether the machine has an MPI to build for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    Present,
    Absent,
}

impl Mpi {
    /// The features of every step, `mpi-suite` included: equal ones, so that nothing is compiled twice.
    pub fn features(self) -> &'static str {
        match self {
            Mpi::Present => "mpi,object-store,tls,dtensor-local/ndarray,dtensor-local/candle",
            Mpi::Absent => "object-store,tls,dtensor-local/ndarray,dtensor-local/candle",
        }
    }
}

/// The checks that need no mpirun. Everything is compiled once, with all features that there are means for; the default build,
/// which differs in what is left out alone, is only checked to compile: its tests would repeat the others.
pub fn run(report: &mut Report, mpi: Mpi) -> Result<()> {
    cargo_step(report, "fmt", &["fmt", "--all", "--check"])?;
    let features = ["--features", mpi.features()];
    // Clippy and the documentation both need their dependencies checked, not compiled: next to each
    // other they share that work.
    cargo_step(
        report,
        "clippy",
        &[&["clippy", "--workspace", "--all-targets"], &features[..], &["--", "-D", "warnings"]]
            .concat(),
    )?;
    docs(report, "docs", &features)?;
    cargo_step(report, "default build", &["check", "--workspace"])?;
    // Documentation tests apart, so that each of the two has its own time in the summary.
    let tests = ["test", "--workspace", "--lib", "--bins", "--tests"];
    cargo_step(report, "tests", &[&tests[..], &features].concat())?;
    let doc_tests = ["test", "--workspace", "--doc"];
    cargo_step(report, "doc tests", &[&doc_tests[..], &features].concat())
}

pub fn deny() -> Result<()> {
    let installed =
        process::run(&mut cargo(&["deny", "--version"]), process::SHORT, Output::Collect);
    if !installed.is_ok_and(|ended| ended.status.success()) {
        return Err(Error::new(
            "cargo-deny is not installed: run `cargo install --locked cargo-deny`",
        ));
    }
    process::run_checked(&mut cargo(&["deny", "check"]), LIMIT, Output::Show)?;
    Ok(())
}

/// What of `local` reads and writes raw memory and is small enough for Miri, which is a thousand times slower:
/// the pool of buffers, and views. Not part of `test`, since it needs a nightly toolchain.
pub fn miri() -> Result<()> {
    let nightly = |arguments: &[&str]| {
        // By way of rustup: the cargo that runs this program is that of one toolchain.
        let mut command = Command::new("cargo");
        command.arg("+nightly").args(arguments).current_dir(workspace());
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
        // Property tests keep their failures in files.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "3");
        command
    };
    let installed =
        process::run(&mut nightly(&["miri", "--version"]), process::SHORT, Output::Collect);
    if !installed.is_ok_and(|ended| ended.status.success()) {
        return Err(Error::new(
            "Miri is not installed: run `rustup toolchain install nightly --component miri,rust-src`",
        ));
    }
    let test = ["miri", "test", "--package", "dtensor-local"];
    for tests in [["--lib", "pool"], ["--test", "views"]] {
        let mut command = nightly(&[&test[..], &tests].concat());
        process::run_checked(&mut command, LIMIT, Output::Show)?;
    }
    Ok(())
}

/// The cargo that runs this program, at the root of the workspace.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

fn docs(report: &mut Report, name: &str, features: &[&str]) -> Result<()> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.args(features).env("RUSTDOCFLAGS", "-D warnings");
    step(report, name, &mut command)
}

fn cargo_step(report: &mut Report, name: &str, arguments: &[&str]) -> Result<()> {
    step(report, name, &mut cargo(arguments))
}

fn step(report: &mut Report, name: &str, command: &mut Command) -> Result<()> {
    report.step(name, || process::run_checked(command, LIMIT, Output::Show).map(drop))
}

/// `cargo run` says where this package is; where the program is started without it, it still knows
/// where it was compiled.
pub fn workspace() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
