//! Connections that others make to this worker.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{self, Sleep},
};
use tonic::transport::server::Connected;

/// A connection that is closed after a while, unless it is [admitted](Admission): whoever connects and says
/// nothing, or says it without the secret, would otherwise keep it for ever. The pings of HTTP/2 do not help,
/// because they begin after its greeting.
pub(crate) struct Accepted {
    stream: TcpStream,
    admission: Admission,
    /// Until when it must be admitted; nothing, once it is.
    until: Option<Pin<Box<Sleep>>>,
}

/// Whether a request with the secret of the run has come over a connection. Every request has the one of its
/// connection among its extensions.
#[derive(Clone, Default)]
pub(crate) struct Admission(Arc<AtomicBool>);

impl Accepted {
    /// Within the runtime, whose clock it needs.
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Accepted {
        let until = Some(Box::pin(time::sleep(patience)));
        Accepted { stream, admission: Admission::default(), until }
    }
}

impl Admission {
    pub(crate) fn admit(&self) {
        // Relaxed: nothing else is read because of it.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Connected for Accepted {
    type ConnectInfo = Admission;

    fn connect_info(&self) -> Admission {
        self.admission.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(until) = &mut this.until {
            if this.admission.0.load(Ordering::Relaxed) {
                this.until = None;
            } else if until.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut this.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
