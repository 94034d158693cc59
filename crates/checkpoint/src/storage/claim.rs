//! Places that saves of this process are writing to.

use std::{
    collections::HashSet,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{Error, Result};

static CLAIMED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// A place that nobody else in this process writes to, until this is dropped.
///
/// Two saves to one place would end in any order, and the older one might replace the newer one. Locks of the file system
/// keep processes apart; not every file system has them, and object stores have none.
#[derive(Debug)]
pub(crate) struct Claim(String);

impl Claim {
    /// [`Error::Busy`] if somebody has it.
    pub(crate) fn new(place: String) -> Result<Claim> {
        match claimed().insert(place.clone()) {
            true => Ok(Claim(place)),
            false => Err(Error::Busy { path: place }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}

/// Whether a save of this process is writing to a place.
pub(crate) fn is_claimed(place: &str) -> bool {
    claimed().contains(place)
}

fn claimed() -> MutexGuard<'static, HashSet<String>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}
