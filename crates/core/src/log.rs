//! Logging for programs.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;

use crate::{Error, Result};

/// Writes the events of this crate and of those below it to standard error, as far as `DTENSOR_LOG` asks for
/// them: `error`, `warn`, `info`, `debug` or `trace`; without the variable, nothing is done. For programs: a
/// library leaves that to the program that it is part of.
///
/// With `debug` there is a line for every decision, remembered or made, and for every operand that is
/// redistributed without being asked for, each with the rank, the operation and the layouts.
///
/// # Errors
/// If the variable has another value. A program that has set up its own logging keeps that.
pub fn log_from_env() -> Result<()> {
    let Ok(text) = std::env::var("DTENSOR_LOG") else { return Ok(()) };
    let level = LevelFilter::from_str(text.trim()).map_err(|_| Error::Unsupported {
        op: "log_from_env",
        what: format!("DTENSOR_LOG={text} is no level").into(),
        way_out: "give error, warn, info, debug or trace",
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_thread_names(true)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .finish();
    // There can be one; who came first stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}
