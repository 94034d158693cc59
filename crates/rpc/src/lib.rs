//! Calls between named workers, over gRPC, and references to objects that live elsewhere.
//!
//! Ranks of a world make collective calls, in which all take part. Sometimes one rank needs something of
//! another that does not expect it: a shard of a table, a counter, a state. For that every rank becomes a
//! *worker*, with a name, methods that others can call, and objects that others can have references to.
//!
//! ```
//! use std::sync::Arc;
//! use dtensor_comm::Runner;
//! use dtensor_rpc::{Bytes, Options, Reply, Share, init_rpc};
//!
//! fn main() -> Result<(), dtensor_comm::RunError> {
//!     Runner::threads(2).run(|world| {
//!         let agent = init_rpc(world, ["left", "right"][world.rank()], Options::default())?;
//!         agent.register("read", |context, request| {
//!             let numbers = context.object::<Vec<u8>>(serde_json::from_slice(&request)?)?;
//!             Ok(Reply::new("").with_body([Bytes::from(numbers.to_vec())]))
//!         })?;
//!
//!         // Each shares a list with the other.
//!         let other = 1 - world.rank();
//!         let owned = agent.own(Arc::new(vec![world.rank() as u8; 5]))?;
//!         let mine = serde_json::to_vec(&owned.share(&[other])?)?;
//!         let mut both = vec![0; 2 * mine.len()];
//!         world.group().all_gather(&mine, &mut both)?;
//!         let theirs: Share = serde_json::from_slice(&both[other * mine.len()..][..mine.len()])?;
//!         let reference = agent.adopt(theirs)?;
//!
//!         // The owner drops its list, which stays as long as the other has a reference.
//!         drop(owned);
//!         let mut numbers = [0; 5];
//!         let id = serde_json::to_vec(&reference.id())?;
//!         agent.open(reference.owner().id, "read", id, None)?.read_into(&mut numbers)?;
//!         assert_eq!(numbers, [other as u8; 5]);
//!         drop(reference);
//!         agent.shutdown()?;
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//!     })
//!     .map(drop)
//! }
//! ```
//!
//! # What there is
//!
//! - [`init_rpc`] makes workers of the ranks of a world, [`init_rpc_with_addresses`] of processes that know
//!   each other's addresses.
//! - [`Agent`] is a worker's end: [`call`](Agent::call) and [`open`](Agent::open),
//!   [`register`](Agent::register), [`own`](Agent::own) and [`adopt`](Agent::adopt),
//!   [`shutdown`](Agent::shutdown). Several agents may be in one process.
//! - [`Reply`] has a head, which is small, and a body, which may be large: it is sent in pieces, from where
//!   it is, and [read](Incoming::read_into) into memory that the caller has made for it.
//! - [`OwnerRef`] and [`UserRef`] are the two ends of a reference. The owner counts a fork before it is sent,
//!   and is told when it is dropped, again and again if need be; to be told twice is as to be told once.
//! - `TlsOptions` (feature `tls`): encrypted connections, also with certificates on both sides.
//!
//! # Who may call
//!
//! A worker listens on the loopback device unless told otherwise, and on another device only with TLS or by
//! explicit permission ([`Error::Plaintext`]). The workers of a run know its [`Secret`], 32 random bytes that
//! rank 0 gives the others over the world. Every request shows that its caller knows it, by a keyed hash that only
//! the worker that is called accepts, and every answer shows the same by one for this request. A request without
//! it is refused by its headers alone: not one byte of its body is read, let alone parsed; and so is an answer. So
//! whoever listens on the port of a worker that is gone learns nothing that would help it with the others, and what
//! it answers is [`Error::Lost`].
//!
//! A connection over which no such request has come is closed after 5 s, or earlier if there are 256 more of them
//! than workers. All workers of a run trust each other; sizes are bounded all the same. Without TLS, whoever can read and
//! change what goes over the network can do so with messages, and send a request again to whom it was meant for.
//!
//! # Nobody hangs
//!
//! Every wait has an end, from [`Options::timeout`] or from the call. A worker that is gone is
//! [`Error::Lost`], one that does not answer [`Error::TimedOut`], each with its name. Dropping a reference,
//! or an agent, waits for nothing.
//!
//! # Trade-offs
//!
//! - *gRPC without generated code.* Messages are bytes, and what they mean is for those who call each other.
//!   So there is no compiler of interfaces to install and no second form of every type; and no other language
//!   can call a worker without reading the page on the form (`wire`), which is a dozen lines.
//! - *Every agent has threads of its own*, two for messages and up to sixteen for handlers. Ranks block, and
//!   do not become async.
//! - *References are counted, not collected.* Two workers that have references to each other's objects, each
//!   kept by the other, keep them for ever. References are not passed on to third workers: the owner shares
//!   with each. An owner that cannot be reached is told again and again, and an owner that has lost a worker
//!   can [take back](Agent::reclaim) what that had.
//! - *A body that nobody reads* takes room in the connection that all calls between two workers share, until
//!   it is dropped.
//!
//! # How it works
//!
//! One tower service behind tonic's server looks at the headers, finds the method, and runs its handler on a
//! thread that may block. An answer is a stream: a first message with the head and the length of the body,
//! then the pieces. The caller's thread waits for them without a runtime, and copies each to its place. The
//! windows of HTTP/2 are so large that a reader who keeps up never waits for permission.

#![forbid(unsafe_code)]

mod accept;
mod agent;
mod block;
mod bootstrap;
mod client;
mod codec;
mod control;
mod error;
mod handler;
mod incoming;
mod leave;
mod options;
mod proof;
mod refs;
mod runtime;
mod secret;
mod service;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod wire;
mod worker;

pub use agent::Agent;
pub use bootstrap::{init_rpc, init_rpc_on, init_rpc_with_addresses};
pub use bytes::Bytes;
pub use error::{Error, Result};
pub use handler::{CallContext, Failure, Reply};
pub use incoming::Incoming;
pub use options::Options;
pub use refs::{Object, OwnerRef, RefId, Share, UserRef};
pub use secret::Secret;
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
pub use worker::WorkerInfo;
