//! The one runtime on which requests run. Ranks block; what they wait for does not need them.

use std::{
    future::Future,
    io::ErrorKind,
    sync::{
        LazyLock,
        mpsc::{Receiver, channel},
    },
};

use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// The outcome of a request.
pub(super) type Outcome<T> = object_store::Result<T>;

static RUNTIME: LazyLock<Result<Runtime, String>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("checkpoint-io").enable_all();
    builder.build().map_err(|error| error.to_string())
});

/// A request that has begun.
pub(super) struct Begun<T>(Result<Receiver<Outcome<T>>, String>);

/// Begins a request.
pub(super) fn begin<T: Send + 'static>(
    request: impl Future<Output = Outcome<T>> + Send + 'static,
) -> Begun<T> {
    let begin = |runtime: &Runtime| {
        let (sender, receiver) = channel();
        runtime.spawn(async move {
            // Nobody may be waiting any more.
            let _ = sender.send(request.await);
        });
        receiver
    };
    Begun(RUNTIME.as_ref().map(begin).map_err(String::clone))
}

/// Makes a request and waits for it. It may be called from anywhere, also from a thread of another runtime.
pub(super) fn run<T: Send + 'static>(
    request: impl Future<Output = Outcome<T>> + Send + 'static,
) -> Outcome<T> {
    begin(request).wait()
}

impl<T> Begun<T> {
    pub(super) fn wait(self) -> Outcome<T> {
        let no_runtime = |source: String| object_store::Error::Generic {
            store: "no runtime",
            source: source.into(),
        };
        let receiver = self.0.map_err(no_runtime)?;
        receiver.recv().unwrap_or_else(|error| Err(no_runtime(error.to_string())))
    }
}

/// For `map_err`: what the store refused.
pub(super) fn failed(
    doing: &'static str,
    path: String,
) -> impl FnOnce(object_store::Error) -> Error {
    move |error| {
        let kind = match &error {
            object_store::Error::NotFound { .. } => ErrorKind::NotFound,
            object_store::Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            object_store::Error::PermissionDenied { .. } => ErrorKind::PermissionDenied,
            object_store::Error::NotSupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        Error::Io { doing, path, kind, why: error.to_string() }
    }
}
