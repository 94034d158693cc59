//! Why a run ended early, as one readable block.

use std::{error::Error, fmt};

use crate::CommError;

/// Why a run ended early: the first cause, the rank it came from and what that rank did last.
///
/// `Display` and `Debug` both print the whole block, so that `fn main() -> Result<(), RunError>` says
/// what happened.
pub struct RunError {
    // Boxed: the size of the error is paid by every successful return as well.
    inner: Box<Inner>,
}

struct Inner {
    rank: Option<usize>,
    size: usize,
    cause: CommError,
    /// The error value that the rank returned, if it returned one.
    returned: Option<Box<dyn Error + Send + Sync>>,
    recorder: String,
}

impl RunError {
    pub(crate) fn new(
        rank: usize,
        size: usize,
        cause: CommError,
        returned: Option<Box<dyn Error + Send + Sync>>,
        recorder: String,
    ) -> RunError {
        RunError { inner: Box::new(Inner { rank: Some(rank), size, cause, returned, recorder }) }
    }

    /// A run that did not begin.
    pub(crate) fn before(cause: CommError) -> RunError {
        let recorder = String::new();
        RunError { inner: Box::new(Inner { rank: None, size: 0, cause, returned: None, recorder }) }
    }

    /// The rank that failed first; `None` if the run did not begin.
    pub fn rank(&self) -> Option<usize> {
        self.inner.rank
    }

    /// What happened: [`CommError::RankFailed`] if the rank panicked or returned an error of its own,
    /// else what went wrong between the ranks.
    pub fn cause(&self) -> &CommError {
        &self.inner.cause
    }

    /// The flight recorder of that rank, as text.
    pub fn recorder(&self) -> &str {
        &self.inner.recorder
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { rank, size, cause, returned, recorder } = &*self.inner;
        let Some(rank) = rank else { return write!(f, "{cause}") };
        match cause {
            CommError::RankFailed { rank, cause, .. } => {
                write!(f, "rank {rank} of {size} {cause}")?;
            }
            cause => write!(f, "rank {rank} of {size} stopped: {cause}")?,
        }
        // What the error itself says is in the cause; what lies beneath it is not.
        let mut source = returned.as_deref().and_then(|error| error.source());
        while let Some(error) = source {
            write!(f, "\n  caused by: {error}")?;
            source = error.source();
        }
        match recorder.as_str() {
            // A rank of another process, which prints its own.
            "" => Ok(()),
            recorder => write!(f, "\nlast calls of rank {rank}:\n{recorder}"),
        }
    }
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.inner.returned {
            Some(error) => Some(&**error),
            None => Some(&self.inner.cause),
        }
    }
}
