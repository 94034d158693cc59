use std::fmt;

/// Why a step failed, in one line. The details are in the output of the step itself, above it; so
/// that nothing needs to tell one failure from another, a text is all there is.
#[derive(Debug, PartialEq, Eq)]
pub struct Error(String);

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }

    /// The same error, with the name of what was being done in front of it.
    pub fn during(self, what: &str) -> Error {
        Error(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
