//! A group of ranks and its blocking calls.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use dtensor_dtype::{Element, ReduceOp};

use crate::{
    CommError, Erased,
    call::{Call, Tag},
    operation::{Operation, Side},
    recorder::{Recorder, Ticket},
    transport::{Buffers, Transport},
};

/// Some ranks of a world, in an order, that make calls together. One rank's handle; cloning is
/// cheap, and clones are the same group.
///
/// Every member must make the same collective calls in the same order; what "the same" covers is
/// compared on every call (see the [crate documentation](crate#fingerprints)). Different groups are
/// independent of each other. Ranks in arguments (`root`, `to`, `from`) and the order of pieces are
/// *group* ranks, `0..size()`.
///
/// Buffers are ordinary slices of any [`Element`]; [`erased`](Group::erased) has the same calls for
/// memory whose dtype is known at run time only, and the `start_` forms of all calls return
/// [`Pending`](crate::Pending) handles.
///
/// ```
/// use dtensor_comm::{CommError, ReduceOp, Runner};
///
/// let sums = Runner::threads(3).run(|world| {
///     let mut x = [world.rank() as f32, 1.0];
///     world.group().tag("loss").all_reduce(&mut x, ReduceOp::Sum)?;
///     Ok::<_, CommError>(x)
/// })?;
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// # Ok::<(), dtensor_comm::RunError>(())
/// ```
#[derive(Clone)]
pub struct Group {
    pub(crate) shared: Arc<GroupShared>,
    tag: Tag,
}

/// What all clones of one rank's handle share.
pub(crate) struct GroupShared {
    members: Members,
    /// This rank within the group.
    rank: usize,
    transport: Arc<dyn Transport>,
    recorder: Arc<Recorder>,
    /// The next collective call's position; `messages` likewise for send and recv.
    next: AtomicU64,
    messages: AtomicU64,
}

/// The world ranks of a group. The group of all ranks is not written out until somebody asks, so
/// that a world of 262,144 ranks costs as little as one of 4.
struct Members {
    size: usize,
    /// `None`: all ranks of the world.
    listed: Option<Arc<[usize]>>,
    all: OnceLock<Arc<[usize]>>,
}

impl Group {
    pub(crate) fn new(
        listed: Option<Arc<[usize]>>,
        size: usize,
        rank: usize,
        transport: Arc<dyn Transport>,
        recorder: Arc<Recorder>,
    ) -> Group {
        let members = Members { size, listed, all: OnceLock::new() };
        let (next, messages) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = GroupShared { members, rank, transport, recorder, next, messages };
        Group { shared: Arc::new(shared), tag: Tag::NONE }
    }

