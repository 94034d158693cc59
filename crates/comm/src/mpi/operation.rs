//! One call of this rank, from its first message to its last.

use std::{mem, sync::Arc};

use dtensor_dtype::DType;

use super::{
    check::{CHECK_BYTES, Check},
    engine::Engine,
    group::GroupInfo,
    owned_call::OwnedCall,
    plan::{Plan, Post},
    stream::{Key, Way},
    transfer::{Lane, Transfers, Trouble},
};
use crate::{
    CommError,
    call::{Call, CallKind, Counts, Fingerprint},
    transport::Buffers,
};

/// The state of a call. What it finds wrong, and how it says so, is in [`blame`](super::blame).
/// Dropping it while MPI still holds memory of its own leaks that memory.
pub(super) struct Operation {
    pub(super) group: Arc<GroupInfo>,
    pub(super) call: OwnedCall,
    /// The messages of the check stage; kept after it, for tables. `None` without checks.
    pub(super) check: Option<Check>,
    /// The transfers of the current round.
    pub(super) transfers: Transfers,
    /// How many ranks had left when this call last looked.
    pub(super) departures_seen: usize,
    /// Where the data moves.
    lane: Lane,
    pub(super) stage: Stage,
    plan: Plan,
    /// What went wrong when the call began. Reported by the first [`progress`](Operation::progress):
    /// messages may be on their way already, and their buffers have to be withdrawn in order.
    trouble: Option<Trouble>,
}

/// What the current round is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Check,
    Data,
}

impl Operation {
    /// Begins a call: posts its first round.
    ///
    /// # Safety
    /// As [`Transport::start`](crate::transport::Transport::start). The buffers are accessed while
    /// [`progress`](Operation::progress) runs and while MPI makes progress, until it has returned
    /// `Ok(true)`; after an error until [`give_up`](Operation::give_up) has returned true. `lane` is
    /// that of the call, and free.
    pub(super) unsafe fn begin(
        engine: &mut Engine,
        group: &Arc<GroupInfo>,
        call: &Call<'_>,
        lane: Lane,
        buffers: &Buffers,
    ) -> Operation {
        let mut operation = Operation {
            group: Arc::clone(group),
            call: OwnedCall::new(call),
            check: None,
            transfers: Transfers::default(),
            departures_seen: 0,
            lane,
            stage: Stage::Data,
            plan: Plan::new(call, buffers, group, engine.native_reductions),
            trouble: None,
        };
        let alone = group.size() == 1 && !call.kind.is_message();
        // Not every byte is a bool, so bools may never come from a rank that sends something else.
        let checks = engine.checks || call.dtype == DType::Bool;
        let begun = if checks && !alone {
            operation.begin_check(engine).map_err(Trouble::from)
        } else {
            // SAFETY: The caller's promise.
            unsafe { operation.advance(engine) }.map(|_| ())
        };
        operation.trouble = begun.err();
        operation
    }

    /// Brings the call forward without waiting; true when it is over. An error is one that this
    /// call has found: the caller makes it known.
    pub(super) fn progress(&mut self, engine: &mut Engine) -> Result<bool, CommError> {
        if let Some(trouble) = self.trouble.take() {
            return Err(self.explain(trouble));
        }
        loop {
            let round_is_over = match self.transfers.progress(engine, self.current_lane(engine)) {
                Ok(over) => over,
                Err(trouble) => return Err(self.explain(trouble)),
            };
            // SAFETY: The promise that `begin` was given.
            unsafe { self.plan.meanwhile() };
            if !round_is_over {
                return self.notice_departures(engine).map(|()| false);
            }
            if self.stage == Stage::Check {
                if self.check.as_ref().is_some_and(|check| !check.agree()) {
                    return Err(CommError::Mismatch { table: self.table(engine) });
                }
                self.stage = Stage::Data;
            }
            // SAFETY: The promise that `begin` was given.
            match unsafe { self.advance(engine) } {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(trouble) => return Err(self.explain(trouble)),
            }
        }
    }

    /// Takes no more messages; true when nothing is being written to the buffers any more.
    pub(super) fn give_up(&mut self, engine: &Engine) -> bool {
        self.transfers.give_up(|rank| engine.roster.is_gone(rank))
    }

    /// What [`give_up`](Operation::give_up) returns, without calling MPI.
    pub(super) fn is_quiet(&self, engine: &Engine) -> bool {
        self.transfers.is_quiet(|rank| engine.roster.is_gone(rank))
    }

