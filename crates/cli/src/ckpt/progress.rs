//! How far a task is, where somebody watches.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of bytes on stderr, if that is a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new(doing: &'static str) -> Bar {
        let bar = match io::stderr().is_terminal() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        let style =
            "{msg} {bar:28} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(doing);
        Bar(bar)
    }

    /// None, whoever watches.
    pub fn hidden() -> Bar {
        Bar(ProgressBar::hidden())
    }

    /// Bytes that are done, and all of them.
    pub fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
