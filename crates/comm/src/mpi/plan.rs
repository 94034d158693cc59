//! What a call does, as rounds: transfers that run at the same time, then local work, then the next
//! round.
//!
//! Everything is built on messages between two ranks, none of MPI's collectives is used (but for
//! [`native`](super::native) reductions). That gives one mechanism for blocking and pending calls, for deadlines,
//! for messages beyond 2 GiB and for uneven counts, fixes the order of reductions, and is no slower:
//! Open MPI's blocking collectives cannot be given up, and its non-blocking ones take twice as long
//! for short messages.
//!
//! | call | rounds | bytes that each rank receives (P ranks, S in all) |
//! |---|---|---|
//! | all_gather, all_to_all, gather, scatter | 1 | S (P - 1) / P |
//! | barrier | log2 P | 0 |
//! | broadcast, short or P <= 2 | 1 to 2, tree | S |
//! | broadcast, long | 2, scatter and all_gather | S |
//! | reduce_scatter | 1 per segment | S (P - 1) / P |
//! | all_reduce, short | 1 | S (P - 1) |
//! | all_reduce, long | 1 per segment + 1 | 2 S (P - 1) / P |

use dtensor_dtype::{DType, ReduceOp};

use super::{
    engine::Engine,
    exchange::Exchange,
    group::GroupInfo,
    native::Native,
    reduce::{AllReduce, ReduceScatter},
    transfer::{Lane, Transfers, Trouble},
    tree::{Barrier, Broadcast},
};
use crate::{
    CommError,
    call::{Call, CallKind, Counts},
    transport::Buffers,
};

/// The rest of a call.
pub(super) enum Plan {
    /// A group of one rank, or nothing left to do.
    Nothing,
    Message(Message),
    Exchange(Exchange),
    Barrier(Barrier),
    Broadcast(Broadcast),
    ReduceScatter(ReduceScatter),
    AllReduce(AllReduce),
    Native(Native),
}

/// Where a plan posts the transfers of its next round.
pub(super) struct Post<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) transfers: &'a mut Transfers,
    pub(super) lane: Lane,
    pub(super) group: &'a GroupInfo,
    /// Whether the ranks have compared their calls.
    pub(super) checked: bool,
}

impl Plan {
    /// The plan of a call.
    pub(super) fn new(call: &Call<'_>, buffers: &Buffers, group: &GroupInfo, native: bool) -> Plan {
        let (rank, size, element) = (group.rank, group.size(), call.dtype.size());
        let root = call.root.unwrap_or(0);
        if native && let Some(plan) = Native::new(call, buffers, group) {
            return Plan::Native(plan);
        }
        match call.kind {
            CallKind::Send | CallKind::Recv => {
                let sends = call.kind == CallKind::Send;
                Plan::Message(Message { buffers: *buffers, peer: root, sends })
            }
            CallKind::Barrier => Plan::Barrier(Barrier::new()),
            CallKind::Broadcast => Plan::Broadcast(Broadcast::new(buffers, rank, size, root)),
            CallKind::AllReduce => match reduction(call) {
                Some(reduction) if size > 1 => {
                    Plan::AllReduce(AllReduce::new(reduction, buffers, size))
                }
                _ => Plan::Nothing,
            },
            CallKind::ReduceScatter if size > 1 => match reduction(call) {
                Some(reduction) => {
                    Plan::ReduceScatter(ReduceScatter::new(reduction, &call.counts, buffers, size))
                }
                None => Plan::Nothing,
            },
            // The reduction of one value is that value.
            CallKind::ReduceScatter => {
                Plan::Exchange(Exchange::all_to_all(&Counts::Even(buffers.recv_bytes), 1, buffers))
            }
            CallKind::AllGather => {
                Plan::Exchange(Exchange::all_gather(&call.counts, element, buffers))
            }
            CallKind::AllToAll => {
                Plan::Exchange(Exchange::all_to_all(&call.counts, element, buffers))
            }
            CallKind::Gather => {
                Plan::Exchange(Exchange::gather(&call.counts, element, buffers, rank, root))
            }
            CallKind::Scatter => {
                Plan::Exchange(Exchange::scatter(&call.counts, element, buffers, rank, root))
            }
        }
    }

    /// Does the local work that the last round made possible and posts the next one; false when
    /// the call is over. All transfers posted before are complete.
    ///
    /// # Safety
    /// The buffers of the call are as [`Transport::start`](crate::transport::Transport::start) asks.
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        // SAFETY: Handed on.
        unsafe {
            match self {
                Plan::Nothing => Ok(false),
                Plan::Message(plan) => {
                    plan.post(post)?;
                    *self = Plan::Nothing;
                    Ok(true)
                }
                Plan::Exchange(plan) => plan.advance(post),
                Plan::Barrier(plan) => plan.advance(post),
                Plan::Broadcast(plan) => plan.advance(post),
                Plan::ReduceScatter(plan) => plan.advance(post),
                Plan::AllReduce(plan) => plan.advance(post),
                Plan::Native(plan) => plan.advance(post),
            }
        }
    }

    /// Does local work that need not wait for the messages of the current round.
    ///
    /// # Safety
    /// As [`advance`](Plan::advance).
    pub(super) unsafe fn meanwhile(&mut self) {
        if let Plan::Exchange(plan) = self {
            // SAFETY: Handed on.
            unsafe { plan.meanwhile() };
        }
    }

    /// Leaks the plan's own memory, because MPI may still access it.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::replace(self, Plan::Nothing));
    }
}

/// One side of a message between two ranks.
pub(super) struct Message {
    buffers: Buffers,
    /// A group rank.
    peer: usize,
    sends: bool,
}

impl Message {
    /// # Safety
    /// As [`Plan::advance`].
    unsafe fn post(&self, post: &mut Post<'_>) -> Result<(), Trouble> {
        let peer = post.group.members[self.peer];
        let Buffers { send, send_bytes, recv, recv_bytes } = self.buffers;
        if self.sends {
            // A message completes when the receiver has taken it. After a check stage it is there
            // already, and the cheaper mode does.
            let synchronous = !post.checked;
            // SAFETY: The caller's promise.
            unsafe {
                post.transfers.send(post.engine, post.lane, peer, send, send_bytes, synchronous)
            }?;
        } else {
            // SAFETY: The caller's promise.
            unsafe { post.transfers.expect(peer, recv, recv_bytes) };
        }
        Ok(())
    }
}

/// What to reduce, and how.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

fn reduction(call: &Call<'_>) -> Option<Reduction> {
    call.op.map(|op| Reduction { dtype: call.dtype, op })
}

impl Post<'_> {
    /// Sends to a group rank.
    ///
    /// # Safety
    /// As [`Transfers::send`].
    pub(super) unsafe fn send(
        &mut self,
        to: usize,
        bytes: *const u8,
        count: usize,
    ) -> Result<(), CommError> {
        let to = self.group.members[to];
        // SAFETY: Handed on.
        unsafe { self.transfers.send(self.engine, self.lane, to, bytes, count, false) }
    }

    /// Expects from a group rank.
    ///
    /// # Safety
    /// As [`Transfers::expect`].
    pub(super) unsafe fn expect(&mut self, from: usize, buffer: *mut u8, bytes: usize) {
        // SAFETY: Handed on.
        unsafe { self.transfers.expect(self.group.members[from], buffer, bytes) }
    }
}
