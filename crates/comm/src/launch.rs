//! What the environment says about a run.

use std::{env, fmt, str::FromStr, thread};

use crate::CommError;

/// How a launcher such as mpirun started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launch {
    /// As one of so many.
    Processes(usize),
    /// As one of several: it said which, but not of how many.
    Unknown,
}

/// Whether a launcher such as mpirun started this process.
pub fn is_launched() -> bool {
    launched().is_some()
}

/// How many processes a launcher such as mpirun started, if one did and says so.
pub fn launched_ranks() -> Option<usize> {
    match launched()? {
        Launch::Processes(ranks) => Some(ranks),
        Launch::Unknown => None,
    }
}

/// Which of its processes a launcher such as mpirun says that this one is: known before a run begins.
pub fn launched_rank() -> Option<usize> {
    rank_by(|name| env::var(name).ok())
}

/// The launcher of this process, if there was one.
pub(crate) fn launched() -> Option<Launch> {
    launched_by(|name| env::var(name).ok())
}

/// The value of an environment variable; `None` if it is not set or blank.
pub(crate) fn variable<V: FromStr>(name: &str, form: &str) -> Result<Option<V>, CommError> {
    match env::var(name) {
        Ok(text) if !text.trim().is_empty() => match text.trim().parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(CommError::CannotRun(format!("{name}={text:?} is not {form}").into())),
        },
        _ => Ok(None),
    }
}

/// Threads that can run at once.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Launch::Processes(n) => write!(f, "{n} processes"),
            Launch::Unknown => f.write_str("several processes"),
        }
    }
}

fn launched_by(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
    // Open MPI; then MPICH, Intel MPI and srun with PMI.
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        if let Some(size) = variable(name).and_then(|text| text.trim().parse().ok()) {
            return Some(Launch::Processes(size));
        }
    }
    // A PMIx server tells every process its rank, but not their number.
    variable("PMIX_RANK").map(|_| Launch::Unknown)
}

/// The variables of the launchers above.
fn rank_by(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    names.into_iter().find_map(|name| variable(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_variables() {
        let with = |name: &'static str, value: &'static str| {
            launched_by(move |asked| (asked == name).then(|| value.to_string()))
        };
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "4"), Some(Launch::Processes(4)));
        assert_eq!(with("PMI_SIZE", "1"), Some(Launch::Processes(1)));
        assert_eq!(with("PMIX_RANK", "0"), Some(Launch::Unknown));
        assert_eq!(with("HOME", "/root"), None);
        let rank = |name: &'static str, value: &'static str| {
            rank_by(move |asked| (asked == name).then(|| value.to_string()))
        };
        assert_eq!(rank("OMPI_COMM_WORLD_RANK", "3"), Some(3));
        assert_eq!(rank("PMI_RANK", "0"), Some(0));
        assert_eq!(rank("PMIX_RANK", "1"), Some(1));
        assert_eq!(rank("HOME", "1"), None);
    }
}
