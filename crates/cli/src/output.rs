//! Where answers go, and how they may look there.

use std::{
    env,
    io::{self, IsTerminal, StdoutLock, Write},
};

use clap::ValueEnum;
use serde_json::Value;

use crate::error::Result;

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    // On a terminal, unless NO_COLOR is set. (A doc comment would make a page of the help.)
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Whether text on stdout is coloured. See <https://no-color.org>: any value but the empty one.
    pub fn enabled(self) -> bool {
        let forbidden = || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = || env::var_os("TERM").is_some_and(|term| term == "dumb");
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stdout().is_terminal() && !forbidden() && !dumb(),
        }
    }
}

/// Columns of the terminal; 80 where there is none, so that piped output does not vary.
pub fn terminal_width() -> usize {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((terminal_size::Width(width), _)) => usize::from(width),
        None => 80,
    }
}

/// Stdout, buffered by lines; every write can tell that the reader has gone.
pub struct Out(StdoutLock<'static>);

impl Out {
    pub fn new() -> Out {
        Out(io::stdout().lock())
    }

    pub fn line(&mut self, text: &str) -> Result<()> {
        self.0.write_all(text.as_bytes())?;
        Ok(self.0.write_all(b"\n")?)
    }

    pub fn lines<S: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = S>) -> Result<()> {
        lines.into_iter().try_for_each(|line| self.line(line.as_ref()))
    }

    /// One JSON value on one line, visible to the reader at once.
    pub fn json(&mut self, value: &Value) -> Result<()> {
        self.line(&value.to_string())?;
        Ok(self.0.flush()?)
    }
}

/// A line on stderr that says how far a long task is, where somebody watches.
pub struct Progress {
    watched: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { watched: io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub fn say(&self, text: &str) {
        if self.watched {
            // A progress line that cannot be written is no reason to stop.
            let _ = write!(io::stderr(), "\r\x1b[2K{text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.say("");
    }
}