    /// Whether MPI still holds any memory of this call, the user's or its own.
    pub(super) fn is_busy(&self) -> bool {
        self.transfers.is_busy()
    }

    /// Whether a call that goes along `lane` would have the tags of this one.
    pub(super) fn is_in_the_way_of(&self, lane: Lane, window: u64) -> bool {
        self.lane.sends == lane.sends && self.lane.position % window == lane.position % window
    }

    /// The position of this call in its stream, and the stream.
    pub(super) fn place(&self) -> (Key, u64) {
        let key = match self.message_peer() {
            Some(_) if self.call.borrow().kind == CallKind::Recv => self.lane.receives,
            _ => self.lane.sends,
        };
        (key, self.lane.position)
    }

    /// The world rank of the other side of a message.
    pub(super) fn message_peer(&self) -> Option<usize> {
        let call = self.call.borrow();
        call.root.filter(|_| call.kind.is_message()).map(|peer| self.group.members[peer])
    }

    /// The world ranks that this call involves besides this one.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> {
        let message_peer = self.message_peer();
        let others = self.group.members.iter().enumerate();
        let others = others.filter(|&(member, _)| member != self.group.rank).map(|(_, &rank)| rank);
        others.filter(move |_| message_peer.is_none()).chain(message_peer)
    }

    /// Tells all peers what this rank is doing, and expects the same from them.
    fn begin_check(&mut self, engine: &mut Engine) -> Result<(), CommError> {
        let peers: Vec<usize> = self.peers().collect();
        let call = self.call.borrow();
        let fingerprint = match call.kind.is_message() {
            false => call.fingerprint(self.group.rank),
            true => message_fingerprint(&call),
        };
        let mut check = Check::new(fingerprint, &call.to_string(), peers.len());
        let lane = Lane { comm: engine.check_comm, ..self.lane };
        for (slot, &peer) in peers.iter().enumerate() {
            // SAFETY: Both are memory of `check`, which is kept until they are complete: `self` owns
            // it, and its `drop` leaks it otherwise.
            unsafe {
                self.transfers.expect(peer, check.incoming(slot), CHECK_BYTES);
                self.transfers.send(engine, lane, peer, check.outgoing(), CHECK_BYTES, false)
            }?;
        }
        self.stage = Stage::Check;
        self.check = Some(check);
        Ok(())
    }

    fn current_lane(&self, engine: &Engine) -> Lane {
        match self.stage {
            Stage::Check => Lane { comm: engine.check_comm, ..self.lane },
            Stage::Data => self.lane,
        }
    }

    /// Posts the next round of data.
    ///
    /// # Safety
    /// The promise that `begin` was given.
    unsafe fn advance(&mut self, engine: &mut Engine) -> Result<bool, Trouble> {
        let mut post = Post {
            engine,
            transfers: &mut self.transfers,
            lane: self.lane,
            group: &self.group,
            checked: self.check.is_some(),
        };
        // SAFETY: Handed on.
        unsafe { self.plan.advance(&mut post) }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.is_busy() {
            mem::forget(self.check.take());
            self.plan.leak();
        }
    }
}

/// Where the messages of a call go. Counts the messages of their stream.
pub(super) fn lane(engine: &mut Engine, group: &GroupInfo, call: &Call<'_>) -> Lane {
    let comm = engine.data_comm;
    if !call.kind.is_message() {
        return Lane { comm, sends: group.key, receives: group.key, position: call.sequence };
    }
    let (own, peer) = (group.members[group.rank], group.members[call.root.unwrap_or(0)]);
    let is_sender = call.kind == CallKind::Send;
    let (from, to) = if is_sender { (own, peer) } else { (peer, own) };
    let there = Key::message(group.key, call.tag, from, to, Way::There);
    let back = Key::message(group.key, call.tag, from, to, Way::Back);
    let position = engine.streams.next_position(there, is_sender);
    if is_sender {
        Lane { comm, sends: there, receives: back, position }
    } else {
        Lane { comm, sends: back, receives: there, position }
    }
}

/// What the two sides of a message must agree on.
fn message_fingerprint(call: &Call<'_>) -> Fingerprint {
    let elements = match call.counts {
        Counts::Even(n) => n as u64,
        _ => 0,
    };
    Fingerprint { call: elements << 8 | call.dtype as u64, sends: 0, receives: 0 }
}
