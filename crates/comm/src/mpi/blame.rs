//! What a call finds wrong, and how it says so.

use std::sync::Arc;

use super::{
    engine::Engine,
    group::GroupInfo,
    operation::{Operation, Stage},
    transfer::Trouble,
};
use crate::{
    CommError,
    call::Call,
    table::{CallRow, CallTable, Did},
};

impl Operation {
    /// An error if a rank that this call needs has left without making it.
    pub(super) fn notice_departures(&mut self, engine: &Engine) -> Result<(), CommError> {
        let departures = engine.roster.departures();
        if departures == self.departures_seen {
            return Ok(());
        }
        self.departures_seen = departures;
        let (key, position) = self.place();
        match self.peers().find(|&rank| engine.roster.has_left_before(rank, key, position)) {
            Some(rank) => Err(CommError::RankLeft { rank, table: self.table(engine) }),
            None => Ok(()),
        }
    }

    /// The error of this call when the world has ended because of `first`.
    pub(super) fn because_of(&self, engine: &Engine, first: &CommError) -> CommError {
        match first {
            CommError::RankFailed { rank, cause, .. } => CommError::RankFailed {
                rank: *rank,
                cause: Arc::clone(cause),
                table: Some(self.table(engine)),
            },
            other if is_about(other, &self.group, &self.call.borrow()) => other.clone(),
            other => CommError::dead(self.call.borrow(), other),
        }
    }

    /// Turns trouble with a transfer into an error.
    pub(super) fn explain(&self, trouble: Trouble) -> CommError {
        match trouble {
            Trouble::Error(error) => error,
            Trouble::WrongLength { from, got, expected } => {
                let sent = format!("sent {got} bytes where {expected} are expected");
                let own = (self.own_rank(), Did::Call(self.own_text()));
                let rows = if from == self.own_rank() {
                    let text = format!("{}: {sent}, to itself", self.own_text());
                    vec![(from, Did::Call(text.into()))]
                } else {
                    vec![own, (from, Did::Call(format!("({sent})").into()))]
                };
                CommError::Mismatch { table: self.table_of(rows) }
            }
        }
    }

    /// Who is doing what in this call, as far as this rank knows. Without checks it knows nothing
    /// about a rank that it does not wait for, and leaves it out.
    pub(super) fn table(&self, engine: &Engine) -> Arc<CallTable> {
        let mut rows = vec![(self.own_rank(), Did::Call(self.own_text()))];
        for (slot, rank) in self.peers().enumerate() {
            match &self.check {
                Some(check) => rows.push(match check.text(slot) {
                    Some(text) if self.stage == Stage::Data && self.transfers.awaits(rank) => {
                        (rank, Did::Call(format!("{text}, but its data has not come").into()))
                    }
                    Some(text) => (rank, Did::Call(text.into())),
                    None => (rank, engine.absence(rank)),
                }),
                None if self.transfers.awaits(rank) => rows.push((rank, engine.absence(rank))),
                None => {}
            }
        }
        self.table_of(rows)
    }

    fn table_of(&self, rows: impl IntoIterator<Item = (usize, Did)>) -> Arc<CallTable> {
        let mut rows: Vec<_> = rows.into_iter().map(|(rank, did)| CallRow { rank, did }).collect();
        // In the order of the group, which is not always that of the world.
        let member = |rank| self.group.members.iter().position(|&member| member == rank);
        rows.sort_by_cached_key(|row| member(row.rank));
        let members = Arc::clone(&self.group.members);
        Arc::new(CallTable { sequence: self.sequence(), members, rows })
    }

    fn sequence(&self) -> Option<u64> {
        let call = self.call.borrow();
        (!call.kind.is_message()).then_some(call.sequence)
    }

    fn own_rank(&self) -> usize {
        self.group.members[self.group.rank]
    }

    fn own_text(&self) -> Arc<str> {
        self.call.borrow().to_string().into()
    }
}

/// Whether an error is about this very call.
pub(super) fn is_about(error: &CommError, group: &GroupInfo, call: &Call<'_>) -> bool {
    let table = match error {
        CommError::Mismatch { table }
        | CommError::RankLeft { table, .. }
        | CommError::Deadline { table, .. } => table,
        _ => return false,
    };
    if table.members != group.members {
        return false;
    }
    match table.sequence {
        Some(sequence) => !call.kind.is_message() && sequence == call.sequence,
        // Messages have no number that both sides know; the two ranks have to do.
        None => {
            let ends =
                [Some(group.rank), call.root].map(|rank| rank.map(|rank| group.members[rank]));
            call.kind.is_message() && table.rows.iter().all(|row| ends.contains(&Some(row.rank)))
        }
    }
}
