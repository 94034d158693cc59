//! Lines of a run, to whoever reads them.

use std::{
    sync::mpsc::{self, SyncSender, TrySendError},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;

use super::stop;
use crate::output::Out;

/// Lines that may wait for a reader.
const WAITING: usize = 256;

/// JSON lines that a thread of its own writes.
///
/// A reader may be slow, and the run then waits for it. But when the run is asked to stop it must not wait: mpirun reads no more from
/// the moment it hears Ctrl-C, and a rank that waits for it to read is killed before it has saved anything. Dropping waits until
/// everything is written.
pub struct Lines {
    /// Both are there until it is dropped.
    send: Option<SyncSender<Value>>,
    writer: Option<JoinHandle<()>>,
}

impl Lines {
    pub fn new() -> Lines {
        let (send, lines) = mpsc::sync_channel::<Value>(WAITING);
        // Where nobody reads on, the run goes on: it has a checkpoint to write.
        let write = move || lines.iter().for_each(|line| drop(Out::new().json(&line)));
        Lines { send: Some(send), writer: Some(thread::spawn(write)) }
    }

    /// Gives a line to be written. If there is no room, and the run is asked to stop, the line is lost.
    pub fn say(&self, mut line: Value) {
        let Some(send) = &self.send else { return };
        while let Err(TrySendError::Full(unsent)) = send.try_send(line) {
            if stop::is_asked_here() {
                return;
            }
            line = unsent;
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.send.take());
        // It does not panic.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}
