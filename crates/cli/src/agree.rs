//! What processes under mpirun say as one.

use std::time::Duration;

use dtensor::{Runner, World};
use dtensor_comm::{CommError, Group, RunError, is_launched, launched_rank};

use crate::error::{Error, Result};

/// Longest wait for others that have failed too.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does what every process does for itself before they do anything together; it is told whether it is the first of them. A mistake of
/// one is the mistake of all, and the first process says it.
pub fn alike<T: Send>(prepare: impl Fn(bool) -> Result<T> + Sync) -> Result<T> {
    if !is_launched() {
        return prepare(true);
    }
    let outcomes = Runner::new().run(|world: &World| {
        let is_first = world.rank() == 0;
        let outcome = agree(Some(&world.group()), prepare(is_first));
        // The first process speaks for all.
        let said = |error| if is_first { error } else { Error::SaidByAnother(Box::new(error)) };
        Ok::<_, CommError>(outcome.map_err(said))
    });
    let outcomes =
        outcomes.map_err(|error| said_once(&error, Error::failure(error.to_string())))?;
    match outcomes.into_iter().next() {
        Some(outcome) => outcome,
        None => Err(Error::failure("a run without ranks")),
    }
}

/// What is an error for one process is the same error for all of them: that of the first which has one. Processes that prepare
/// something alone agree here before they do anything together, or the others would wait for the one that has failed.
pub fn agree<T>(group: Option<&Group>, outcome: Result<T>) -> Result<T> {
    let Some(group) = group else { return outcome };
    let own = outcome.as_ref().err().map_or_else(Vec::new, to_bytes);
    let all = group.tag("agree").all_gather_lists(&own);
    let all = all.map_err(|error| Error::failure(error.to_string()))?;
    match all.iter().find(|error| !error.is_empty()) {
        Some(error) => Err(from_bytes(error)),
        None => outcome,
    }
}

/// Why a run has ended, of which all processes know: said by the one where it began, or by all of them if that one is gone.
pub fn said_once(ended: &RunError, error: Error) -> Error {
    match !is_launched() || is_ours_to_say(ended) {
        true => error,
        false => Error::SaidByAnother(Box::new(error)),
    }
}

fn is_ours_to_say(ended: &RunError) -> bool {
    match (ended.rank(), ended.cause()) {
        (Some(culprit), _) => {
            // Another run can only begin if all have learnt how this one ended.
            let is_culprit = |world: &World| {
                let mut culprit = [culprit as i64];
                world.group().tag("agree").broadcast(&mut culprit, 0)?;
                Ok::<_, CommError>(world.rank() as i64 == culprit[0])
            };
            let asked = Runner::new().deadline(PATIENCE).run(is_culprit);
            asked.map_or(true, |is_culprit| is_culprit == [true])
        }
        // It did not begin, and none of them can.
        (None, CommError::CannotRun(_)) => launched_rank().is_none_or(|rank| rank == 0),
        (None, _) => true,
    }
}

fn to_bytes(error: &Error) -> Vec<u8> {
    let (is_usage, hint) = match error {
        Error::Usage { hint, .. } => (true, hint.as_deref()),
        Error::Failure { hint, .. } => (false, hint.as_deref()),
        _ => (false, None),
    };
    serde_json::json!([is_usage, error.to_string(), hint]).to_string().into_bytes()
}

fn from_bytes(bytes: &[u8]) -> Error {
    let json: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let message = json[1].as_str().unwrap_or("another process has failed");
    let error = match json[0].as_bool() {
        Some(true) => Error::usage(message),
        _ => Error::failure(message),
    };
    match json[2].as_str() {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}
