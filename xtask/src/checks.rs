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
pub const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Features for the tensors of other crates. They change nothing else, so that one test needs them.
const OTHER_TENSORS: &str = "dtensor-local/ndarray,dtensor-local/candle";

/// The checks of the default build, which needs no system package.
pub fn without_mpi(report: &mut Report) -> Result<()> {
    cargo_step(report, "fmt", &["fmt", "--all", "--check"])?;
    // Clippy and the documentation both need their dependencies checked, not compiled: next to each
    // other they share that work.
    clippy(report, "clippy", &["--features", OTHER_TENSORS])?;
    docs(report, "docs", &["--features", OTHER_TENSORS])?;
    // Documentation tests apart, so that each of the two has its own time in the summary.
    cargo_step(report, "tests", &["test", "--workspace", "--lib", "--bins", "--tests"])?;
    cargo_step(report, "doc tests", &["test", "--workspace", "--doc"])?;
    cargo_step(
        report,
        "tests, other tensors",
        &["test", "--package", "dtensor-local", "--features", OTHER_TENSORS, "--test", "interop"],
    )
}

/// What differs with the feature `mpi` and needs no mpirun. The unit tests are those of `comm`, which
/// has some behind the feature; the others would only repeat themselves.
pub fn with_mpi(report: &mut Report) -> Result<()> {
    clippy(report, "clippy, mpi", &["--features", "mpi"])?;
    docs(report, "docs, mpi", &["--features", "mpi"])?;
    cargo_step(
        report,
        "tests, mpi",
        &["test", "--package", "dtensor-comm", "--features", "mpi", "--lib"],
    )
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

fn clippy(report: &mut Report, name: &str, features: &[&str]) -> Result<()> {
    let mut arguments = vec!["clippy", "--workspace", "--all-targets"];
    arguments.extend(features);
    arguments.extend(["--", "-D", "warnings"]);
    cargo_step(report, name, &arguments)
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
fn workspace() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
