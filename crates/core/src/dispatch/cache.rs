//! What a rank thread remembers.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    rc::Rc,
    sync::Arc,
};

use dtensor_layout::{Layout, rule::Rule};

use super::Decision;
use crate::{
    DTensor, DeviceMesh, Result,
    op::{KeyHasher, Meta, Op},
    redistribute::Route,
};

/// Decisions that a thread keeps. When there are more it forgets them all: a program that never meets the
/// same layouts again gains nothing from the old ones.
const LIMIT: usize = 1 << 16;

/// How often a decision was remembered, and how often it had to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Operations whose decision was there.
    pub hits: u64,
    /// Operations whose decision was made.
    pub misses: u64,
    /// Decisions that are kept.
    pub kept: usize,
}

/// A rule that stands in for that of an operation, until it is dropped.
#[must_use = "the rule is replaced until this is dropped"]
pub struct RuleReplacement {
    op: &'static str,
    before: Option<Replaced>,
    /// Of this thread: not to be sent to another.
    _here: std::marker::PhantomData<*const ()>,
}

type Replaced = Rc<dyn Fn(&dyn Op, &[Meta]) -> Result<Rule>>;
type Buckets<T> = RefCell<HashMap<u64, Vec<T>, BuildHasherDefault<Hashed>>>;

#[derive(Default)]
struct Memory {
    decisions: Buckets<Rc<Decision>>,
    n_decisions: Cell<usize>,
    routes: Buckets<KnownRoute>,
    n_routes: Cell<usize>,
    rules: RefCell<HashMap<&'static str, Replaced>>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

struct KnownRoute {
    op: &'static str,
    /// Kept, so that no other mesh gets their addresses.
    meshes: (DeviceMesh, DeviceMesh),
    route: Arc<Route>,
}

thread_local! {
    static MEMORY: Memory = Memory::default();
}

/// Uses another rule for the operation of this name, on this thread, until the returned value is dropped:
/// for an operation whose kernel you know to allow more, or that should be cut in fewer ways. All ranks must
/// do the same. The rule is believed.
pub fn replace_rule(
    op: &'static str,
    rule: impl Fn(&dyn Op, &[Meta]) -> Result<Rule> + 'static,
) -> RuleReplacement {
    clear_cache();
    let before = MEMORY.with(|memory| memory.rules.borrow_mut().insert(op, Rc::new(rule)));
    RuleReplacement { op, before, _here: std::marker::PhantomData }
}

impl Drop for RuleReplacement {
    fn drop(&mut self) {
        clear_cache();
        // The thread may be ending, and with it the memory.
        let _ = MEMORY.try_with(|memory| {
            let mut rules = memory.rules.borrow_mut();
            match self.before.take() {
                Some(before) => rules.insert(self.op, before),
                None => rules.remove(self.op),
            }
        });
    }
}

/// What this thread has remembered so far.
pub fn cache_stats() -> CacheStats {
    MEMORY.with(|memory| CacheStats {
        hits: memory.hits.get(),
        misses: memory.misses.get(),
        kept: memory.n_decisions.get(),
    })
}

/// Forgets all decisions of this thread. They are made again when they are needed.
pub fn clear_cache() {
    let _ = MEMORY.try_with(|memory| {
        memory.decisions.borrow_mut().clear();
        memory.n_decisions.set(0);
        memory.routes.borrow_mut().clear();
        memory.n_routes.set(0);
    });
}

#[inline]
pub(super) fn decision(op: &dyn Op, operands: &[&DTensor]) -> Result<Rc<Decision>> {
    let mut hasher = KeyHasher::default();
    op.hash_key(&mut hasher);
    hasher.write_usize(operands[0].mesh().address());
    for operand in operands {
        operand.layout().hash(&mut hasher);
    }
    let hash = hasher.finish();
    MEMORY.with(|memory| {
        if let Some(bucket) = memory.decisions.borrow().get(&hash)
            && let Some(known) = bucket.iter().find(|known| known.is_for(op, operands))
        {
            memory.hits.set(memory.hits.get() + 1);
            tracing::debug!(rank = rank(operands), op = op.name(), ?operands, "cache hit");
            return Ok(Rc::clone(known));
        }
        memory.decide(hash, op, operands)
    })
}

pub(super) fn route(
    op: &'static str,
    from: (&Layout, &DeviceMesh),
    to: (&Layout, &DeviceMesh),
) -> Result<Arc<Route>> {
    let mut hasher = KeyHasher::default();
    op.hash(&mut hasher);
    from.0.hash(&mut hasher);
    to.0.hash(&mut hasher);
    hasher.write_usize(from.1.address());
    let hash = hasher.finish();
    let is_it = |known: &&KnownRoute| {
        known.op == op
            && known.route.plan.from() == from.0
            && known.route.plan.to() == to.0
            && known.meshes.0.is_same(from.1)
            && known.meshes.1.is_same(to.1)
    };
    MEMORY.with(|memory| {
        if let Some(bucket) = memory.routes.borrow().get(&hash)
            && let Some(known) = bucket.iter().find(is_it)
        {
            return Ok(Arc::clone(&known.route));
        }
        let route = Arc::new(Route::new(op, from, to)?);
        let known =
            KnownRoute { op, meshes: (from.1.clone(), to.1.clone()), route: Arc::clone(&route) };
        insert(&memory.routes, &memory.n_routes, hash, known);
        Ok(route)
    })
}

impl Memory {
    #[cold]
    fn decide(&self, hash: u64, op: &dyn Op, operands: &[&DTensor]) -> Result<Rc<Decision>> {
        self.misses.set(self.misses.get() + 1);
        let replaced = self.rules.borrow().get(op.name()).cloned();
        let replaced = replaced.map(|rule| {
            let metas: Vec<Meta> =
                operands.iter().map(|operand| Meta::of_layout(operand.layout())).collect();
            rule(op, &metas)
        });
        let decision = Rc::new(Decision::new(op, operands, replaced)?);
        tracing::debug!(rank = rank(operands), op = op.name(), ?operands, "cache miss");
        insert(&self.decisions, &self.n_decisions, hash, Rc::clone(&decision));
        Ok(decision)
    }
}

fn rank(operands: &[&DTensor]) -> usize {
    operands[0].mesh().world().rank()
}

fn insert<T>(buckets: &Buckets<T>, n: &Cell<usize>, hash: u64, value: T) {
    let mut buckets = buckets.borrow_mut();
    if n.get() >= LIMIT {
        buckets.clear();
        n.set(0);
    }
    buckets.entry(hash).or_default().push(value);
    n.set(n.get() + 1);
}

/// Keys that are hashes already.
#[derive(Clone, Copy, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
