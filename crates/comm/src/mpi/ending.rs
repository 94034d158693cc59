//! How a world ends: the first cause, and who has to know.

use std::sync::Arc;

use super::{control::Notice, engine::Engine, operation::Operation};
use crate::{
    CommError,
    call::Call,
    table::{CallTable, Did},
    transport::FirstCause,
};

/// Where this rank's end of the world is.
#[derive(Default)]
pub(super) struct Ending {
    first: Option<FirstCause>,
    /// Whether this rank has given the others the time to learn of it.
    settled: bool,
    /// Whether this rank makes no more use of MPI.
    over: bool,
}

impl Engine {
    /// Ends the world because of something that this rank has found, unless it has ended already:
    /// what is found then is a consequence.
    pub(super) fn fail(&mut self, error: CommError) {
        if self.ending.first.is_none() {
            let error = error.first_cause().clone();
            self.end_world(FirstCause { rank: self.rank, error });
        }
    }

    /// Ends the world, and says so to everybody, once. When several ranks have found something at the
    /// same time all of them settle for the same cause in the end.
    pub(super) fn end_world(&mut self, cause: FirstCause) {
        if self.is_over() {
            return;
        }
        match &mut self.ending.first {
            Some(first) => {
                if precedence(&cause) < precedence(first) {
                    *first = cause;
                }
            }
            None => {
                let notice = Notice::Ended { cause: cause.clone() }.to_bytes();
                self.ending.first = Some(cause);
                self.tell_all(&notice);
            }
        }
    }

    /// Says to everybody that this rank's part is over.
    pub(super) fn say_goodbye(&mut self, failed: bool) {
        let begun = self.begun().collect();
        self.tell_all(&Notice::Left { failed, begun }.to_bytes());
    }

    fn tell_all(&mut self, notice: &[u8]) {
        for to in self.roster.others() {
            // If even the control channel fails the others find out by their deadlines.
            if let Err(error) = self.control.send(to, notice.into()) {
                tracing::error!(%error, to, "could not notify a rank");
            }
        }
    }

    pub(super) fn first_cause(&self) -> Option<&FirstCause> {
        self.ending.first.as_ref()
    }

    /// The error of a call in flight when the world has ended, or this rank's part in it.
    pub(super) fn stop(&self, operation: &Operation) -> Option<CommError> {
        match self.first_cause() {
            Some(first) => Some(operation.because_of(self, &first.error)),
            None if self.is_over() => Some(self.has_left(operation.call.borrow())),
            None => None,
        }
    }

    /// The error of a call that is made after this rank has left.
    pub(super) fn has_left(&self, call: Call<'_>) -> CommError {
        let cause = "has left the run: it makes no more calls".into();
        CommError::dead(call, &CommError::RankFailed { rank: self.rank, cause, table: None })
    }

    /// Completes the first cause: whoever found out that a rank failed did so outside of any call, and
    /// now it is known who waited for it.
    pub(super) fn add_table(&mut self, waiting: Arc<CallTable>) {
        if let Some(CommError::RankFailed { table: table @ None, .. }) =
            self.ending.first.as_mut().map(|first| &mut first.error)
        {
            *table = Some(waiting);
        }
    }

    /// Why a rank is not in a call.
    pub(super) fn absence(&self, rank: usize) -> Did {
        let failed = self.first_cause().is_some_and(|first| {
            matches!(first.error, CommError::RankFailed { rank: failed, .. } if failed == rank)
        });
        if failed { Did::Failed } else { self.roster.absence(rank) }
    }

    pub(super) fn has_settled(&self) -> bool {
        self.ending.settled
    }

    pub(super) fn set_settled(&mut self) {
        self.ending.settled = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.ending.over
    }

    /// Ends this rank's part: no more calls, and no more MPI.
    pub(super) fn close(&mut self) {
        self.ending.over = true;
    }

    /// Gives the communicators back, when all others do so as well.
    pub(super) fn free(&mut self) {
        for freed in [self.data_comm.free(), self.check_comm.free(), self.control.free()] {
            if let Err(error) = freed {
                tracing::warn!(%error, "a communicator was not freed");
            }
        }
    }
}

/// Which of several causes found at the same time counts: the one that is least likely to follow
/// from another, then the one of the first rank.
fn precedence(cause: &FirstCause) -> (u8, usize) {
    let kind = match cause.error {
        CommError::RankFailed { .. } => 0,
        CommError::Mismatch { .. } => 1,
        CommError::RankLeft { .. } => 3,
        CommError::Deadline { .. } => 4,
        _ => 2,
    };
    (kind, cause.rank)
}
