//! The owner's end of references.

use std::{fmt, marker::PhantomData, sync::Arc};

use super::{Object, Objects, RefId, Share};
use crate::{Error, Result};

/// An object of this worker that others can have references to.
///
/// The object lives as long as this, or any fork that was [shared](OwnerRef::share) and not yet dropped.
pub struct OwnerRef<T: Object> {
    id: RefId,
    objects: Arc<Objects>,
    kind: PhantomData<fn() -> T>,
}

impl<T: Object> OwnerRef<T> {
    pub(crate) fn new(me: usize, objects: &Arc<Objects>, object: Arc<T>) -> OwnerRef<T> {
        let id = RefId { created_on: me, local_id: objects.add(object) };
        OwnerRef { id, objects: Arc::clone(objects), kind: PhantomData }
    }

    /// Its number.
    pub fn id(&self) -> RefId {
        self.id
    }

    /// The object.
    pub fn value(&self) -> Result<Arc<T>> {
        let gone = || Error::BadShare { id: self.id, why: "the agent was shut down".into() };
        self.objects.get(self.id.local_id).and_then(|any| any.downcast().ok()).ok_or_else(gone)
    }

    /// Counts a fork for each of these workers, and gives what they [adopt](crate::Agent::adopt). Counting
    /// comes first: so an object cannot be dropped while a reference to it is on its way.
    pub fn share(&self, holders: &[usize]) -> Result<Share> {
        let gone = || Error::BadShare { id: self.id, why: "the agent was shut down".into() };
        let serial = self.objects.fork(self.id.local_id, holders).ok_or_else(gone)?;
        Ok(Share { id: self.id, serial })
    }

    /// Takes back all forks: for shares that could not be sent.
    pub fn revoke(&self) {
        self.objects.revoke(self.id.local_id);
    }
}

impl<T: Object> Drop for OwnerRef<T> {
    fn drop(&mut self) {
        self.objects.release(self.id.local_id);
    }
}

impl<T: Object> fmt::Debug for OwnerRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerRef({})", self.id)
    }
}
