//! What can be chosen for an agent.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

#[cfg(feature = "tls")]
use crate::TlsOptions;
use crate::{Error, Result};

/// What an [`Agent`](crate::Agent) may use and how long it waits.
///
/// ```
/// use std::time::Duration;
/// use dtensor_rpc::Options;
///
/// let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
/// assert!(options.bind.ip().is_loopback());
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. By default on a free port of the loopback device, which only this machine reaches.
    pub bind: SocketAddr,
    /// Where the others reach this worker, if that is another address than it listens on. Port 0 stands for
    /// the port that it listens on.
    pub advertise: Option<SocketAddr>,
    /// Whether an address that is no loopback address may be used without TLS. Messages can then be read, and
    /// changed, on the way.
    pub allow_plaintext: bool,
    /// How long anything is waited for where a call does not say it: 60 s. A connection from which nothing with
    /// the [secret](crate::Secret) has come by then, or within 5 s, is closed.
    pub timeout: Duration,
    /// After which silence a connection is asked whether it is still there, and how long the answer may take.
    pub keepalive: Duration,
    /// The longest request, and the longest head of a reply, in bytes: of those that this worker sends, and of
    /// those that it takes. Bodies of replies are not bounded by it.
    pub max_message: usize,
    /// In pieces of how many bytes bodies are sent, at most [`Options::LONGEST_CHUNK`].
    pub chunk: usize,
    /// Threads that move messages.
    pub worker_threads: usize,
    /// Threads that handlers run on, at most.
    pub handler_threads: usize,
    /// Certificates, for encrypted connections.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsOptions>,
}

impl Options {
    /// The longest piece of a body that is accepted.
    pub const LONGEST_CHUNK: usize = 4 << 20;

    /// An error if no agent can be made with them.
    pub(crate) fn check(&self) -> Result<()> {
        let what = if !(16 << 10..=1 << 30).contains(&self.max_message) {
            "max_message is 16 KiB to 1 GiB; send more as a body"
        } else if self.chunk == 0 || self.chunk > Options::LONGEST_CHUNK {
            "chunk is 1 byte to 4 MiB"
        } else if self.worker_threads == 0 || self.handler_threads == 0 {
            "there must be threads of both kinds"
        } else if self.timeout.is_zero() || self.keepalive.is_zero() {
            "timeout and keepalive are longer than nothing"
        } else {
            return self.check_reachable(self.bind);
        };
        Err(Error::BadOptions { what: what.into() })
    }

    /// An error if what is sent to an address could be read by others.
    pub(crate) fn check_reachable(&self, address: SocketAddr) -> Result<()> {
        match address.ip().is_loopback() || self.allow_plaintext || self.is_encrypted() {
            true => Ok(()),
            false => Err(Error::Plaintext { address }),
        }
    }

    /// Where the others reach a worker that listens on an address.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> Result<SocketAddr> {
        let mut address = self.advertise.unwrap_or(bound);
        if address.port() == 0 {
            address.set_port(bound.port());
        }
        if address.ip().is_unspecified() {
            let what = format!(
                "nobody can connect to {address}; say in `advertise` where this worker is reached"
            );
            return Err(Error::BadOptions { what: what.into() });
        }
        Ok(address)
    }

    #[cfg(feature = "tls")]
    fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn is_encrypted(&self) -> bool {
        false
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            advertise: None,
            allow_plaintext: false,
            timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(10),
            max_message: 4 << 20,
            chunk: 1 << 20,
            worker_threads: 2,
            handler_threads: 16,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}
