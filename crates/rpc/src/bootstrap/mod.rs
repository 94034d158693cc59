//! How workers come to know each other.

mod addresses;
mod world;

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use tokio::runtime::Handle;
use tonic::transport::{Server, server::TcpIncoming};

use crate::{
    Agent, Error, Options, Result, Secret, WorkerInfo,
    accept::Accepting,
    client::Peers,
    handler::Handlers,
    refs::Objects,
    runtime::OwnRuntime,
    service::{RpcService, Served},
    together::Gathering,
    worker::Workers,
};

pub use addresses::init_rpc_with_addresses;
pub use world::{init_rpc, init_rpc_on};

/// Streams that one connection may have open; more wait at the caller.
const STREAMS: u32 = 1024;
/// Bytes of headers that a request may have.
const HEADERS: u32 = 16 << 10;
/// How much of a request may be on its way: requests are small.
const REQUEST_WINDOW: u32 = 1 << 20;

/// A port that is taken, on which nobody is served yet.
struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    fn new(bind: SocketAddr, options: &Options) -> Result<Bound> {
        let failed = |error: std::io::Error| Error::CannotBind {
            address: bind,
            why: error.to_string().into(),
        };
        let listener = TcpListener::bind(bind).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = options.advertised(listener.local_addr().map_err(failed)?)?;
        Ok(Bound { listener, address })
    }
}

/// A worker that answers, and does not know the others yet.
struct Serving {
    served: Arc<Served>,
    runtime: OwnRuntime,
    address: SocketAddr,
}

impl Serving {
    /// As one of so many workers.
    fn start(
        bound: Bound,
        (me, n_workers): (WorkerInfo, usize),
        secret: Secret,
        options: Options,
    ) -> Result<Serving> {
        let runtime = OwnRuntime::start(me.id, &options)?;
        let (server, patience) = (server(&options)?, options.timeout);
        let served = Arc::new(Served {
            me,
            n_workers,
            secret,
            options,
            handlers: Handlers::default(),
            objects: Arc::new(Objects::default()),
            met: Gathering::default(),
            leaving: Gathering::default(),
        });
        let Bound { listener, address } = bound;
        let incoming = {
            let _runtime = runtime.handle().enter();
            let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot_start)?;
            TcpIncoming::from(listener).with_nodelay(Some(true))
        };
        let incoming = Accepting::new(incoming, n_workers, patience);
        let service = RpcService(Arc::clone(&served));
        runtime.handle().spawn(async move {
            if let Err(error) = server.serve_with_incoming(service, incoming).await {
                tracing::error!(%error, "the worker no longer listens");
            }
        });
        Ok(Serving { served, runtime, address })
    }

    /// Now that the others are known.
    fn into_agent(self, workers: Workers) -> Agent {
        let Serving { served, runtime, address } = self;
        let peers = self::peers(&served, workers, runtime.handle());
        Agent::new(served, Arc::new(peers), runtime, address)
    }
}

fn peers(served: &Served, workers: Workers, runtime: &Handle) -> Peers {
    let (secret, options) = (served.secret.clone(), served.options.clone());
    Peers::new(served.me.id, workers, runtime.clone(), secret, options)
}

fn server(options: &Options) -> Result<Server> {
    let server = Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADERS)
        .initial_stream_window_size(REQUEST_WINDOW)
        .initial_connection_window_size(4 * REQUEST_WINDOW)
        .http2_keepalive_interval(Some(options.keepalive))
        .http2_keepalive_timeout(Some(options.keepalive));
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        return tls.for_server(server);
    }
    Ok(server)
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::CannotStart { why: error.to_string().into() }
}
