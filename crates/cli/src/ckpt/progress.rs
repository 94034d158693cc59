//! How far a task is, where somebody watches.

use std::io::{self, IsTerminal};

use dtensor_checkpoint::Progress;
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

    pub fn at(&self, progress: Progress) {
        self.0.set_length(progress.total);
        self.0.set_position(progress.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
