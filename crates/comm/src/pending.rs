//! Calls that have begun and not ended.

use std::{fmt, mem::MaybeUninit, sync::Arc, thread};

use crate::{
    CommError, Group, SendBuffer,
    operation::{Operation, Side},
    recorder::{Recorder, Ticket},
    transport::InFlight,
};

/// A call that has begun. It ends, and gives the buffer back, in [`wait`](Pending::wait).
///
/// A pending call owns its buffers. Borrowing them, as MPI bindings like to do, would be unsound: a
/// handle can be leaked in safe code ([`std::mem::forget`]), which ends the borrow while peers still
/// read and write the memory. A leaked `Pending` leaks its buffers with it, and the peers get their
/// data. To keep using what is sent, send an `Arc<[T]>`.
///
/// Many calls may be in flight, on one group and on several, and ranks may wait for them in any order.
/// (On threads the 65th of one group waits for the first.) There is no thread behind them: data moves while some rank waits or
/// [tests](Pending::test). On threads, whoever waits also does what is left to do of the others'
/// part, so one waiting rank is enough.
///
/// Dropping a handle that has not been waited for is a mistake, but not a dangerous one: the call is
/// completed first (within the deadline of the world) and the drop is reported through `tracing`.
///
/// ```
/// use dtensor_comm::{CommError, Runner};
///
/// let all = Runner::threads(2).run(|world| {
///     let piece = vec![world.rank() as i32; 2];
///     let pending = world.group().start_all_gather(piece, vec![0; 4])?;
///     // ... compute something meanwhile ...
///     pending.wait()
/// })?;
/// assert_eq!(all, [[0, 0, 1, 1], [0, 0, 1, 1]]);
/// # Ok::<(), dtensor_comm::RunError>(())
/// ```
#[must_use = "a call that is not waited for is completed, loudly, when its handle is dropped"]
pub struct Pending<B> {
    state: State,
    /// What `wait` gives back: initialised until it is taken. Not a plain `B`, so that moving the
    /// handle makes no claim about memory that peers are accessing.
    result: MaybeUninit<B>,
    /// Alive until the end of the call.
    kept: Option<Box<dyn Send>>,
    recorder: Arc<Recorder>,
    ticket: Ticket,
}

enum State {
    Running(Box<dyn InFlight>),
    Ready,
    /// It ended with an error, which `wait` returns even if `test` has returned it before. If the
    /// world may still touch the buffers they are `leaked`.
    Failed {
        error: CommError,
        leaked: bool,
    },
    /// `wait` has taken the result.
    Taken,
}

impl<B> Pending<B> {
    /// Waits for the end of the call and returns the buffer that it filled (the one it sent, for
    /// [`start_send`](Group::start_send)).
    pub fn wait(mut self) -> Result<B, CommError> {
        self.advance(|flight| flight.wait().map(|()| true))?;
        self.state = State::Taken;
        // SAFETY: `advance` returned `Ok(true)`, so the state was `Ready`: `result` is initialised
        // and the world is done with it. It is now `Taken`, so nobody reads or drops it again.
        Ok(unsafe { self.result.assume_init_read() })
    }

    /// Whether the call has ended, in which case [`wait`](Pending::wait) returns at once. Makes
    /// progress, so calling it now and then overlaps communication with computation.
    pub fn test(&mut self) -> Result<bool, CommError> {
        self.advance(|flight| flight.test())
    }

