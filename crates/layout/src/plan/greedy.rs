//! PyTorch's plan: one axis at a time.

use super::{
    neighbours::Hop,
    state::{Space, State},
    volume,
};
use crate::{Layout, Placement};

/// The steps of the greedy plan; `None` where PyTorch would not plan greedily.
pub(super) fn hops(space: &Space, from: &Layout, to: &Layout) -> Option<Vec<Hop>> {
    if !from.order().is_left_to_right() || !to.order().is_left_to_right() {
        return None;
    }
    let mut walk = Walk {
        space,
        placements: from.placements().to_vec(),
        state: space.state(from),
        hops: Vec::new(),
    };
    let target = to.placements();
    if from.placements().iter().any(|placement| placement.shard_dim().is_some()) {
        // From the inner axes to the outer: where outer axes cut the target's dim otherwise than
        // they do now, this axis must first be whole.
        for axis in (0..target.len()).rev() {
            let goal = match target[axis] {
                Placement::Shard(dim) if walk.outer_cuts_differ(axis, dim, target) => {
                    Placement::Replicate
                }
                placement => placement,
            };
            walk.step(axis, goal)?;
        }
    }
    for (axis, goal) in target.iter().enumerate() {
        walk.step(axis, *goal)?;
    }
    Some(walk.hops)
}

struct Walk<'a> {
    space: &'a Space<'a>,
    placements: Vec<Placement>,
    state: State,
    hops: Vec<Hop>,
}

impl Walk<'_> {
    fn outer_cuts_differ(&self, axis: usize, dim: usize, target: &[Placement]) -> bool {
        let cuts = |placement: &Placement| *placement == Placement::Shard(dim);
        self.placements[..axis].iter().zip(target).any(|(now, then)| cuts(now) != cuts(then))
    }

    /// Changes one placement, keeping the order of cuts left to right.
    fn step(&mut self, axis: usize, goal: Placement) -> Option<()> {
        if self.placements[axis] == goal {
            return Some(());
        }
        let mut placements = self.placements.clone();
        placements[axis] = goal;
        let next = self.space.left_to_right(&placements);
        let (kind, axes) = volume::classify(self.space, &self.state, &next)?;
        self.hops.push((kind, axes, next));
        (self.placements, self.state) = (placements, next);
        Some(())
    }
}
