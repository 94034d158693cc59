//! The cheapest way from one state to another.
//!
//! A* over states: an edge is one step, its length the time that the topology gives it. What is
//! known to be no better than the best plan found so far is not followed, which is most of the
//! space: any two calls cost more than one that moves no more bytes.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use super::{
    StepKind, Topology,
    length::Length,
    neighbours::{self, Hop},
    state::{AxisUse, Space, State},
    topology, volume,
};

/// After this many states the best plan found so far is taken.
const MAX_EXPANDED: usize = 1024;

/// The same where links differ or axes are many. There the bound on what is still to come is loose
/// or the states are too many, so that the search would go on long after it has found a plan that
/// it will not improve much.
const MAX_EXPANDED_IF_HARD: usize = 6;

/// The steps of the cheapest path. `None` if there is none, which does not happen between layouts
/// that [`check`](super::check) lets through.
pub(super) fn cheapest_path(
    space: &Space,
    from: &State,
    to: &State,
    topology: &Topology,
    max_elements: u128,
) -> Option<Vec<Hop>> {
    let mut search = Search {
        space,
        goal: *to,
        topology,
        least_slowness: topology.least_slowness(),
        wanted_elements: volume::total_elements(space, to),
        max_elements,
        nodes: Vec::with_capacity(64),
        open: BinaryHeap::with_capacity(64),
        known: HashMap::with_capacity_and_hasher(64, BuildHasherDefault::default()),
        best: None,
    };
    search.reach(*from, Length::ZERO, None);
    let uniform = topology.is_uniform(space.mesh());
    let mut edges = Vec::new();
    let easy = uniform && space.n_axes() <= neighbours::MAX_AXES_FOR_SUBSETS;
    let max_expanded = if easy { MAX_EXPANDED } else { MAX_EXPANDED_IF_HARD };
    let mut n_expanded = 0;
    while let Some(entry) = search.open.pop() {
        if search.is_no_better(&entry.bound) {
            break;
        }
        let node = &search.nodes[entry.node];
        if node.done {
            continue;
        }
        let (state, length) = (node.state, node.length);
        search.nodes[entry.node].done = true;
        n_expanded += 1;
        if n_expanded > max_expanded && search.best.is_some() {
            break;
        }
        edges.clear();
        match uniform && neighbours::has_only_to_move(space, &state, to) {
            true => neighbours::moves_towards(space, &state, to, &mut edges),
            false => neighbours::all(space, &state, to, uniform, &mut edges),
        }
        for (kind, axes, next) in &edges {
            search.relax(entry.node, &state, length, (*kind, *axes, *next));
        }
    }
    search.path()
}

struct Node {
    state: State,
    length: Length,
    /// The node before and the step from it.
    came: Option<(usize, StepKind, u32)>,
    done: bool,
}

struct Entry {
    /// Length so far plus what is at least still to come.
    bound: Length,
    node: usize,
}

/// What a path from some state still has to do, at least.
struct LeftToDo {
    /// Elements to be received, over all ranks.
    elements: u128,
    /// Hops of calls.
    hops: u32,
}

struct Search<'a> {
    space: &'a Space<'a>,
    goal: State,
    topology: &'a Topology,
    least_slowness: u128,
    /// Elements that all ranks hold at the goal.
    wanted_elements: u128,
    /// Elements that an intermediate state may need, over all ranks.
    max_elements: u128,
    nodes: Vec<Node>,
    open: BinaryHeap<Entry>,
    known: HashMap<State, usize, BuildHasherDefault<StateHasher>>,
    best: Option<usize>,
}

