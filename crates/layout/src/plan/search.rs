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
    state::{AxisUse, Space, State},
    topology::Group,
    volume,
};

/// After this many states the best plan found so far is taken.
const MAX_EXPANDED: usize = 1024;

/// The same where links differ. There the bound on what is still to come is loose, so that the
/// search would go on long after it has found a plan that it will not improve much.
const MAX_EXPANDED_IF_LINKS_DIFFER: usize = 6;

/// Up to this many axes, all sets of axes are tried as the group of one call; beyond, single axes
/// and the whole set.
const MAX_AXES_FOR_SUBSETS: usize = 4;

/// How many ways to shard what is to be reduced or padded are tried.
const MAX_SHARD_VARIANTS: usize = 64;

/// One step of the result: what it is, the axes as bits, and the state it leads to.
pub(super) type Hop = (StepKind, u32, State);

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
        max_elements,
        nodes: Vec::with_capacity(64),
        open: BinaryHeap::with_capacity(64),
        known: HashMap::with_capacity_and_hasher(64, BuildHasherDefault::default()),
        best: None,
    };
    search.reach(*from, Length::ZERO, None);
    let uniform = topology.is_uniform(space.mesh());
    let mut edges = Vec::new();
    let max_expanded = if uniform { MAX_EXPANDED } else { MAX_EXPANDED_IF_LINKS_DIFFER };
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
        match uniform && has_only_to_move(space, &state, to) {
            true => moves_towards(space, &state, to, &mut edges),
            false => neighbours(space, &state, to, uniform, &mut edges),
        }
        for (kind, axes, next) in &edges {
            search.relax(entry.node, &state, length, (*kind, *axes, *next));
        }
    }
    search.path()
}

/// How long a path is. Transfers first: bytes are what grows, and fewer of them always win; then
/// latencies, steps, and the memory it needs. Among calls that cost the same an exchange comes
/// last: worlds have better implementations of the others.
///
/// Integers throughout: their sums do not depend on the order of the terms, so that ties are ties
/// and no detour is ever shorter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Length {
    /// Elements received by all ranks, times how slow their link is.
    transfer: u128,
    latency_ps: u64,
    exchanges: u32,
    steps: u32,
    /// The most elements that the ranks hold in between.
    peak_elements: u128,
}

impl Length {
    const ZERO: Length =
        Length { transfer: 0, latency_ps: 0, exchanges: 0, steps: 0, peak_elements: 0 };

    /// The length of one step.
    fn of(space: &Space, topology: &Topology, hop: &Hop, from: &State) -> Length {
        let (kind, axes, to) = hop;
        let peak_elements = volume::total_elements(space, to);
        if kind.is_local() {
            return Length { steps: 1, peak_elements, ..Length::ZERO };
        }
        let group = Group::of_axes(space, *axes);
        let elements = volume::elements_moved(space, *kind, group.size, from, to);
        Length {
            transfer: elements.saturating_mul(topology.slowness(group)),
            latency_ps: (topology.latency_us(*kind, group) * 1e6).round() as u64,
            exchanges: u32::from(*kind == StepKind::Exchange),
            steps: 1,
            peak_elements,
        }
    }

    /// The length of a whole path.
    pub(super) fn of_path(
        space: &Space,
        topology: &Topology,
        start: &State,
        hops: &[Hop],
    ) -> Length {
        let mut before = start;
        let mut length = Length::ZERO;
        for hop in hops {
            length = length.and(Length::of(space, topology, hop, before));
            before = &hop.2;
        }
        length
    }

    fn and(self, step: Length) -> Length {
        Length {
            transfer: self.transfer.saturating_add(step.transfer),
            latency_ps: self.latency_ps.saturating_add(step.latency_ps),
            exchanges: self.exchanges + step.exchanges,
            steps: self.steps + step.steps,
            peak_elements: self.peak_elements.max(step.peak_elements),
        }
    }

    /// What decides between two plans.
    fn key(&self) -> (u128, u64, u32) {
        (self.transfer, self.latency_ps, self.exchanges)
    }

