//! Records that every rank of a group tells all others.
//!
//! A rank on which something is wrong does not leave: it takes part and tells that instead. So nobody waits for
//! it, and all ranks get the same error.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Error, ProcessGroup, Result};

/// The records of all members, in their order, or the error of the first that has one.
pub(crate) fn all_records<T: Serialize + DeserializeOwned>(
    op: &'static str,
    group: &ProcessGroup,
    own: Result<T>,
) -> Result<Vec<T>> {
    let members = group.group(op)?;
    let own = match own {
        Ok(record) => Told::Fine(record),
        Err(error) => Told::Wrong(error.told()),
    };
    let own = serde_json::to_vec(&own).map_err(|error| bad(op, &error))?;
    let all = members.all_gather_lists(&own).map_err(Error::comm(op))?;
    let mut records = Vec::with_capacity(all.len());
    let mut wrong = None;
    for (bytes, rank) in all.into_iter().zip(group.world_ranks()) {
        match serde_json::from_slice(&bytes).map_err(|error| bad(op, &error))? {
            Told::Fine(record) => records.push(record),
            Told::Wrong(error) if wrong.is_none() => wrong = Some((*rank, error)),
            Told::Wrong(_) => {}
        }
    }
    match wrong {
        None => Ok(records),
        Some((rank, error)) => Err(Error::Rank { rank, error: Box::new(error) }),
    }
}

/// What this rank has, if nothing is wrong on any member; else the same error on all.
pub(crate) fn agree<T>(op: &'static str, group: &ProcessGroup, own: Result<T>) -> Result<T> {
    let (own, told) = match own {
        Ok(value) => (Some(value), Ok(())),
        Err(error) => (None, Err(error)),
    };
    all_records(op, group, told)?;
    own.ok_or_else(|| Error::Told { text: op.into() })
}

#[derive(Serialize, Deserialize)]
enum Told<T> {
    Fine(T),
    Wrong(Error),
}

fn bad(op: &'static str, error: &serde_json::Error) -> Error {
    Error::BadState { op: op.into(), what: format!("a record of a rank: {error}").into() }
}
