//! The steps that lead on from a state.

use super::{
    StepKind,
    state::{AxisUse, Space, State},
    volume,
};

/// One step: what it is, the axes as bits, and the state it leads to.
pub(super) type Hop = (StepKind, u32, State);

/// Up to this many axes, all sets of axes are tried as the group of one call; beyond, single axes
/// and the sets of all that are to be reduced or gathered.
pub(super) const MAX_AXES_FOR_SUBSETS: usize = 4;

/// How many ways to shard what is to be reduced or padded are tried.
const MAX_SHARD_VARIANTS: usize = 64;

/// Whether the same axes are pending in both, so that nothing is reduced, filled or padded.
pub(super) fn has_only_to_move(space: &Space, state: &State, goal: &State) -> bool {
    (0..space.n_axes()).all(|axis| match (state.axis_use(axis), goal.axis_use(axis)) {
        (AxisUse::Partial(_), AxisUse::Partial(_)) => true,
        (AxisUse::Partial(_), _) | (_, AxisUse::Partial(_)) => false,
        _ => true,
    })
}

/// The steps worth trying where only boxes must move and all links are alike: nothing then moves
/// less than the direct exchange, and the rest is to do the same by cuts of the goal and gatherings.
pub(super) fn moves_towards(space: &Space, state: &State, goal: &State, edges: &mut Vec<Hop>) {
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
pub(super) fn all(space: &Space, state: &State, goal: &State, uniform: bool, edges: &mut Vec<Hop>) {
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
    for axes in groups(space, state, goal) {
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
fn groups(space: &Space, state: &State, goal: &State) -> Vec<u32> {
    let n_axes = space.n_axes();
    if n_axes <= MAX_AXES_FOR_SUBSETS {
        return (1..1 << n_axes).collect();
    }
    let set = |wanted: &dyn Fn(AxisUse, AxisUse) -> bool| {
        let axes = (0..n_axes).filter(|axis| wanted(state.axis_use(*axis), goal.axis_use(*axis)));
        axes.fold(0u32, |axes, axis| axes | 1 << axis)
    };
    let to_reduce = set(&|now, then| matches!(now, AxisUse::Partial(_)) && now != then);
    let to_gather = set(&|now, then| matches!(now, AxisUse::Cut(_)) && then == AxisUse::Replicate);
    let mut groups: Vec<u32> = (0..n_axes).map(|axis| 1 << axis).collect();
    groups.extend([to_reduce, to_gather].into_iter().filter(|axes| axes.count_ones() > 1));
    groups
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
    let n_variants =
        of_set().fold(1usize, |n, _| n.saturating_mul(space.n_cuts())).min(MAX_SHARD_VARIANTS);
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
    let n_variants =
        free.clone().fold(1usize, |n, _| n.saturating_mul(n_choices)).min(MAX_SHARD_VARIANTS);
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
