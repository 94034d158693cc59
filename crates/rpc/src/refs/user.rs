//! The other end of references.

use std::fmt;

use super::{Delete, RefId, Share};
use crate::{Agent, Error, Result, WorkerInfo};

/// A reference to an object of another worker, which keeps the object alive there. What can be done with it
/// is up to the methods that the workers [register](crate::Agent::register): they are called on its
/// [owner](UserRef::owner) with its [number](UserRef::id).
///
/// Dropping it tells the owner, behind the back of whoever drops it.
pub struct UserRef {
    share: Share,
    agent: Agent,
}

impl UserRef {
    pub(crate) fn new(agent: &Agent, share: Share) -> Result<UserRef> {
        let owner = share.id.created_on;
        agent.worker_by_id(owner)?;
        if owner == agent.id() {
            return Err(Error::BadShare {
                id: share.id,
                why: "it is an object of this worker".into(),
            });
        }
        agent.counted_reference(1);
        Ok(UserRef { share, agent: agent.clone() })
    }

    /// The number of the object.
    pub fn id(&self) -> RefId {
        self.share.id
    }

    /// The worker that has the object.
    pub fn owner(&self) -> &WorkerInfo {
        let owner = self.share.id.created_on;
        // It was looked up when the reference was made.
        self.agent.worker_by_id(owner).unwrap_or_else(|_| self.agent.me())
    }

    /// What it is called through.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }
}

impl Drop for UserRef {
    fn drop(&mut self) {
        self.agent.counted_reference(-1);
        let Share { id, serial } = self.share;
        self.agent.deletes().push(id.created_on, Delete { local_id: id.local_id, serial });
    }
}

impl fmt::Debug for UserRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserRef({} of {}, fork {})", self.share.id, self.owner().name, self.share.serial)
    }
}
