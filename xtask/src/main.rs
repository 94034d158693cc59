//! `cargo xtask`: the checks and tests of the workspace, the same by hand as in CI.
//!
//! A plain program on `std` alone: it is compiled before anything else is checked, so every
//! dependency here would be waited for by everybody, on every clean checkout.
//!
//! | file | subject |
//! |---|---|
//! | `args` | what the user typed |
//! | `checks` | the steps that need cargo only |
//! | `mpi_tests` | the steps that need mpirun, and what `mpi-suite` promises |
//! | `program_tests` | the `dtensor` program under mpirun |
//! | `train_tests` | `dtensor train` there: settings, what goes on, what is said once |
//! | `launcher` | which mpirun this is, and which flags it takes |
//! | `setup` | installing what is missing |
//! | `machine` | finding out what that is |
//! | `process`, `process_tree` | child processes with a time limit |
//! | `report` | steps, their times, the summary |
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports by printing")]

mod args;
mod checks;
mod error;
mod launcher;
mod machine;
// The tests on threads have the same list.
#[path = "../../crates/cli/tests/program/train/meshes.rs"]
mod meshes;
mod mpi_tests;
mod process;
mod process_tree;
mod program_tests;
mod report;
mod setup;
mod train_tests;

use std::process::ExitCode;

use args::{Command, Request};
use checks::Mpi;
use error::Result;
use report::Report;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(Request::Run(command)) => command,
        Ok(Request::Help) => {
            print!("{}", args::help());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::start();
    let result = run(&command, &mut report);
    print!("{}", report.summary());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, report: &mut Report) -> Result<()> {
    match command {
        Command::Test => {
            report.step("set-up", setup::everything)?;
            checks::run(report, Mpi::Present)?;
            mpi_tests::run(report, &mpi_tests::RANKS)
        }
        Command::Check => {
            report.step("set-up", setup::rust_components)?;
            checks::run(report, Mpi::Absent)
        }
        Command::MpiTest { ranks } => {
            report.step("set-up", setup::system_packages)?;
            mpi_tests::run(report, ranks)
        }
        Command::Deny => report.step("deny", checks::deny),
        Command::Miri => report.step("miri", checks::miri),
    }
}
