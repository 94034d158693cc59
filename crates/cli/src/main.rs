//! The `dtensor` program: who holds what, how to get there, and how long it takes.
//!
//! Every command is a file or a folder of this crate; this one only picks it and turns its
//! error into a message and an exit code.

mod args;
mod bench;
mod error;
mod layout;
mod output;
mod parse;
mod plan;
mod table;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Layout(args) => layout::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
