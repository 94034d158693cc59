//! Lines of a run, to whoever reads them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;

use super::stop;
use crate::output::Out;

/// Lines that may wait for a reader.
const WAITING: usize = 256;

/// Time without a line going out after which nobody is thought to read.
const STANDSTILL: Duration = Duration::from_millis(100);

/// JSON lines that a thread of its own writes.
///
/// A reader may be slow, and the run then waits for it. But when the run is asked to stop it must not wait: mpirun reads no more from
/// the moment it hears Ctrl-C, and a rank that waits for it to read is killed before it has ended. Dropping waits until everything is
/// written; when the run was asked to stop, only as long as lines go out.
pub struct Lines {
    /// Both are there until it is dropped.
    send: Option<SyncSender<Value>>,
    writer: Option<JoinHandle<()>>,
    written: Arc<AtomicUsize>,
}

impl Lines {
    pub fn new() -> Lines {
        let (send, lines) = mpsc::sync_channel::<Value>(WAITING);
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let write = move || {
            for line in lines {
                // Where nobody reads on, the run goes on: it has a checkpoint to write.
                drop(Out::new().json(&line));
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        Lines { send: Some(send), writer: Some(thread::spawn(write)), written }
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
        let Some(writer) = self.writer.take() else { return };
        let mut seen = None;
        while stop::is_asked_here() && !writer.is_finished() {
            let written = Some(self.written.load(Ordering::Relaxed));
            if seen == written {
                // Nobody reads. The thread ends with the process.
                return;
            }
            seen = written;
            thread::sleep(STANDSTILL);
        }
        // It does not panic.
        let _ = writer.join();
    }
}
