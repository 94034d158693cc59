//! The world whose ranks are threads of one process.
//!
//! Nothing is copied into messages: a rank publishes the addresses of its buffers, and when all
//! members have arrived the data goes straight from the owner's memory to where it belongs, each
//! byte written once. The protocol of one call is in [`round`], what is done with the data in
//! [`work`], how a rank waits in [`parking`], messages between two ranks in [`mail`], and who is
//! gone or has failed in [`state`].

mod copy;
mod end;
mod mail;
mod parking;
mod round;
mod state;
mod work;

use std::sync::Arc;

use crate::transport::{Connection, FirstCause, Settings};

use end::RankEnd;
pub(crate) use state::ThreadsState;

/// The state that `ranks` threads share.
pub(crate) fn new_world(settings: &Settings, ranks: usize) -> Arc<ThreadsState> {
    Arc::new(ThreadsState::new(ranks, settings.deadline))
}

/// The end of one rank.
pub(crate) fn connect(state: &Arc<ThreadsState>, rank: usize) -> Connection {
    let group = Arc::clone(state.whole());
    let size = group.members.len();
    let transport = Arc::new(RankEnd::new(Arc::clone(state), group, rank));
    Connection { transport, rank, size }
}

/// Why the world ended, if it did before its program.
pub(crate) fn first_cause(state: &ThreadsState) -> Option<FirstCause> {
    state.first_cause().cloned()
}
