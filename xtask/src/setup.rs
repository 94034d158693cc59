//! What the machine must have, and installing it where that is allowed.
//!
//! The default build needs Rust alone. The feature `mpi` needs an MPI (its compiler wrapper to
//! build, its launcher to run) and libclang, by which bindgen reads the MPI's header.

use std::{process::Command, time::Duration};

use crate::{
    checks,
    error::{Error, Result},
    machine::{Machine, Missing, packages, what_to_install},
    process::{self, Output},
};

const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);

pub fn everything() -> Result<()> {
    rust_components()?;
    system_packages()
}

/// rustfmt and clippy: not every way of installing Rust brings them.
pub fn rust_components() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let mut command = checks::cargo(&[subcommand, "--version"]);
        let ended = process::run(&mut command, process::SHORT, Output::Collect)?;
        if !ended.status.success() {
            return Err(Error::new(format!(
                "`cargo {subcommand}` does not work: run `rustup component add {component}`"
            )));
        }
    }
    Ok(())
}

/// MPI and libclang: installs what is missing, or says in one line what to install.
pub fn system_packages() -> Result<()> {
    let mut missing = Machine::this().missing();
    if !missing.is_empty() && may_install() {
        install(&packages(&missing))?;
        missing = Machine::this().missing();
    }
    // Worth installing, but no reason to refuse: libclang may have found its headers in a place
    // that is not known here, and if it has not, the build says so.
    missing.retain(|&what| what != Missing::ClangHeaders);
    if missing.is_empty() { Ok(()) } else { Err(what_to_install(&missing)) }
}

/// Whether this is root on a machine with apt-get.
fn may_install() -> bool {
    let answers = |command: &mut Command| {
        process::run_checked(command, process::SHORT, Output::CollectStdout).ok()
    };
    answers(Command::new("id").arg("-u")).is_some_and(|lines| lines == ["0"])
        && answers(Command::new("apt-get").arg("--version")).is_some()
}

fn install(packages: &[&str]) -> Result<()> {
    println!("    installing {}", packages.join(" "));
    // An update that fails for one of many sources may still have brought what is needed; whether
    // it has is for the installation to say.
    if let Err(error) = apt_get(&["update"]) {
        println!("    {error}");
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    // On a machine that has just started, another apt-get may well be at work.
    command.args(["--quiet", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    process::run_checked(&mut command, INSTALL_LIMIT, Output::Show).map(drop)
}
