//! How long a step or a path is.

use super::{
    StepKind, Topology,
    neighbours::Hop,
    state::{Space, State},
    topology::Group,
    volume,
};

/// How long a path is. Transfers first: bytes are what grows, and fewer of them always win; then
/// latencies, steps, and the memory it needs. Among calls that cost the same an exchange comes
/// last: worlds have better implementations of the others.
///
/// Integers throughout: their sums do not depend on the order of the terms, so that ties are ties
/// and no detour is ever shorter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Length {
    /// Elements received by all ranks, times how slow their link is.
    pub(super) transfer: u128,
    pub(super) latency_ps: u64,
    exchanges: u32,
    pub(super) steps: u32,
    /// The most elements that the ranks hold in between.
    peak_elements: u128,
}

impl Length {
    pub(super) const ZERO: Length =
        Length { transfer: 0, latency_ps: 0, exchanges: 0, steps: 0, peak_elements: 0 };

    /// The length of one step.
    pub(super) fn of(space: &Space, topology: &Topology, hop: &Hop, from: &State) -> Length {
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

    pub(super) fn and(self, step: Length) -> Length {
        Length {
            transfer: self.transfer.saturating_add(step.transfer),
            latency_ps: self.latency_ps.saturating_add(step.latency_ps),
            exchanges: self.exchanges + step.exchanges,
            steps: self.steps + step.steps,
            peak_elements: self.peak_elements.max(step.peak_elements),
        }
    }

    /// What decides between two plans.
    pub(super) fn key(&self) -> (u128, u64, u32) {
        (self.transfer, self.latency_ps, self.exchanges)
    }

    /// Whether the other path transfers less.
    pub(super) fn transfers_more_than(&self, other: &Length) -> bool {
        self.transfer > other.transfer
    }
}
