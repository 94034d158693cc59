//! Bringing a file to disk while it is still being written.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
};

/// Bytes that are written before the disk is told to begin with them.
pub(super) const EVERY: u64 = 64 << 20;

/// A file that is synced behind its writer. A disk that first hears of a file when it is complete has slept while the file was
/// hashed and copied to the system's memory: a save of 1 GiB takes a fifth longer then.
pub(super) struct WriteBehind {
    file: Arc<File>,
    every: u64,
    progress: Mutex<Progress>,
}

/// How far the disk is behind.
#[derive(Default)]
struct Progress {
    unsynced: u64,
    syncer: Option<Syncer>,
}

/// A thread that syncs the file when it is asked, and once for all that it was asked meanwhile.
struct Syncer {
    ask: SyncSender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl WriteBehind {
    /// For a file that is synced whenever `every` bytes more were written.
    pub(super) fn new(file: File, every: u64) -> WriteBehind {
        WriteBehind { file: Arc::new(file), every, progress: Mutex::default() }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Hears that so many bytes were written.
    pub(super) fn written(&self, bytes: usize) {
        let mut progress = self.progress();
        progress.unsynced += bytes as u64;
        if progress.unsynced < self.every {
            return;
        }
        progress.unsynced = 0;
        if progress.syncer.is_none() {
            progress.syncer = Syncer::start(&self.file);
        }
        if let Some(syncer) = &progress.syncer {
            // If it is asked already, or has failed, there is nothing to add.
            let _ = syncer.ask.try_send(());
        }
    }

    /// Brings everything to disk. What the thread could not write is an error here: the system tells it only once.
    pub(super) fn finish(&self) -> io::Result<()> {
        let syncer = self.progress().syncer.take();
        if let Some(Syncer { ask, thread }) = syncer {
            drop(ask);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        self.file.sync_all()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Syncer {
    /// `None` where the system has no more threads: then all is synced at the end.
    fn start(file: &Arc<File>) -> Option<Syncer> {
        let (ask, asked) = mpsc::sync_channel(1);
        let file = Arc::clone(file);
        let sync = move || asked.iter().try_for_each(|()| file.sync_data());
        let thread = thread::Builder::new().name("dtensor-sync".into()).spawn(sync).ok()?;
        Some(Syncer { ask, thread })
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn a_file_that_is_synced_on_the_way_is_whole_at_the_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let behind = WriteBehind::new(file.reopen().unwrap(), 100);
        assert!(behind.progress().syncer.is_none());
        for number in 0..50_u64 {
            behind.file().write_all_at(&[number as u8; 70], number * 70).unwrap();
            behind.written(70);
        }
        assert!(behind.progress().syncer.is_some());
        behind.finish().unwrap();
        file.flush().unwrap();
        let want: Vec<u8> = (0..50).flat_map(|number| [number; 70]).collect();
        assert_eq!(std::fs::read(file.path()).unwrap(), want);
    }

    #[test]
    fn what_cannot_be_synced_on_the_way_is_an_error_at_the_end() {
        // There is no disk behind it.
        let behind = WriteBehind::new(File::open("/dev/null").unwrap(), 1);
        behind.written(1);
        let Some(Syncer { ask, thread }) = behind.progress().syncer.take() else {
            panic!("not started")
        };
        drop(ask);
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        behind.written(1);
        assert_eq!(behind.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