    /// Whether the other path transfers less.
    pub(super) fn transfers_more_than(&self, other: &Length) -> bool {
        self.transfer > other.transfer
    }
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

struct Search<'a> {
    space: &'a Space<'a>,
    goal: State,
    topology: &'a Topology,
    least_slowness: u128,
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
        let mut bound = length;
        bound.transfer = bound.transfer.saturating_add(self.least_transfer(state));
        if still_needs_a_call(self.space, state, &self.goal) {
            bound.latency_ps += (self.topology.launch_us * 1e6).floor() as u64;
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

    /// What at least is still to be transferred.
    fn least_transfer(&self, state: &State) -> u128 {
        let (mut n_parts, mut stay_pending, mut padded) = (1, 1, 1);
        for axis in 0..self.space.n_axes() {
            let size = self.space.axis_size(axis) as u128;
            match (state.axis_use(axis), self.goal.axis_use(axis)) {
                (AxisUse::Partial(_), AxisUse::Partial(_)) => stay_pending *= size,
                (AxisUse::Partial(_), _) => n_parts *= size,
                (_, AxisUse::Partial(_)) => padded *= size,
                _ => {}
            }
        }
        // Where an axis becomes pending, one of its ranks must have an element; a pad does the rest.
        let wanted = volume::total_elements(self.space, &self.goal) / padded;
        let elements = match n_parts {
            // Ranks cannot have more of what they need than they have.
            1 => wanted.saturating_sub(volume::total_elements(self.space, state)),
            // Every element is reduced somewhere, and every further copy of it is received.
            _ => {
                let once = self.space.numel() * stay_pending;
                once * (n_parts - 1) + wanted.saturating_sub(once)
            }
        };
        elements.saturating_mul(self.least_slowness)
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

/// Whether the same axes are pending in both, so that nothing is reduced, filled or padded.
fn has_only_to_move(space: &Space, state: &State, goal: &State) -> bool {
    (0..space.n_axes()).all(|axis| match (state.axis_use(axis), goal.axis_use(axis)) {
        (AxisUse::Partial(_), AxisUse::Partial(_)) => true,
        (AxisUse::Partial(_), _) | (_, AxisUse::Partial(_)) => false,
        _ => true,
    })
}

/// The steps worth trying where only boxes must move and all links are alike: nothing then moves
/// less than the direct exchange, and the rest is to do the same by cuts of the goal and gatherings.
fn moves_towards(space: &Space, state: &State, goal: &State, edges: &mut Vec<Hop>) {
    direct_move(space, state, goal, true, edges);
    for dim in space.dims() {
        let (now, then) = (space.dim_cuts(state, *dim), space.dim_cuts(goal, *dim));
        if now.common_prefix(&then) == now.len()
            && let Some((axis, cut)) = then.iter().nth(now.len())
            && state.axis_use(axis) == AxisUse::Replicate
        {
            edges.push((StepKind::Slice, 1 << axis, space.with_last_cut(state, axis, cut)));
        }
    }
}

/// Every state that one step leads to and that may be on a cheapest path to `goal`.
fn neighbours(space: &Space, state: &State, goal: &State, uniform: bool, edges: &mut Vec<Hop>) {
    direct_move(space, state, goal, uniform, edges);
    for axis in 0..space.n_axes() {
        let bit = 1 << axis;
        match state.axis_use(axis) {
            AxisUse::Replicate => {
                for cut in 0..space.n_cuts() {
                    edges.push((StepKind::Slice, bit, space.with_last_cut(state, axis, cut)));
                }
                if let AxisUse::Partial(_) = goal.axis_use(axis)
                    && may_become_pending(space, state, goal, axis)
                {
                    edges.push((StepKind::Fill, bit, state.with(axis, goal.axis_use(axis))));
                }
            }
            AxisUse::Cut(_) if space.is_last_cut(state, axis) => {
                for cut in
                    (0..space.n_cuts()).filter(|cut| state.axis_use(axis) != AxisUse::Cut(*cut))
                {
                    let next = space.with_last_cut(state, axis, cut);
                    let (kind, axes) =
                        volume::classify(space, state, &next).unwrap_or((StepKind::Exchange, bit));
                    edges.push((kind, axes, next));
                }
                let sum = AxisUse::Partial(crate::ReduceOp::Sum);
                if goal.axis_use(axis) == sum && may_become_pending(space, state, goal, axis) {
                    edges.push((StepKind::Pad, bit, state.with(axis, sum)));
                }
            }
            AxisUse::Partial(_) if state.axis_use(axis) != goal.axis_use(axis) => {
                for cut in 0..space.n_cuts() {
                    edges.push((
                        StepKind::ReduceScatter,
                        bit,
                        space.with_last_cut(state, axis, cut),
                    ));
                }
            }
            AxisUse::Cut(_) | AxisUse::Partial(_) => {}
        }
    }
    fill_all(space, state, goal, edges);
    for axes in groups(space.n_axes()) {
        gather_over(space, state, axes, edges);
        reduce_over(space, state, goal, axes, edges);
    }
}

/// One step that makes everything pending that the goal has so and that is replicated.
fn fill_all(space: &Space, state: &State, goal: &State, edges: &mut Vec<Hop>) {
    let to_fill = |axis: &usize| {
        state.axis_use(*axis) == AxisUse::Replicate && may_become_pending(space, state, goal, *axis)
    };
    let axes = (0..space.n_axes()).filter(to_fill).fold(0u32, |axes, axis| axes | 1 << axis);
    if axes.count_ones() > 1 {
        let of_set = (0..space.n_axes()).filter(|axis| axes & (1 << axis) != 0);
        let next = of_set.fold(*state, |next, axis| next.with(axis, goal.axis_use(axis)));
        edges.push((StepKind::Fill, axes, next));
    }
}

/// The sets of axes that are tried as the group of one call.
fn groups(n_axes: usize) -> impl Iterator<Item = u32> {
    let all = (1u32 << n_axes) - 1;
    let subsets = (1..=all).filter(move |_| n_axes <= MAX_AXES_FOR_SUBSETS);
    let singles = (0..n_axes)
        .map(|axis| 1 << axis)
        .chain([all])
        .filter(move |_| n_axes > MAX_AXES_FOR_SUBSETS);
    subsets.chain(singles)
}

/// One gathering over a set of axes that, in every dim they cut, cut last.
fn gather_over(space: &Space, state: &State, axes: u32, edges: &mut Vec<Hop>) {
    let mut next = *state;
    for axis in (0..space.n_axes()).filter(|axis| axes & (1 << axis) != 0) {
        match state.axis_use(axis) {
            AxisUse::Cut(_) => next = next.with(axis, AxisUse::Replicate),
            AxisUse::Replicate | AxisUse::Partial(_) => return,
        }
    }
    let suffixes = space.dims().iter().all(|dim| {
        let cuts = space.dim_cuts(state, *dim);
        let gathered = cuts.iter().map(|(axis, _)| axes & (1 << axis) != 0);
        gathered.is_sorted_by(|a, b| a <= b)
    });
    if suffixes {
        edges.push((StepKind::AllGather, axes, next));
    }
}

/// One reduction over a set of pending axes: an all-reduce, or a reduce-scatter towards the goal.
fn reduce_over(space: &Space, state: &State, goal: &State, axes: u32, edges: &mut Vec<Hop>) {
    let of_set = || (0..space.n_axes()).filter(move |axis| axes & (1 << axis) != 0);
    let pending = |axis| {
        matches!(state.axis_use(axis), AxisUse::Partial(_))
            && state.axis_use(axis) != goal.axis_use(axis)
    };
    if !of_set().all(pending) {
        return;
    }
    let reduced = of_set().fold(*state, |next, axis| next.with(axis, AxisUse::Replicate));
    edges.push((StepKind::AllReduce, axes, reduced));
    if axes.count_ones() < 2 {
        return;
    }
    // The goal's cuts in the goal's order, where it has them for all axes; and every way to cut by
    // the axes from left to right: what is scattered otherwise is exchanged or gathered later.
    let mut towards_goal = reduced;
    let mut n_cut = 0;
    for dim in space.dims() {
        let cuts = space.dim_cuts(goal, *dim);
        for (axis, cut) in cuts.iter().filter(|(axis, _)| axes & (1 << axis) != 0) {
            towards_goal = space.with_last_cut(&towards_goal, axis, cut);
            n_cut += 1;
        }
    }
    if n_cut == axes.count_ones() {
        edges.push((StepKind::ReduceScatter, axes, towards_goal));
    }
    let n_variants = of_set().fold(1, |n, _| n * space.n_cuts()).min(MAX_SHARD_VARIANTS);
    for variant in 0..n_variants {
        let mut rest = variant;
        let scattered = of_set().fold(reduced, |next, axis| {
            let cut = rest % space.n_cuts();
            rest /= space.n_cuts();
            space.with_last_cut(&next, axis, cut)
        });
        if scattered != towards_goal {
            edges.push((StepKind::ReduceScatter, axes, scattered));
        }
    }
}

/// One step that brings every cut to the goal's: the direct exchange of boxes, of which a
/// gathering and a slice are special cases; or, where ranks have all that they need of what the
/// goal has pending as a sum, a pad.
///
/// Pending axes stay pending. Those that the goal cuts by must be the last cuts of their dim
/// there, so that a later reduce-scatter can append them.
fn direct_move(space: &Space, state: &State, goal: &State, uniform: bool, edges: &mut Vec<Hop>) {
    let pending = |axis| matches!(state.axis_use(axis), AxisUse::Partial(_));
    for dim in space.dims() {
        let cuts = space.dim_cuts(goal, *dim);
        let waits = cuts.iter().map(|(axis, _)| pending(axis));
        if !waits.is_sorted_by(|a, b| a <= b) {
            return;
        }
    }
    let mut moved = *goal;
    let mut padded = *goal;
    let mut may_pad = true;
    for axis in 0..space.n_axes() {
        match (state.axis_use(axis), goal.axis_use(axis)) {
            (AxisUse::Partial(op), _) => {
                moved = moved.with(axis, AxisUse::Partial(op));
                padded = padded.with(axis, AxisUse::Partial(op));
            }
            (AxisUse::Cut(_), AxisUse::Partial(_)) => {
                moved = moved.with(axis, AxisUse::Replicate);
                may_pad &= may_become_pending(space, state, goal, axis);
            }
            (AxisUse::Replicate, AxisUse::Partial(_)) => {
                moved = moved.with(axis, AxisUse::Replicate);
                padded = padded.with(axis, AxisUse::Replicate);
            }
            _ => {}
        }
    }
    let mut arrive = |next: State| {
        if next != *state
            && let Some((kind, axes)) = volume::classify(space, state, &next)
        {
            edges.push((kind, axes, next));
        }
    };
    arrive(moved);
    if may_pad && padded != moved {
        arrive(padded);
    }
    // Some axes need not be as the goal has them at once, but may first be cut along any dim: those
    // that become pending as a sum, since shards will do for a pad; and, where links differ,
    // those that the goal replicates, since they can be gathered over the faster link.
    let cut_first = |axis: &usize| match goal.axis_use(*axis) {
        AxisUse::Partial(op) => op == crate::ReduceOp::Sum && !pending(*axis),
        AxisUse::Replicate => !uniform && !pending(*axis),
        AxisUse::Cut(_) => false,
    };
    let free = (0..space.n_axes()).filter(cut_first);
    let n_choices = space.n_cuts() + 1;
    let n_variants = free.clone().fold(1, |n, _| n * n_choices).min(MAX_SHARD_VARIANTS);
    for variant in 1..n_variants {
        let mut rest = variant;
        arrive(free.clone().fold(moved, |next, axis| {
            let choice = rest % n_choices;
            rest /= n_choices;
            if choice == 0 { next } else { space.with_last_cut(&next, axis, choice - 1) }
        }));
    }
}

/// Whether the goal's reduction on `axis` commutes with all that are pending.
fn may_become_pending(space: &Space, state: &State, goal: &State, axis: usize) -> bool {
    let AxisUse::Partial(new) = goal.axis_use(axis) else { return false };
    (0..space.n_axes()).all(|other| match state.axis_use(other) {
        AxisUse::Partial(op) => crate::layout::commute(op, new),
        AxisUse::Replicate | AxisUse::Cut(_) => true,
    })
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
