//! What is communicated, by which operation.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use dtensor_layout::plan::StepKind;

use super::module::{Phase, module, phase};
use crate::{op::Op, redistribute::Hop};

/// One call that communicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommEvent {
    /// The operation that needed it. Where ranks only agree that none of them has failed, `"gather check"` for
    /// `gather`.
    pub op: &'static str,
    /// The module that was running, or whose gradients were computed.
    pub module: Option<Arc<str>>,
    /// Whether values or gradients were computed.
    pub phase: Phase,
    /// What was called.
    pub kind: StepKind,
    /// Bytes that crossed from one rank to another, over all ranks.
    pub bytes: u128,
    /// When it began, since the scope did.
    pub at: Duration,
    /// How long it took, on this rank.
    pub took: Duration,
}

/// A time in which a module ran, or gradients of what it had computed were, on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSpan {
    /// Its path, joined by dots. Modules within it have spans of their own.
    pub module: Arc<str>,
    /// Whether values or gradients were computed.
    pub phase: Phase,
    /// When it began, since the scope did.
    pub at: Duration,
    /// How long it took; zero while it runs.
    pub took: Duration,
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
    /// When modules ran, in the order in which they began.
    pub modules: Vec<ModuleSpan>,
}

struct Listener {
    began: Instant,
    debug: CommDebug,
}

thread_local! {
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
                super::watch();
            }
        }
        let depth = LISTENERS.with_borrow_mut(|listeners| {
            listeners.push(Listener { began: Instant::now(), debug: CommDebug::default() });
            listeners.len() - 1
        });
        super::watch();
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

    /// Calls and bytes of every module, apart for values and gradients. What belongs to no module has the name "".
    pub fn by_module(&self) -> BTreeMap<(&str, Phase), (usize, u128)> {
        let mut modules: BTreeMap<(&str, Phase), (usize, u128)> = BTreeMap::new();
        for event in &self.events {
            let module = event.module.as_deref().unwrap_or("");
            let of_module = modules.entry((module, event.phase)).or_default();
            *of_module = (of_module.0 + 1, of_module.1 + event.bytes);
        }
        modules
    }

    /// Bytes that crossed from one rank to another, over all ranks.
    pub fn bytes(&self) -> u128 {
        self.events.iter().map(|event| event.bytes).sum()
    }
}

/// Module, pass, operation and call.
type Key<'a> = (&'a str, Phase, &'a str, &'a str);

/// A table of calls by operation; by module and pass as well, if there are modules or gradients.
impl fmt::Display for CommDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |event: &CommEvent| event.module.is_none() && event.phase == Phase::Forward;
        let is_wide = !self.events.iter().all(is_plain);
        let mut lines: BTreeMap<Key<'_>, (usize, u128)> = BTreeMap::new();
        for event in &self.events {
            let module = event.module.as_deref().unwrap_or("");
            let line = lines.entry((module, event.phase, event.op, event.kind.name())).or_default();
            *line = (line.0 + 1, line.1 + event.bytes);
        }
        let head = ["module", "pass", "op", "call", "times", "bytes"].map(str::to_owned);
        let line = |(key, (calls, bytes)): (&Key<'_>, &(usize, u128))| {
            let (module, phase, op, kind) = *key;
            let [module, op, kind] = [module, op, kind].map(str::to_owned);
            [module, phase.to_string(), op, kind, calls.to_string(), bytes.to_string()]
        };
        let nothing = String::new;
        let (calls, bytes) = (self.calls().to_string(), self.bytes().to_string());
        let total = match is_wide {
            true => ["total".to_owned(), nothing(), nothing(), nothing(), calls, bytes],
            false => [nothing(), nothing(), "total".to_owned(), nothing(), calls, bytes],
        };
        let rows = [head].into_iter().chain(lines.iter().map(line)).chain([total]);
        for (number, [module, pass, op, kind, calls, bytes]) in rows.enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            if is_wide {
                write!(f, "{module:<28} {pass:<8} ")?;
            }
            write!(f, "{op:<24} {kind:<16} {calls:>8} {bytes:>16}")?;
        }
        Ok(())
    }
}

pub(super) fn is_listening() -> bool {
    LISTENERS.with_borrow(|listeners| !listeners.is_empty())
}

pub(super) fn called(op: &dyn Op) {
    LISTENERS.with_borrow_mut(|listeners| {
        for listener in listeners {
            *listener.debug.ops.entry(op.name()).or_default() += 1;
        }
    });
}

/// A step of a redistribution begins; it ends when what is returned is dropped.
#[must_use = "the call ends when it is dropped"]
pub(crate) fn saw(op: &'static str, hop: &Hop) -> Option<Sending> {
    hop.communicates().then(|| sent(op, hop.kind, || hop.bytes_sent)).flatten()
}

/// Something is communicated, `bytes` over all ranks; it ends when what is returned is dropped. `None` if
/// nobody listens.
#[must_use = "the call ends when it is dropped"]
pub(crate) fn sent(
    op: &'static str,
    kind: StepKind,
    bytes: impl FnOnce() -> u128,
) -> Option<Sending> {
    if !is_listening() {
        return None;
    }
    let bytes = bytes();
    let positions = LISTENERS.with_borrow_mut(|listeners| {
        let begin = |listener: &mut Listener| {
            let (at, took) = (listener.began.elapsed(), Duration::ZERO);
            listener.debug.events.push(CommEvent {
                op,
                module: module(),
                phase: phase(),
                kind,
                bytes,
                at,
                took,
            });
            listener.debug.events.len() - 1
        };
        listeners.iter_mut().map(begin).collect()
    });
    Some(Sending { positions, began: Instant::now() })
}

/// A communication that has begun.
pub(crate) struct Sending {
    /// Of the event, for every listener.
    positions: Vec<usize>,
    began: Instant,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        LISTENERS.with_borrow_mut(|listeners| {
            for (listener, position) in listeners.iter_mut().zip(&self.positions) {
                if let Some(event) = listener.debug.events.get_mut(*position) {
                    event.took = took;
                }
            }
        });
    }
}

/// A module begins to run; it ends when what is returned is dropped. `None` if nobody listens.
#[must_use = "the module ends when it is dropped"]
pub(super) fn entered(module: &Arc<str>) -> Option<Running> {
    if !is_listening() {
        return None;
    }
    let phase = phase();
    let positions = LISTENERS.with_borrow_mut(|listeners| {
        let begin = |listener: &mut Listener| {
            let spans = &mut listener.debug.modules;
            // Gradients are computed one operation at a time: those of one module that follow each other are one span.
            let goes_on = |last: &ModuleSpan| {
                phase == Phase::Backward && last.phase == phase && last.module == *module
            };
            if !spans.last().is_some_and(goes_on) {
                let (at, took) = (listener.began.elapsed(), Duration::ZERO);
                spans.push(ModuleSpan { module: module.clone(), phase, at, took });
            }
            spans.len() - 1
        };
        listeners.iter_mut().map(begin).collect()
    });
    Some(Running { positions })
}

/// A module that runs.
pub(super) struct Running {
    /// Of the span, for every listener.
    positions: Vec<usize>,
}

impl Drop for Running {
    fn drop(&mut self) {
        LISTENERS.with_borrow_mut(|listeners| {
            for (listener, position) in listeners.iter_mut().zip(&self.positions) {
                if let Some(span) = listener.debug.modules.get_mut(*position) {
                    span.took = listener.began.elapsed().saturating_sub(span.at);
                }
            }
        });
    }
}