    /// This rank's position in the group.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> usize {
        self.shared.members.size
    }

    /// The world ranks of the members, in group-rank order.
    pub fn world_ranks(&self) -> &[usize] {
        let members = &self.shared.members;
        match &members.listed {
            Some(ranks) => ranks,
            None => members.all.get_or_init(|| (0..members.size).collect()),
        }
    }

    /// The same group; calls made through the new handle carry `tag`, which all ranks must agree on
    /// like on everything else. The name of the operation that communicates is a good one: it tells
    /// two calls of the same shape apart when ranks make them in a different order.
    ///
    /// Messages are matched by tag: a `recv` takes the next message that was sent with its tag.
    #[must_use]
    pub fn tag(&self, tag: &'static str) -> Group {
        Group { shared: Arc::clone(&self.shared), tag: Tag::new(tag) }
    }

    /// The same group and tag; calls made through the new handle are about something of which the
    /// ranks know this digest, and must agree on it as well. For what a call depends on and does not
    /// show, like the order of what it carries: two such calls may have the same shape on every rank.
    /// The digest must be the same in every process, which that of a `RandomState` is not.
    ///
    /// Nothing more is sent for it. Messages are not matched by it.
    ///
    /// ```
    /// use dtensor_comm::{CommError, Runner};
    ///
    /// let result = Runner::threads(2).run(|world| {
    ///     world.group().tag("columns").about(world.rank() as u64).barrier()
    /// });
    /// assert!(result.unwrap_err().to_string().contains("about 0000000000000001"));
    /// ```
    #[must_use]
    pub fn about(&self, digest: u64) -> Group {
        Group { shared: Arc::clone(&self.shared), tag: self.tag.about(digest) }
    }

    /// The same calls for memory whose dtype is known at run time only.
    pub fn erased(&self) -> Erased<'_> {
        Erased::new(self)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.erased().barrier()
    }

    /// The root's `buf` goes to everybody: `[A] [.] [.] => [A] [A] [A]`.
    pub fn broadcast<T: Element>(&self, buf: &mut [T], root: usize) -> Result<(), CommError> {
        self.erased().broadcast(buf.into(), root)
    }

    /// The root's pieces go to one rank each: `[A B C] [.] [.] => [A] [B] [C]`. `send` is used on
    /// the root only, where it is `size()` times as long as `recv`.
    pub fn scatter<T: Element>(
        &self,
        send: Option<&[T]>,
        recv: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        self.erased().scatter(send.map(Into::into), recv.into(), root)
    }

    /// [`scatter`](Group::scatter) with a count per rank, the same list on every rank.
    pub fn scatter_v<T: Element>(
        &self,
        send: Option<&[T]>,
        counts: &[usize],
        recv: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        self.erased().scatter_v(send.map(Into::into), counts, recv.into(), root)
    }

    /// One piece from each rank goes to the root: `[A] [B] [C] => [A B C] [.] [.]`. `recv` is used
    /// on the root only, where it is `size()` times as long as `send`.
    pub fn gather<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        root: usize,
    ) -> Result<(), CommError> {
        self.erased().gather(send.into(), recv.map(Into::into), root)
    }

    /// [`gather`](Group::gather) with a count per rank, the same list on every rank.
    pub fn gather_v<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), CommError> {
        self.erased().gather_v(send.into(), recv.map(Into::into), counts, root)
    }

    /// One piece from each rank goes to everybody: `[A] [B] [C] => [A B C] [A B C] [A B C]`. `recv`
    /// is `size()` times as long as `send`.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        self.erased().all_gather(send.into(), recv.into())
    }

    /// [`all_gather`](Group::all_gather) with a count per rank, the same list on every rank.
    pub fn all_gather_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
    ) -> Result<(), CommError> {
        self.erased().all_gather_v(send.into(), recv.into(), counts)
    }

    /// The values of all ranks are reduced, and each rank keeps its piece:
    /// `[A B C] + [D E F] + [G H I] => [A+D+G] [B+E+H] [C+F+I]`. `send` is `size()` times as long as
    /// `recv`. In the canonical order (see [`ReduceOp`]).
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.erased().reduce_scatter(send.into(), recv.into(), op)
    }

    /// [`reduce_scatter`](Group::reduce_scatter) with a count per rank, the same list on every rank.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.erased().reduce_scatter_v(send.into(), recv.into(), counts, op)
    }

    /// The values of all ranks are reduced, and everybody keeps the result:
    /// `[A] + [B] + [C] => [A+B+C] [A+B+C] [A+B+C]`. In the canonical order (see [`ReduceOp`]), so
    /// that all ranks have the same bits.
    pub fn all_reduce<T: Element>(&self, buf: &mut [T], op: ReduceOp) -> Result<(), CommError> {
        self.erased().all_reduce(buf.into(), op)
    }

    /// One piece from each rank to each rank: `[A B] [C D] => [A C] [B D]`. Both buffers are
    /// equally long, a multiple of `size()`.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        self.erased().all_to_all(send.into(), recv.into())
    }

    /// [`all_to_all`](Group::all_to_all) with counts: `send_counts[j]` elements go to rank `j`,
    /// `recv_counts[j]` come from it. What one rank sends and the other expects is compared.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        self.erased().all_to_all_v(send.into(), send_counts, recv.into(), recv_counts)
    }

    /// Sends `buf` to the group rank `to`, and returns when it has been received there. Two ranks
    /// that first send to each other wait for each other: let one receive first, or use
    /// [`start_send`](Group::start_send).
    pub fn send<T: Element>(&self, buf: &[T], to: usize) -> Result<(), CommError> {
        self.erased().send(buf.into(), to)
    }

    /// Receives into `buf` the next message with this handle's tag that the group rank `from` sends
    /// to this rank. Its length and dtype must be those of `buf`.
    pub fn recv<T: Element>(&self, buf: &mut [T], from: usize) -> Result<(), CommError> {
        self.erased().recv(buf.into(), from)
    }

    /// Checks, numbers and records a call; the transport has not seen it yet.
    pub(crate) fn prepare<'a>(
        &self,
        operation: Operation<'a>,
        send: Option<Side>,
        recv: Option<Side>,
    ) -> Result<(Call<'a>, Buffers, Ticket), CommError> {
        let shared = &*self.shared;
        let (mut call, buffers) =
            operation.check(shared.rank, shared.members.size, self.tag, send, recv)?;
        let counter = if call.kind.is_message() { &shared.messages } else { &shared.next };
        // Relaxed: only this rank counts here, and its program order is the order that matters.
        call.sequence = counter.fetch_add(1, Ordering::Relaxed);
        let ticket = shared.recorder.begin(&call, &shared.members.listed, &buffers);
        Ok((call, buffers, ticket))
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.shared.transport
    }

    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.shared.recorder
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("world_ranks", &self.shared.members.listed)
            .field("tag", &self.tag.text)
            .finish_non_exhaustive()
    }
}
