//! How many elements a step moves and how many a rank holds, from coordinates alone.

use super::{
    StepKind,
    state::{AxisUse, MAX_EXACT_COORDS, Space, State},
};

/// What a step is, given the states before and after it; `None` if no single step does it.
///
/// The second value is the set of axes over which it communicates (for local steps: that change),
/// as bits.
pub(super) fn classify(space: &Space, from: &State, to: &State) -> Option<(StepKind, u32)> {
    let (mut reduced, mut filled) = (0u32, 0u32);
    for axis in 0..space.n_axes() {
        match (from.axis_use(axis), to.axis_use(axis)) {
            (AxisUse::Partial(a), AxisUse::Partial(b)) if a == b => {}
            (AxisUse::Partial(_), AxisUse::Partial(_)) => return None,
            (AxisUse::Partial(_), _) => reduced |= 1 << axis,
            (_, AxisUse::Partial(_)) => filled |= 1 << axis,
            _ => {}
        }
    }
    if reduced == 0 && filled == 0 {
        return Some(classify_move(space, from, to));
    }
    if reduced != 0 && filled != 0 {
        return None;
    }
    match filled {
        0 => classify_reduction(space, from, to, reduced),
        _ => classify_filling(space, from, to, filled),
    }
}

/// A step in which the axes `reduced` stop to be pending: all else stays, and they either are
/// replicated or cut last.
fn classify_reduction(
    space: &Space,
    from: &State,
    to: &State,
    reduced: u32,
) -> Option<(StepKind, u32)> {
    let mut n_cut = 0;
    for dim in space.dims() {
        let (before, after) = (space.dim_cuts(from, *dim), space.dim_cuts(to, *dim));
        let appended = after.iter().skip(before.len()).all(|(axis, _)| reduced & (1 << axis) != 0);
        if before.common_prefix(&after) != before.len() || !appended {
            return None;
        }
        n_cut += after.len() - before.len();
    }
    match n_cut {
        0 => Some((StepKind::AllReduce, reduced)),
        n if n == reduced.count_ones() as usize => Some((StepKind::ReduceScatter, reduced)),
        _ => None,
    }
}

/// A step in which the axes `filled` become pending: all of them were replicated and nothing else
/// changes, or all of them were cuts and ranks may also keep less of other dims.
fn classify_filling(
    space: &Space,
    from: &State,
    to: &State,
    filled: u32,
) -> Option<(StepKind, u32)> {
    let of_set = || (0..space.n_axes()).filter(move |axis| filled & (1 << axis) != 0);
    if of_set().all(|axis| from.axis_use(axis) == AxisUse::Replicate) {
        let same =
            (0..space.n_axes()).all(|axis| filled & (1 << axis) != 0 || from.same_use(to, axis));
        return same.then_some((StepKind::Fill, filled));
    }
    let from_cuts_to_sums = of_set().all(|axis| {
        matches!(from.axis_use(axis), AxisUse::Cut(_))
            && to.axis_use(axis) == AxisUse::Partial(crate::ReduceOp::Sum)
    });
    // Every index that a rank keeps room for is held by exactly one rank along the filled axes.
    let has_all = space.dims().iter().all(|dim| {
        let (before, after) = (space.dim_cuts(from, *dim), space.dim_cuts(to, *dim));
        before.iter().skip(before.common_prefix(&after)).all(|(axis, _)| filled & (1 << axis) != 0)
    });
    (from_cuts_to_sums && has_all).then_some((StepKind::Pad, filled))
}

/// A step that changes no pending reduction: local, a gathering, or an exchange of boxes.
///
/// Ranks that agree on the axes by which both orders of a dim begin agree on what they have of
/// that dim, so only the source's further cuts need communication. An axis that is replicated in
/// the source needs none: every rank takes from ranks with its own index there.
fn classify_move(space: &Space, from: &State, to: &State) -> (StepKind, u32) {
    let mut axes = 0;
    let mut only_gathers = true;
    for dim in space.dims() {
        let (a, b) = (space.dim_cuts(from, *dim), space.dim_cuts(to, *dim));
        let prefix = a.common_prefix(&b);
        for (axis, _) in a.iter().skip(prefix) {
            axes |= 1 << axis;
        }
        only_gathers &= prefix == b.len();
    }
    match (axes, only_gathers) {
        (0, _) => {
            let changed =
                (0..space.n_axes()).filter(|axis| from.axis_use(*axis) != to.axis_use(*axis));
            (StepKind::Slice, changed.fold(0, |axes, axis| axes | 1 << axis))
        }
        (axes, true) => (StepKind::AllGather, axes),
        (axes, false) => (StepKind::Exchange, axes),
    }
}

/// Elements received by all ranks together.
pub(super) fn elements_moved(
    space: &Space,
    kind: StepKind,
    group_size: usize,
    from: &State,
    to: &State,
) -> u128 {
    match kind {
        StepKind::Slice | StepKind::Fill | StepKind::Pad => 0,
        StepKind::AllGather => total_elements(space, to) - total_elements(space, from),
        StepKind::ReduceScatter => total_elements(space, from) - total_elements(space, to),
        StepKind::AllReduce => {
            let before = total_elements(space, from);
            2 * (before - before / group_size as u128)
        }
        StepKind::Exchange => {
            let after = total_elements(space, to);
            // On average a rank already has the share of one rank of the group.
            after - overlap(space, from, to).unwrap_or(after / group_size as u128)
        }
    }
}

/// Elements held by all ranks together. Cuts partition a dim, evenly or not, so this is exact.
pub(super) fn total_elements(space: &Space, state: &State) -> u128 {
    let copies =
        (0..space.n_axes()).filter(|axis| !matches!(state.axis_use(*axis), AxisUse::Cut(_)));
    space.numel() * copies.map(|axis| space.axis_size(axis) as u128).product::<u128>()
}

/// Bytes of the rank that holds the most (of a strided shard: at most).
pub(super) fn largest_local_bytes(space: &Space, state: &State) -> usize {
    let mut numel = space.uncut_numel();
    for dim in space.dims() {
        let mut length = space.dim_size(*dim);
        for (axis, cut) in space.dim_cuts(state, *dim).iter() {
            let (parts, split) = (space.axis_size(axis), space.split_factor(cut));
            length = length.div_ceil(split).div_ceil(parts).saturating_mul(split).min(length);
        }
        numel *= length as u128;
    }
    usize::try_from(numel * space.dtype().size() as u128).unwrap_or(usize::MAX)
}

/// Elements that stay on their rank, over all ranks: the sum over coordinates of what both states
/// have there. `None` if there are too many coordinates to sum over.
fn overlap(space: &Space, from: &State, to: &State) -> Option<u128> {
    if space.n_ranks() > space.max_exact_coords() {
        return None;
    }
    let mut stays = [1u128; MAX_EXACT_COORDS];
    let stays = &mut stays[..space.n_ranks()];
    for dim in space.dims() {
        let held = |state| space.held(*dim, &space.dim_cuts(state, *dim));
        for ((stays, a), b) in stays.iter_mut().zip(held(from).iter()).zip(held(to).iter()) {
            *stays *= a.overlap(b) as u128;
        }
    }
    Some(stays.iter().sum::<u128>() * space.uncut_numel())
}
