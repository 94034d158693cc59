//! The `dtensor` program: who holds what, how to get there, and how long it takes.
//!
//! Every command is a file or a folder of this crate; this one only picks it and turns its
//! error into a message and an exit code.

#![forbid(unsafe_code)]

mod agree;
mod args;
mod bench;
mod ckpt;
mod error;
mod layout;
mod memory;
mod ops;
mod output;
mod parse;
mod plan;
mod train;

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

use clap::Parser;
use dtensor_comm::is_launched;

use crate::{
    args::{Cli, Command},
    error::{Error, Result},
};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return answer(&error),
    };
    // A panic is a bug of ours, whatever was typed. Say so in one block like any other error, unless
    // somebody has asked for the long story.
    if env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0") {
        std::panic::set_hook(Box::new(error::report_bug));
    }
    if let Err(error) = dtensor::log_from_env() {
        return Error::usage(error.to_string()).report();
    }
    let result = catch_unwind(AssertUnwindSafe(|| match cli.command {
        Command::Layout(args) => layout::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Ops(args) => ops::run(args),
        Command::Train(args) => train::run(*args),
        Command::Ckpt(args) => ckpt::run(*args),
        Command::Bench(args) => bench::run(args),
    }));
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => error.report(),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Help, or what is wrong with the arguments: under mpirun of one process.
fn answer(answer: &clap::Error) -> ExitCode {
    if !is_launched() {
        answer.exit();
    }
    let text = answer.to_string();
    let said: Result<()> = agree::alike(|is_first| match answer.use_stderr() {
        true => {
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Err(Error::usage(text.trim_end()))
        }
        false if is_first => output::Out::new().line(text.trim_end()),
        false => Ok(()),
    });
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