    /// Lets `step` bring a running call forward, and notes the end if it comes to it.
    fn advance(
        &mut self,
        step: impl FnOnce(&mut dyn InFlight) -> Result<bool, CommError>,
    ) -> Result<bool, CommError> {
        match &mut self.state {
            State::Running(flight) => {
                let result = step(&mut **flight);
                match &result {
                    Ok(true) => self.state = State::Ready,
                    Ok(false) => return result,
                    Err(error) => {
                        let leaked = flight.buffers_in_use();
                        self.state = State::Failed { error: error.clone(), leaked };
                    }
                }
                self.recorder.end(self.ticket, result.is_ok());
                result
            }
            State::Ready | State::Taken => Ok(true),
            State::Failed { error, .. } => Err(error.clone()),
        }
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        let leaked = match &mut self.state {
            State::Running(flight) if thread::panicking() => {
                // The panic is the news; waiting for peers that may never come would delay it.
                flight.abandon();
                self.recorder.end(self.ticket, false);
                flight.buffers_in_use()
            }
            State::Running(_) => {
                tracing::error!(
                    "a pending call was dropped without wait(); completing it now\n{}",
                    self.recorder
                );
                if let Err(error) = self.advance(|flight| flight.wait().map(|()| true)) {
                    tracing::error!(%error, "the dropped call failed");
                }
                matches!(self.state, State::Failed { leaked: true, .. })
            }
            State::Ready => false,
            State::Failed { leaked, .. } => *leaked,
            State::Taken => return,
        };
        if leaked {
            std::mem::forget(self.kept.take());
        } else {
            // SAFETY: Initialised, since only `Taken` is not; and the world is done with it.
            unsafe { self.result.assume_init_drop() };
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Running(_) => "running",
            State::Ready => "ready",
            State::Failed { .. } => "failed",
            State::Taken => "taken",
        };
        f.debug_struct("Pending").field("state", &state).finish_non_exhaustive()
    }
}

impl Group {
    /// Begins a call that sends `send` and receives into what `recv_side` finds in `result`.
    pub(crate) fn start<S: SendBuffer, B>(
        &self,
        operation: Operation<'_>,
        send: Option<S>,
        result: B,
        recv_side: impl FnOnce(&mut B) -> Option<Side>,
    ) -> Result<Pending<B>, CommError> {
        // Boxed before its pointer is taken, so that it is not moved afterwards.
        let kept = send.map(Box::new);
        let send_side = kept.as_ref().map(|send| send_side(&**send));
        let mut result = MaybeUninit::new(result);
        // SAFETY: Just initialised.
        let recv_side = recv_side(unsafe { result.assume_init_mut() });
        let kept = kept.map(|kept| kept as Box<dyn Send>);
        self.start_sides(operation, send_side, recv_side, result, kept)
    }

    /// Begins a call that sends what it gives back.
    pub(crate) fn start_sending<S: SendBuffer>(
        &self,
        operation: Operation<'_>,
        send: S,
    ) -> Result<Pending<S>, CommError> {
        let side = send_side(&send);
        self.start_sides(operation, Some(side), None, MaybeUninit::new(send), None)
    }

    fn start_sides<B>(
        &self,
        operation: Operation<'_>,
        send: Option<Side>,
        recv: Option<Side>,
        mut result: MaybeUninit<B>,
        kept: Option<Box<dyn Send>>,
    ) -> Result<Pending<B>, CommError> {
        let begun = self.prepare(operation, send, recv).and_then(|(call, buffers, ticket)| {
            // SAFETY: `prepare` checked the lengths against the call. The memory belongs to `kept`
            // and `result`, which by the contracts of the buffer traits keep it in place and to
            // themselves; the `Pending` keeps both until the end of the call, and if it is leaked,
            // so are they.
            match unsafe { self.transport().start(&call, &buffers) } {
                Ok(flight) => Ok((flight, ticket)),
                Err(error) => {
                    self.recorder().end(ticket, false);
                    Err(error)
                }
            }
        });
        match begun {
            Ok((flight, ticket)) => Ok(Pending {
                state: State::Running(flight),
                result,
                kept,
                recorder: Arc::clone(self.recorder()),
                ticket,
            }),
            Err(error) => {
                // SAFETY: Initialised by the callers, and not in use: nothing has begun.
                unsafe { result.assume_init_drop() };
                Err(error)
            }
        }
    }
}

fn send_side(send: &impl SendBuffer) -> Side {
    Side { ptr: send.send_ptr().cast_mut(), len: send.elements(), dtype: send.dtype() }
}
