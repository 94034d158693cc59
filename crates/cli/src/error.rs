use std::{
    io::{self, Write},
    panic::PanicHookInfo,
    process::ExitCode,
};

use dtensor_layout::LayoutError;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments, or a line of input, make no sense: exit code 2.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// The arguments are fine, and it went wrong nevertheless: exit code 1.
    #[error("{message}")]
    Failure { message: String, hint: Option<String> },
    /// Everything is already said; only the exit code remains, 1.
    #[error("some answers are errors")]
    AlreadyReported,
    /// Another process of this program under mpirun says it; the exit code is that of the error.
    #[error("{0}")]
    SaidByAnother(Box<Error>),
    /// Nobody reads on (`dtensor ... | head`): not a failure of ours.
    #[error("the reader went away")]
    ReaderGone,
}

/// Result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage { message: message.into(), hint: None }
    }

    pub fn failure(message: impl Into<String>) -> Error {
        Error::Failure { message: message.into(), hint: None }
    }

    /// The same error with a line about the way out.
    pub fn with_hint(mut self, text: impl Into<String>) -> Error {
        if let Error::Usage { hint, .. } | Error::Failure { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// The same error with the place of the mistake in front.
    pub fn within(mut self, place: &str) -> Error {
        if let Error::Usage { message, .. } | Error::Failure { message, .. } = &mut self {
            *message = format!("{place}: {message}");
        }
        self
    }

    /// Says on stderr what there is to say, in one block, and picks the exit code.
    pub fn report(self) -> ExitCode {
        let hint = match &self {
            Error::ReaderGone | Error::AlreadyReported | Error::SaidByAnother(_) => {
                return self.code();
            }
            Error::Usage { hint, .. } | Error::Failure { hint, .. } => hint,
        };
        let hint = hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
        // One write, so that several processes under mpirun do not interleave their blocks. Where
        // stderr itself is closed there is nobody left to tell.
        let _ = io::stderr().write_all(format!("error: {self}{hint}\n").as_bytes());
        self.code()
    }

    fn code(&self) -> ExitCode {
        match self {
            Error::ReaderGone => ExitCode::SUCCESS,
            Error::Usage { .. } => ExitCode::from(2),
            Error::AlreadyReported | Error::Failure { .. } => ExitCode::FAILURE,
            Error::SaidByAnother(error) => error.code(),
        }
    }
}

/// Says on stderr that the program itself is wrong.
pub fn report_bug(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic without a message");
    let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
    let text = format!("error: internal error, please report this: {what}{place}\n");
    // Where stderr itself is closed there is nobody left to tell.
    let _ = io::stderr().write_all(text.as_bytes());
}

impl From<LayoutError> for Error {
    /// What the layout crate refuses was wrong in the question, but for a plan that does not exist.
    fn from(error: LayoutError) -> Error {
        match error {
            LayoutError::CannotRedistribute { .. } | LayoutError::PartialToPartial { .. } => {
                Error::failure(error.to_string())
            }
            _ => Error::usage(error.to_string()),
        }
    }
}

impl From<io::Error> for Error {
    /// Only the standard streams use this; a file's error is worded where its name is known.
    fn from(error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Error::ReaderGone,
            _ => Error::failure(format!("input or output failed: {error}")),
        }
    }
}
