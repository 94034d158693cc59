//! What is communicated, by which operation.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use dtensor_layout::plan::StepKind;

use crate::{op::Op, redistribute::Hop};

/// One step of a redistribution that communicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommEvent {
    /// The operation that needed it.
    pub op: &'static str,
    /// What was called.
    pub kind: StepKind,
    /// Bytes that crossed from one rank to another, over all ranks.
    pub bytes: u128,
    /// When, since the scope began.
    pub at: Duration,
}

/// What was communicated while a closure ran, on this rank.
///
/// ```
/// use dtensor::{CommDebug, DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let rows = ones(&[4, 4], DType::F32, &mesh, &[Shard(0)])?;
///     let (sum, comm) = CommDebug::record(|| rows.add(&rows));
///     assert_eq!(comm.calls(), 0);
///     let (_, comm) = CommDebug::record(|| sum?.redistribute(&[Replicate]));
///     assert_eq!((comm.calls(), comm.bytes()), (1, 64));
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommDebug {
    /// In the order in which they began.
    pub events: Vec<CommEvent>,
    /// How often each operation ran.
    pub ops: BTreeMap<&'static str, u64>,
}

struct Listener {
    began: Instant,
    debug: CommDebug,
}

thread_local! {
    static LISTENING: Cell<bool> = const { Cell::new(false) };
    /// The innermost last; all of them hear everything.
    static LISTENERS: RefCell<Vec<Listener>> = const { RefCell::new(Vec::new()) };
}

impl CommDebug {
    /// Runs `body`, and says what was communicated meanwhile. Scopes may nest, and end with a panic.
    pub fn record<T>(body: impl FnOnce() -> T) -> (T, CommDebug) {
        struct Scope {
            depth: usize,
        }
        impl Drop for Scope {
            fn drop(&mut self) {
                LISTENERS.with_borrow_mut(|listeners| listeners.truncate(self.depth));
                LISTENING.set(self.depth > 0);
            }
        }
        let depth = LISTENERS.with_borrow_mut(|listeners| {
            listeners.push(Listener { began: Instant::now(), debug: CommDebug::default() });
            listeners.len() - 1
        });
        LISTENING.set(true);
        let scope = Scope { depth };
        let result = body();
        let debug = LISTENERS.with_borrow_mut(|listeners| {
            listeners.get_mut(depth).map(|own| std::mem::take(&mut own.debug)).unwrap_or_default()
        });
        drop(scope);
        (result, debug)
    }

    /// Number of collective calls.
    pub fn calls(&self) -> usize {
        self.events.len()
    }

    /// Number of calls of one kind.
    pub fn calls_of(&self, kind: StepKind) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }

    /// Bytes that crossed from one rank to another, over all ranks.
    pub fn bytes(&self) -> u128 {
        self.events.iter().map(|event| event.bytes).sum()
    }
}

impl fmt::Display for CommDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: BTreeMap<(&str, &str), (usize, u128)> = BTreeMap::new();
        for event in &self.events {
            let line = lines.entry((event.op, event.kind.name())).or_default();
            *line = (line.0 + 1, line.1 + event.bytes);
        }
        write!(f, "{:<24} {:<16} {:>8} {:>16}", "op", "call", "times", "bytes")?;
        for ((op, kind), (calls, bytes)) in lines {
            write!(f, "\n{op:<24} {kind:<16} {calls:>8} {bytes:>16}")?;
        }
        write!(f, "\n{:<24} {:<16} {:>8} {:>16}", "total", "", self.calls(), self.bytes())
    }
}

/// An operation runs its kernel.
#[inline]
pub(crate) fn ran(op: &dyn Op) {
    if LISTENING.get() {
        LISTENERS.with_borrow_mut(|listeners| {
            for listener in listeners {
                *listener.debug.ops.entry(op.name()).or_default() += 1;
            }
        });
    }
}

/// A step of a redistribution begins.
pub(crate) fn saw(op: &'static str, hop: &Hop) {
    if !hop.kind.is_local() {
        sent(op, hop.kind, || hop.bytes_sent);
    }
}

/// Something is communicated: bytes over all ranks.
pub(crate) fn sent(op: &'static str, kind: StepKind, bytes: impl FnOnce() -> u128) {
    if !LISTENING.get() {
        return;
    }
    let bytes = bytes();
    LISTENERS.with_borrow_mut(|listeners| {
        for listener in listeners {
            let at = listener.began.elapsed();
            listener.debug.events.push(CommEvent { op, kind, bytes, at });
        }
    });
}
