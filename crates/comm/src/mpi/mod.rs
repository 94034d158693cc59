//! Ranks as processes, on the system's MPI.
//!
//! # Levels
//!
//! | | |
//! |---|---|
//! | the library | [`session`] begins and ends MPI, [`result`] turns its codes into errors |
//! | messages | [`transfer`] moves bytes between two ranks, [`stream`] gives messages their tags |
//! | calls | [`plan`] makes rounds of messages of a call ([`exchange`], [`tree`], [`reduce`], [`native`]), [`check`] compares the calls first, [`operation`] carries one out, [`blame`] words its errors |
//! | the world | [`engine`] holds it all behind one lock, [`ending`] ends it, [`roster`] knows the other ranks, [`flight`] the pending calls, [`wait`] waits, [`withdraw`] gives up, [`control`] tells ranks what happens outside of calls, [`liveness`] finds processes that died, [`transport`] is the door |
//!
//! # Three communicators
//!
//! Each run duplicates `MPI_COMM_WORLD` three times: for *data*, for *checks*, and for *control*. That
//! is all that is ever made; sub-groups are told apart by tags (see [`stream`]), so they cost nothing,
//! need no agreement and cannot hang.
//!
//! # Nothing waits without a deadline
//!
//! No blocking function of MPI is ever called (but `MPI_Finalize`, at exit, after all ranks have said
//! that they are done). Calls are state machines that are progressed by whoever waits, for any call: MPI
//! has no thread of its own, and a peer may be waiting for a pending call of ours that we are not waiting
//! for yet. [`wait`] tests, and now and then reads the control channel, the clock, and `/proc`.
//!
//! A rank learns that another one
//!
//! 1. *made a different call* in the check stage, before any data moves;
//! 2. *failed* (panicked, returned an error, found a mismatch, ran into its deadline) by a notice on the
//!    control channel;
//! 3. *left*, by its good-bye, which says how many calls it has begun on each group: a call beyond that
//!    will never be made;
//! 4. *died* by looking at its process, if it is on the same host;
//! 5. *is silent*, by the deadline.
//!
//! # Giving up
//!
//! MPI does not let go of a buffer because we want it to. When a call fails, a buffer is given back only
//! when nothing can access it any more:
//!
//! 1. *It was to be received into, and the message has not come.* Nothing was posted (see [`transfer`]),
//!    so MPI does not know the buffer.
//! 2. *It is being received into.* The sender has sent, so the transfer completes if both sides go on
//!    testing, which they do until all have acknowledged the end. If it does not, the sender is dead, which
//!    is fine if we know it (4. above). Else a pending call leaks its buffers, and a blocking call, which
//!    has only borrowed them, has no way out but `MPI_Abort`.
//! 3. *It is being sent and has been matched.* The transfer completes likewise. If the receiver does not
//!    answer, data may still leave the buffer while we call MPI, so this rank does not call it any more.
//! 4. *It is being sent and has not been matched.* Data leaves it only when a receiver matches the message.
//!    A failing rank tells all others that its world has ended, and each of them answers with the same
//!    notice when it has stopped taking messages; then nobody will. A rank that does not answer in time is
//!    dead, or has not come to its next call yet: there it reads the control channel before it takes
//!    anything.
//!
//! So after a failure every rank waits a moment ([`withdraw`]) for the others to acknowledge, inside of
//! the call that failed, and then makes no more use of MPI but, in cases other than 3., to say good-bye.
//!
//! # What it costs
//!
//! Two ranks on one host of two cores (Open MPI 4.1.4, shared memory), against the blocking function of
//! MPI, minimum of 7, in us. With 64 MiB the differences of all_gather and all_to_all are noise.
//!
//! | | all_gather | all_to_all | all_reduce | reduce_scatter |
//! |---|---|---|---|---|
//! | 64 MiB, MPI | 11,500 | 11,500 | 37,000 | 64,000 |
//! | 64 MiB, here, with or without checks | 11,500 | 11,500 | 16,500 | 12,000 |
//! | 8 bytes, MPI | 0.3 | 0.3 | 0.3 | 0.3 |
//! | 8 bytes, here, without checks | 1.0 | 1.0 | 1.2 | 1.1 |
//! | 8 bytes, here, with checks | 2.1 | 2.3 | 2.4 | 2.5 |
//!
//! A check is one message of 256 bytes to each member of the group.
//!
//! # The end of the process
//!
//! MPI is finalized when the process exits, if all ranks have ended the run together, in peace or not.
//! Otherwise it is not, because `MPI_Finalize` would wait for the missing ones: the launcher notices a
//! process that exits without it and ends the job, with an exit code that is not zero.

mod blame;
mod cause;
mod check;
mod control;
mod ending;
mod engine;
mod exchange;
mod flight;
mod group;
mod liveness;
mod meet;
mod native;
mod operation;
mod owned_call;
mod pieces;
mod plan;
mod reduce;
mod result;
mod roster;
mod scratch;
mod session;
mod stream;
mod transfer;
mod transport;
mod tree;
mod wait;
mod wire;
mod withdraw;

use std::sync::Arc;

use self::{
    engine::{Engine, Shared},
    group::GroupInfo,
    roster::Roster,
    session::End,
    stream::Key,
    transport::MpiGroup,
};
use crate::{
    CommError,
    transport::{Connection, Settings},
};

/// Begins a run of this process: initialises MPI the first time, meets all other processes, and
/// gives this one's end of the group of all ranks.
///
/// # Errors
/// If MPI cannot be used, or not all processes begin a run within the deadline.
pub(crate) fn connect(settings: &Settings) -> Result<Connection, CommError> {
    let library = session::begin()?;
    let (rank, size) = (library.rank, library.size);
    let met = meet::meet(&library, settings);
    let (comms, neighbours) = met.inspect_err(|_| session::end(End::Apart))?;
    let members: Arc<[usize]> = (0..size).collect();
    let group = Arc::new(GroupInfo::new(Key::WORLD, members, rank));
    let roster = Roster::new(rank, size, neighbours);
    let mut engine = Engine::new(settings, rank, library.tag_bound, comms, roster);
    engine.add_group(Arc::clone(&group));
    let shared = Arc::new(Shared::new(engine, settings));
    Ok(Connection { transport: Arc::new(MpiGroup { shared, group }), rank, size })
}
