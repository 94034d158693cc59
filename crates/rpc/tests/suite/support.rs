//! What several modules of tests need.

use std::{
    error::Error as StdError,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use dtensor_comm::{Runner, World};
use dtensor_rpc::{Agent, Options, Reply, init_rpc};

pub type Failure = Box<dyn StdError + Send + Sync>;

/// Runs a program on ranks that are threads.
#[track_caller]
pub fn spmd<T: Send>(n_ranks: usize, body: impl Fn(&World) -> Result<T, Failure> + Sync) -> Vec<T> {
    match Runner::threads(n_ranks).deadline(Duration::from_secs(60)).run(body) {
        Ok(results) => results,
        Err(error) => panic!("{error}"),
    }
}

/// The worker of a rank: `worker0`, `worker1`, ...
pub fn worker(world: &World, options: Options) -> Result<Agent, Failure> {
    Ok(init_rpc(world, &format!("worker{}", world.rank()), options)?)
}

/// Workers that give back what they are sent.
pub fn echoing(world: &World, options: Options) -> Result<Agent, Failure> {
    let agent = worker(world, options)?;
    agent.register("echo", |_, request| Ok(Reply::new(request)))?;
    world.group().barrier()?;
    Ok(agent)
}

/// Addresses on which nobody listens.
pub fn free_addresses(n: usize) -> Vec<SocketAddr> {
    // All at a time, or the same port could come twice.
    let listeners: Vec<TcpListener> =
        (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

/// Options under which nobody waits long for what does not come.
pub fn hasty() -> Options {
    Options { timeout: Duration::from_millis(400), ..Options::default() }
}
