//! Threads that belong to one agent.

use tokio::runtime::{Builder, Handle, Runtime};

use crate::{Error, Options, Result};

/// A runtime that can be dropped anywhere: its tasks end and their connections with them, and nobody waits
/// for that, nor for a handler that still runs.
pub(crate) struct OwnRuntime(Option<Runtime>, Handle);

impl OwnRuntime {
    pub(crate) fn start(worker: usize, options: &Options) -> Result<OwnRuntime> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(options.worker_threads)
            .max_blocking_threads(options.handler_threads)
            .thread_name(format!("rpc-{worker}"))
            .enable_all()
            .build()
            .map_err(|error| Error::CannotStart { why: error.to_string().into() })?;
        let handle = runtime.handle().clone();
        Ok(OwnRuntime(Some(runtime), handle))
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.1
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
