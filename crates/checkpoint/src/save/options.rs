//! What a caller says about a save, and what is said to it.

use std::{fmt, sync::Arc, time::Duration};

use crate::{OnProgress, Progress};

/// How to save.
#[derive(Clone)]
#[non_exhaustive]
pub struct SaveOptions {
    /// Whether data are on the disk before the old checkpoint is replaced. Without it a checkpoint survives that the program
    /// is killed, but not that the machine stops. On by default.
    pub sync: bool,
    /// Told now and then how much of its part this rank has written.
    pub progress: Option<Arc<OnProgress<'static>>>,
    /// How long a rank that writes in the background is waited for without a sign of life from it. Ten minutes by default.
    pub patience: Duration,
}

/// A checkpoint that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Where it is.
    pub place: String,
    /// Of this save, as the manifest has it.
    pub id: String,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of all tensors, each element counted once.
    pub bytes: u64,
    /// Bytes of tensors that this rank wrote.
    pub written: u64,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions { sync: true, progress: None, patience: Duration::from_secs(600) }
    }
}

impl SaveOptions {
    /// With data on the disk before the old checkpoint is replaced, or not.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> SaveOptions {
        self.sync = sync;
        self
    }

    /// With a function that is told how far this rank is.
    #[must_use]
    pub fn progress(mut self, tell: impl Fn(Progress) + Send + Sync + 'static) -> SaveOptions {
        self.progress = Some(Arc::new(tell));
        self
    }

    /// With another time for which a silent rank is waited for.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> SaveOptions {
        self.patience = patience;
        self
    }
}

impl fmt::Debug for SaveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaveOptions")
            .field("sync", &self.sync)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
