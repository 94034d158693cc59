//! The flight recorder: the last calls of a rank, always on, printed when something fails.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use dtensor_dtype::{DType, ReduceOp};

use crate::{
    call::{Call, CallKind, Counts},
    table::write_ranks,
    transport::Buffers,
};

/// How many calls a rank remembers.
pub const RECORDER_CALLS: usize = 256;

/// The last [`RECORDER_CALLS`] calls of one rank.
///
/// Prints as a table, oldest call first, a call that has not ended as `still waiting`.
#[derive(Debug)]
pub struct Recorder {
    /// Taken twice per call, and by other threads only when somebody prints.
    ring: Mutex<Ring>,
    began: Instant,
}

/// One call in the [`Recorder`].
#[derive(Clone, Debug)]
pub struct Record {
    /// Position among all calls of this rank, from 0.
    pub number: u64,
    /// Position among the collective calls of the group, or among its messages.
    pub sequence: u64,
    /// What was called.
    pub kind: CallKind,
    /// Whether it was the form with a count per rank (`all_gather_v`, ...).
    pub uneven: bool,
    /// The dtype; `u8` for a barrier.
    pub dtype: DType,
    /// Bytes of the larger of the rank's two buffers.
    pub bytes: usize,
    /// Group rank of the root, or of the other side of a message.
    pub root: Option<usize>,
    /// The reduction.
    pub op: Option<ReduceOp>,
    /// The caller's tag, or an empty text.
    pub tag: &'static str,
    /// World ranks of the group; `None` for the group of all ranks.
    pub group: Option<Arc<[usize]>>,
    /// When it began, since the beginning of the world.
    pub start: Duration,
    /// When and how it ended.
    pub end: CallEnd,
}

/// How a call in the [`Recorder`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// It has not.
    StillWaiting,
    /// With its result, at this time since the beginning of the world.
    Done(Duration),
    /// With an error, at this time since the beginning of the world.
    Failed(Duration),
}

/// Names a call that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    records: VecDeque<Record>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder { ring: Mutex::default(), began: Instant::now() }
    }

    /// A copy of the records, oldest first.
    pub fn records(&self) -> Vec<Record> {
        self.ring().records.iter().cloned().collect()
    }

    /// How many calls there have been, those no longer remembered included.
    pub fn calls(&self) -> u64 {
        self.ring().next
    }

    pub(crate) fn begin(
        &self,
        call: &Call<'_>,
        group: &Option<Arc<[usize]>>,
        buffers: &Buffers,
    ) -> Ticket {
        let mut record = Record {
            number: 0,
            sequence: call.sequence,
            kind: call.kind,
            uneven: !matches!(call.counts, Counts::Even(_)),
            dtype: call.dtype,
            bytes: buffers.send_bytes.max(buffers.recv_bytes),
            root: call.root,
            op: call.op,
            tag: call.tag.text,
            group: group.clone(),
            start: self.began.elapsed(),
            end: CallEnd::StillWaiting,
        };
        let mut ring = self.ring();
        record.number = ring.next;
        ring.next += 1;
        if ring.records.len() == RECORDER_CALLS {
            ring.records.pop_front();
        }
        let ticket = Ticket(record.number);
        ring.records.push_back(record);
        ticket
    }

    pub(crate) fn end(&self, ticket: Ticket, ok: bool) {
        let now = self.began.elapsed();
        let mut ring = self.ring();
        let age = (ring.next - ticket.0) as usize;
        // A pending call may outlive its record.
        if let Some(at) = ring.records.len().checked_sub(age) {
            ring.records[at].end = if ok { CallEnd::Done(now) } else { CallEnd::Failed(now) };
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic cannot leave the ring half changed: nothing in the critical sections panics.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records, calls) = (self.records(), self.calls());
        if records.is_empty() {
            return f.write_str("  (no calls)");
        }
        write!(
            f,
            "  {:>6} {:>6} {:<17} {:>12} {:<5} {:>12} {:>14}  group, tag",
            "call", "seq", "what", "bytes", "dtype", "start ms", "took ms"
        )?;
        if calls > records.len() as u64 {
            write!(f, "\n  ({} earlier calls are not shown)", calls - records.len() as u64)?;
        }
        for record in &records {
            write!(f, "\n{record}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.uneven { self.kind.uneven_name() } else { self.kind.name() };
        let took = match self.end {
            CallEnd::StillWaiting => "still waiting".to_string(),
            CallEnd::Done(end) => format!("{:.3}", millis(end.saturating_sub(self.start))),
            CallEnd::Failed(end) => {
                format!("failed {:.3}", millis(end.saturating_sub(self.start)))
            }
        };
        write!(
            f,
            "  {:>6} {:>6} {name:<17} {:>12} {:<5} {:>12.3} {took:>14}  ",
            self.number,
            self.sequence,
            self.bytes,
            self.dtype,
            millis(self.start),
        )?;
        match &self.group {
            Some(ranks) => write_ranks(f, ranks)?,
            None => f.write_str("world")?,
        }
        match (self.root, self.kind) {
            (None, _) => {}
            (Some(peer), CallKind::Send) => write!(f, " to {peer}")?,
            (Some(peer), CallKind::Recv) => write!(f, " from {peer}")?,
            (Some(root), _) => write!(f, " root {root}")?,
        }
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        if !self.tag.is_empty() {
            write!(f, " {:?}", self.tag)?;
        }
        Ok(())
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