impl Search<'_> {
    fn relax(&mut self, node: usize, state: &State, length: Length, hop: Hop) {
        let (kind, axes, next) = hop;
        // What is cheap to know first: most neighbours end here.
        if self.known.get(&next).is_some_and(|known| self.nodes[*known].length <= length)
            || volume::total_elements(self.space, &next) > self.max_elements
            || self.is_no_better(&self.bound(&next, length))
        {
            return;
        }
        let length = length.and(Length::of(self.space, self.topology, &hop, state));
        self.reach(next, length, Some((node, kind, axes)));
    }

    /// The length of a path that goes on from `state`, at least.
    fn bound(&self, state: &State, length: Length) -> Length {
        let left = self.left_to_do(state);
        let mut bound = length;
        let transfer = left.elements.saturating_mul(self.least_slowness);
        bound.transfer = bound.transfer.saturating_add(transfer);
        if still_needs_a_call(self.space, state, &self.goal) {
            let (inside, between) = (self.topology.inside, self.topology.between);
            let hop_us = inside.latency_us.min(between.latency_us);
            let call_us = self.topology.launch_us + f64::from(left.hops) * hop_us;
            bound.latency_ps += (call_us * 1e6).floor() as u64;
            bound.steps += 1;
        }
        bound
    }

    /// Whether a path of at least this length cannot be a better plan than the best so far. Steps
    /// and memory are not worth a search of their own.
    fn is_no_better(&self, bound: &Length) -> bool {
        self.best.is_some_and(|best| self.nodes[best].length.key() <= bound.key())
    }

    fn reach(&mut self, state: State, length: Length, came: Option<(usize, StepKind, u32)>) {
        let bound = self.bound(&state, length);
        if self.is_no_better(&bound) {
            return;
        }
        let node = match self.known.get(&state) {
            Some(known) if self.nodes[*known].length <= length => return,
            Some(known) => {
                let node = &mut self.nodes[*known];
                (node.length, node.came, node.done) = (length, came, false);
                *known
            }
            None => {
                self.nodes.push(Node { state, length, came, done: false });
                self.known.insert(state, self.nodes.len() - 1);
                self.nodes.len() - 1
            }
        };
        if state == self.goal {
            self.best = Some(node);
        } else {
            self.open.push(Entry { bound, node });
        }
    }

    /// What at least is still to be done from `state`.
    fn left_to_do(&self, state: &State) -> LeftToDo {
        let (mut n_parts, mut stay_pending, mut padded) = (1u128, 1, 1);
        for axis in 0..self.space.n_axes() {
            let size = self.space.axis_size(axis) as u128;
            match (state.axis_use(axis), self.goal.axis_use(axis)) {
                (AxisUse::Partial(_), AxisUse::Partial(_)) => stay_pending *= size,
                (AxisUse::Partial(_), _) => n_parts *= size,
                (_, AxisUse::Partial(_)) => padded *= size,
                _ => {}
            }
        }
        let has = volume::total_elements(self.space, state);
        // Where an axis becomes pending, one of its ranks must have an element; a pad does the rest.
        let wants = self.wanted_elements / padded;
        let elements = match n_parts {
            // Ranks cannot have more of what they need than they have.
            1 => wants.saturating_sub(has),
            // Every element is reduced somewhere, and every further copy of it is received.
            _ => {
                let once = self.space.numel() * stay_pending;
                once * (n_parts - 1) + wants.saturating_sub(once)
            }
        };
        // A gathering over `g` ranks makes what a rank has `g` times as much at best, a
        // reduce-scatter leaves a part in `g`, and an all-reduce takes the hops of both.
        let growth = n_parts.saturating_mul(n_parts).saturating_mul(wants) / has.max(1);
        LeftToDo { elements, hops: topology::hops(growth) }
    }

    fn path(&self) -> Option<Vec<Hop>> {
        let mut hops = Vec::new();
        let mut node = self.best?;
        while let Some((before, kind, axes)) = self.nodes[node].came {
            hops.push((kind, axes, self.nodes[node].state));
            node = before;
        }
        hops.reverse();
        Some(hops)
    }
}

/// Whether no local step can finish: a reduction is pending that should not be, or a rank has too
/// little of a dim. (A rank with too little may also become pending by a local step, if the goal
/// is pending there.)
fn still_needs_a_call(space: &Space, state: &State, goal: &State) -> bool {
    let to_reduce = |axis| {
        matches!(state.axis_use(axis), AxisUse::Partial(_))
            && !matches!(goal.axis_use(axis), AxisUse::Partial(_))
    };
    let to_gather = |dim: &usize| {
        let (a, b) = (space.dim_cuts(state, *dim), space.dim_cuts(goal, *dim));
        let beyond = a.iter().skip(a.common_prefix(&b));
        beyond.into_iter().any(|(axis, _)| !matches!(goal.axis_use(axis), AxisUse::Partial(_)))
    };
    (0..space.n_axes()).any(to_reduce) || space.dims().iter().any(to_gather)
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        // The heap gives its greatest entry first; the shortest path is wanted.
        other.bound.cmp(&self.bound).then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// A state is 32 bytes of small numbers; a keyed hash of them would cost more than the rest of
/// visiting a state.
#[derive(Default)]
struct StateHasher(u64);

impl Hasher for StateHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
}
