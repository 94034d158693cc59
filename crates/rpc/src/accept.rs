//! Connections that others make to this worker.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::oneshot,
    time::{self, Sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// How many connections may be open that have not been [admitted](Admission), besides one for every worker, which may
/// all come at the same time. Whoever can connect could otherwise take all descriptors of the process.
const STRANGERS: usize = 256;
/// How long one of them is kept, unless a worker is told to wait less for anything.
const LONGEST: Duration = Duration::from_secs(5);
/// How long nothing is accepted after an error: without descriptors, the next one comes at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The connections that others make. It has no end, and no errors.
pub(crate) struct Accepting<S> {
    incoming: S,
    patience: Duration,
    waiting: Waiting,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Connections that were not admitted when they were last looked at, oldest first. Dropping one of them here
/// closes it, so that in a crowd a worker gets in: it shows the secret at once, and the others wait.
struct Waiting {
    connections: VecDeque<oneshot::Sender<()>>,
    limit: usize,
}

/// A connection that is closed after a while, unless it is [admitted](Admission): whoever connects and says
/// nothing, or says it without the secret, would otherwise keep it for ever. The pings of HTTP/2 do not help,
/// because they begin after its greeting.
pub(crate) struct Accepted {
    stream: TcpStream,
    admission: Admission,
    /// Until when it must be admitted; nothing, once it is.
    until: Option<Until>,
}

struct Until {
    time: Pin<Box<Sleep>>,
    /// Ready when its place is needed.
    crowd: oneshot::Receiver<()>,
}

/// Whether a request with the secret of the run has come over a connection. Every request has the one of its
/// connection among its extensions.
#[derive(Clone, Default)]
pub(crate) struct Admission(Arc<AtomicBool>);

impl<S> Accepting<S> {
    /// Of one of so many workers.
    pub(crate) fn new(incoming: S, n_workers: usize, timeout: Duration) -> Accepting<S> {
        let waiting = Waiting { connections: VecDeque::new(), limit: n_workers + STRANGERS };
        Accepting { incoming, patience: timeout.min(LONGEST), waiting, pause: None }
    }
}

impl<S: Stream<Item = io::Result<TcpStream>> + Unpin> Stream for Accepting<S> {
    type Item = io::Result<Accepted>;

    /// Within the runtime, whose clock it needs.
    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Accepted>>> {
        let this = &mut *self;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            match ready!(Pin::new(&mut this.incoming).poll_next(context)) {
                Some(Ok(stream)) => {
                    let (time, crowd) = (Box::pin(time::sleep(this.patience)), this.waiting.add());
                    let until = Some(Until { time, crowd });
                    let accepted = Accepted { stream, admission: Admission::default(), until };
                    return Poll::Ready(Some(Ok(accepted)));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    this.pause = Some(Box::pin(time::sleep(PAUSE)));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Waiting {
    /// One more, in the place of the oldest if there is no other.
    fn add(&mut self) -> oneshot::Receiver<()> {
        self.connections.retain(|connection| !connection.is_closed());
        if self.connections.len() >= self.limit {
            self.connections.pop_front();
        }
        let (sender, receiver) = oneshot::channel();
        self.connections.push_back(sender);
        receiver
    }
}

impl Accepted {
    /// An error if it is neither admitted nor may wait for it any longer. Asked before writing as well: who does
    /// not read what it is told is not read from either.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(until) = &mut self.until else { return Ok(()) };
        if self.admission.0.load(Ordering::Relaxed) {
            self.until = None;
        } else if until.time.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        } else if Pin::new(&mut until.crowd).poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
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
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
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
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_not_admitted_makes_room() {
        let mut waiting = Waiting { connections: VecDeque::new(), limit: 9 };
        let mut connections: Vec<_> = (0..9).map(|_| waiting.add()).collect();
        let is_kept = |connection: &mut oneshot::Receiver<()>| {
            connection.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(connections.iter_mut().all(is_kept));
        // One is admitted, or gone, and its place is free.
        drop(connections.remove(7));
        connections.push(waiting.add());
        assert!(connections.iter_mut().all(is_kept));
        connections.push(waiting.add());
        assert!(!is_kept(&mut connections[0]) && connections[1..].iter_mut().all(is_kept));
    }

    /// It used to be asked again at once, which is for ever while there are no descriptors.
    #[test]
    fn after_an_error_nothing_is_accepted_for_a_moment() {
        let mut n_asked = 0;
        let errors = std::iter::from_fn(|| {
            n_asked += 1;
            Some(Err(io::ErrorKind::OutOfMemory.into()))
        });
        let mut accepting = Accepting::new(tokio_stream::iter(errors), 1, LONGEST);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _runtime = runtime.enter();
        let mut context = Context::from_waker(std::task::Waker::noop());
        for _ in 0..3 {
            assert!(Pin::new(&mut accepting).poll_next(&mut context).is_pending());
        }
        drop(accepting);
        assert_eq!(n_asked, 1);
    }
}
