//! Stopping together.

use std::sync::Arc;

use crate::{Agent, Error, Result, block::block_until, control::Method, together::together};

impl Agent {
    /// Stops when all workers do. Every worker calls it: it tells the owners of dropped references, says to
    /// each worker that it leaves, and waits until each has said the same, for as long as the
    /// [options](crate::Options::timeout) allow. So no call of anybody is cut off. Workers that do not come
    /// are named in the error, and if all came, but an owner has not answered, it is [`Error::TimedOut`]; this
    /// worker has stopped all the same.
    ///
    /// Afterwards everything that is asked of this agent is [`Error::ShutDown`]. To call it again does
    /// nothing.
    pub fn shutdown(&self) -> Result<()> {
        const OP: &str = "shutdown";
        let Some(runtime) = self.runtime() else { return Ok(()) };
        let (deadline, waited) = self.deadline(None);
        // Not longer than half of the time: who waits here for an owner has still to tell the others.
        let told = block_until(deadline - waited / 2, self.deletes().flushed());
        let unflushed = told.is_none().then(|| self.unflushed(waited));
        let (served, peers) = (Arc::clone(self.served()), Arc::clone(self.peers()));
        let farewell = runtime.spawn(async move { together(Method::Leave, &served, &peers).await });
        let parted = block_until(deadline, farewell).is_some();
        let missing = self.served().leaving.missing(self.peers());
        self.shutdown_now();
        match (&*missing, unflushed, parted) {
            ([], None, true) => Ok(()),
            ([], Some(unflushed), _) => Err(unflushed),
            // They leave, and have not answered that they have heard it of this one.
            ([], None, false) => Err(self.peers().timed_out(self.id(), OP, waited)),
            _ => Err(Error::Missing { op: OP.into(), missing: missing.into(), waited }),
        }
    }
}
