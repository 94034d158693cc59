//! The seam between the calls of a [`Group`](crate::Group) and the worlds that carry them out.
//!
//! Above this trait: argument checks, sequence numbers, the flight recorder, types and ownership
//! of buffers. Below it: moving bytes, finding out that ranks disagree or are gone, deadlines.
//! A world implements [`Transport`] once; one value is one rank's end of one group.

use std::sync::Arc;

use crate::{CommError, call::Call};

/// One rank's end of one group.
///
/// Rules for every implementation:
///
/// 1. *No call hangs.* Every wait ends with the deadline of the world at the latest, and at once
///    when a rank that is waited for has left or failed.
/// 2. *All or nothing.* If the ranks disagree (see [`Call::fingerprint`]) or one is missing, every
///    member that makes or has made the call gets an error, and no receive buffer holds data that
///    a caller could mistake for a result.
/// 3. *First cause.* The first failure, whatever its group, ends the world: it is kept, calls in
///    flight anywhere end with it, and later calls fail at once with [`CommError::GroupDead`]
///    around it.
/// 4. *Canonical reductions.* Reductions give the bits of [`crate::reduce`].
/// 5. Collective calls of one group are matched by `call.sequence`, and any number of them may be
///    in flight at once. Ranks may wait for them in different orders. The calling thread may
///    change between calls, and several threads may call at once.
/// 6. A message is matched with the other side in the order of the calls, for each (sender,
///    receiver, tag) of the group. `send` completes only when the receiver has taken the message
///    (as `MPI_Issend`, not as `MPI_Send`): a program that works only because small messages are
///    buffered fails alike in every world. Dtype or length that differ are a mismatch on both sides.
pub(crate) trait Transport: Send + Sync {
    /// Carries out `call` and returns when this rank's buffers are its own again.
    ///
    /// # Safety
    /// `buffers` are as [`Buffers`] describes for this `call` and this group, valid and not
    /// accessed by anybody else until this function returns, with or without an error.
    unsafe fn execute(&self, call: &Call<'_>, buffers: &Buffers) -> Result<(), CommError>;

    /// Begins `call` without waiting for the peers. What `call` borrows is copied if it is needed
    /// later.
    ///
    /// # Safety
    /// `buffers` are as [`Buffers`] describes for this `call` and this group, valid and not
    /// accessed by anybody else until the handle has reported the end (`test` gave `Ok(true)`,
    /// or `wait` returned), or until `test` or `wait` failed with `buffers_in_use` false. If the
    /// handle is leaked that is forever.
    unsafe fn start(
        &self,
        call: &Call<'_>,
        buffers: &Buffers,
    ) -> Result<Box<dyn InFlight>, CommError>;

    /// This rank's end of the group of `members` (world ranks, in group-rank order, without
    /// duplicates, this rank among them). Called once per distinct list: the caller caches.
    ///
    /// Must not communicate: a world that needs an agreement of the members makes it within the
    /// first collective call. (Messages may come before that, and involve two members only.)
    fn subgroup(&self, members: &Arc<[usize]>) -> Result<Arc<dyn Transport>, CommError>;

    /// Says that this rank's part of the program is over: `Ok` if it returned, else why it failed
    /// (a [`CommError::RankFailed`] that names this rank). The others learn it at once if they
    /// wait, otherwise at their next call that needs this rank. Called once per rank, by the
    /// runner, on the transport of the whole world; later calls of this rank are errors.
    ///
    /// Returns the failure that ended the world and the world rank that found it, if there was
    /// one: the first cause, which may be older than `outcome` and from another rank.
    fn leave(&self, outcome: Result<(), CommError>) -> Option<FirstCause>;

    /// The failure that ended the world so far, if any.
    fn first_cause(&self) -> Option<FirstCause>;
}

/// A pending call of one rank. Dropping it without waiting abandons it: the caller
/// ([`Pending`](crate::Pending)) waits first.
pub(crate) trait InFlight: Send {
    /// Makes what progress is possible without waiting; `Ok(true)` when the call is over. After an
    /// `Ok(true)` or an error it is not called again.
    fn test(&mut self) -> Result<bool, CommError>;

    /// Waits for the end. Not called after an end was reported.
    fn wait(&mut self) -> Result<(), CommError>;

    /// Gives up without waiting for anybody, because the thread is panicking. What is still in use
    /// then, [`buffers_in_use`](InFlight::buffers_in_use) says, and the caller leaks it.
    fn abandon(&mut self);

    /// After an error or [`abandon`](InFlight::abandon): whether the world may still touch the
    /// buffers. They are leaked then. Before: true.
    fn buffers_in_use(&self) -> bool;
}

/// The memory of a call, in bytes. What is there depends on the call, on the group rank `r` and
/// on the group size `g` (`n` = `Counts::Even`, `c` = `Counts::Each`, lengths in elements):
///
/// | call | send | recv |
/// |---|---|---|
/// | `barrier` | - | - |
/// | `broadcast` | - | `n`, in place: read on the root, written elsewhere |
/// | `scatter` / `_v` | root: `g * n` / `sum(c)` | `n` / `c[r]` |
/// | `gather` / `_v` | `n` / `c[r]` | root: `g * n` / `sum(c)` |
/// | `all_gather` / `_v` | `n` / `c[r]` | `g * n` / `sum(c)` |
/// | `reduce_scatter` / `_v` | `g * n` / `sum(c)` | `n` / `c[r]` |
/// | `all_reduce` | - | `n`, in place |
/// | `all_to_all` / `_v` | `g * n` / `sum(send)` | `g * n` / `sum(recv)` |
/// | `send` | `n` | - |
/// | `recv` | - | `n` |
///
/// Pieces lie in group-rank order without gaps. Pointers are aligned for the dtype; what is not
/// there has length 0, and a pointer of length 0 may be dangling. `send` and `recv` of one call do
/// not overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) send: *const u8,
    pub(crate) send_bytes: usize,
    pub(crate) recv: *mut u8,
    pub(crate) recv_bytes: usize,
}

// SAFETY: The pointers are only dereferenced by code that has its own reason why they are valid
// and unshared (the contracts of `execute` and `start`); moving the numbers between threads is
// harmless.
unsafe impl Send for Buffers {}
// SAFETY: As above.
unsafe impl Sync for Buffers {}

/// What a world gives to one rank at the beginning of a run.
pub(crate) struct Connection {
    /// This rank's end of the group of all ranks.
    pub(crate) transport: Arc<dyn Transport>,
    /// This rank.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) size: usize,
}

/// Why a world ended, and who found it out.
#[derive(Clone, Debug)]
pub(crate) struct FirstCause {
    /// A world rank.
    pub(crate) rank: usize,
    pub(crate) error: CommError,
}

/// What a [`Runner`](crate::Runner) asks of a world.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "mpi"), allow(dead_code))] // Only MPI has all of these choices.
pub(crate) struct Settings {
    /// Longest time that one wait may take.
    pub(crate) deadline: std::time::Duration,
    /// Whether calls are compared before data moves. Threads always do.
    pub(crate) checks: bool,
    /// Whether MPI may reduce in its own order.
    pub(crate) native_reductions: bool,
    /// Longest message, in bytes, that is handed to MPI in one piece.
    pub(crate) max_message_bytes: usize,
}
