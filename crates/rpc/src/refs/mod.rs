//! References to objects of other workers, counted by their owners.

mod deletes;
mod objects;
mod owner;
mod user;

use std::{any::Any, fmt};

use serde::{Deserialize, Serialize};

pub use owner::OwnerRef;
pub use user::UserRef;

pub(crate) use deletes::Deletes;
pub(crate) use objects::Objects;

/// What can be owned: any value that threads can share.
pub trait Object: Any + Send + Sync {}

impl<T: Any + Send + Sync> Object for T {}

/// An object, by the worker that owns it and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RefId {
    /// The owner.
    pub created_on: usize,
    /// Which of its objects.
    pub local_id: u64,
}

impl fmt::Display for RefId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.created_on, self.local_id)
    }
}

/// What an owner sends to those with whom it [shares](OwnerRef::share) an object, by whatever way. The same
/// for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// The object.
    pub id: RefId,
    /// Which time it was shared.
    pub(crate) serial: u64,
}

/// One reference that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delete {
    pub(crate) local_id: u64,
    pub(crate) serial: u64,
}
