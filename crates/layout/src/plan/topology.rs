use super::{StepKind, state::Space};
use crate::Mesh;

/// What communication costs: latency and bandwidth inside a host and between hosts.
///
/// A call over `g` ranks that makes every rank receive `b` bytes on average takes
///
/// | call | time |
/// |---|---|
/// | all_gather, reduce_scatter, exchange | `launch + ceil(log2 g) * latency + b / bandwidth` |
/// | all_reduce | `launch + 2 * ceil(log2 g) * latency + b / bandwidth` |
/// | slice, fill, pad | 0 |
///
/// with `b` itself, for a tensor of `n` local bytes before and `m` after the call:
///
/// | call | bytes received per rank |
/// |---|---|
/// | all_gather | `m - n` |
/// | reduce_scatter | `n - m = n * (g - 1) / g` |
/// | all_reduce | `2 * n * (g - 1) / g` |
/// | exchange | `m` less what the rank already holds |
///
/// Plans are compared by the time of their transfers first and by latency only among equals.
///
/// Latency counts hops of a tree: an exchange of small messages goes by Bruck's algorithm, a large
/// one is bound by its bytes. A group is *inside* a host if the distance between its first and its
/// last rank is below [`ranks_per_host`](Topology::ranks_per_host); every other group pays for the
/// slower link.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Consecutive ranks that share a host.
    pub ranks_per_host: usize,
    /// Fixed cost of a call, in microseconds.
    pub launch_us: f64,
    /// The link between ranks of one host.
    pub inside: Link,
    /// The link between ranks of different hosts, per rank.
    pub between: Link,
}

/// One kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time of one hop, in microseconds.
    pub latency_us: f64,
    /// Bandwidth of one rank, in 10^9 bytes per second.
    pub gigabytes_per_s: f64,
}

impl Topology {
    /// The default links with this many ranks on a host.
    pub fn hosts(ranks_per_host: usize) -> Topology {
        Topology { ranks_per_host: ranks_per_host.max(1), ..Topology::default() }
    }

    /// The link that a group pays for whose ranks are at most `extent` apart.
    fn link(&self, extent: usize) -> Link {
        if extent < self.ranks_per_host { self.inside } else { self.between }
    }

    /// Whether all groups of a mesh pay for the same link.
    pub(super) fn is_uniform(&self, mesh: &Mesh) -> bool {
        let extent: usize = mesh.axes().iter().map(|axis| axis.offset(axis.size() - 1)).sum();
        self.inside == self.between || extent < self.ranks_per_host || self.ranks_per_host <= 1
    }

    /// The time in which a rank receives a gigabyte over the faster link, in nanoseconds.
    pub(super) fn least_slowness(&self) -> u128 {
        slowness(self.inside).min(slowness(self.between))
    }

    /// The time in which a rank of a group receives a gigabyte, in nanoseconds.
    pub(super) fn slowness(&self, group: Group) -> u128 {
        slowness(self.link(group.extent))
    }

    /// Time of a call over `group` before and beside the transfer of its bytes.
    pub(super) fn latency_us(&self, kind: StepKind, group: Group) -> f64 {
        let rounds = match kind {
            StepKind::Slice | StepKind::Fill | StepKind::Pad => return 0.0,
            StepKind::AllReduce => 2.0,
            StepKind::AllGather | StepKind::ReduceScatter | StepKind::Exchange => 1.0,
        };
        let hops = f64::from(hops(group.size as u128));
        self.launch_us + rounds * hops * self.link(group.extent).latency_us
    }

    /// Time in which one rank of `group` receives `bytes`.
    pub(super) fn transfer_us(&self, group: Group, bytes: f64) -> f64 {
        // 10^9 bytes per second are 10^3 bytes per microsecond.
        bytes / (self.link(group.extent).gigabytes_per_s * 1e3)
    }
}

/// Depth of a tree of `n` ranks.
pub(super) fn hops(n: u128) -> u32 {
    u128::BITS - n.saturating_sub(1).leading_zeros()
}

/// A whole number, so that sums of transfers are exact.
fn slowness(link: Link) -> u128 {
    (1e9 / link.gigabytes_per_s).round().max(1.0) as u128
}

impl Default for Topology {
    /// One host of any number of ranks; links as PyTorch's cost model assumes them (NVLink inside
    /// a host, InfiniBand between hosts).
    fn default() -> Topology {
        Topology {
            ranks_per_host: usize::MAX,
            launch_us: 6.6,
            inside: Link { latency_us: 0.6, gigabytes_per_s: 87.7 },
            between: Link { latency_us: 2.7, gigabytes_per_s: 19.3 },
        }
    }
}

/// The ranks that take part in one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// How many.
    pub size: usize,
    /// Distance from the first rank to the last.
    pub extent: usize,
}

impl Group {
    /// The group that the axes of a bit set span.
    pub(super) fn of_axes(space: &Space, axes: u32) -> Group {
        let mut group = Group { size: 1, extent: 0 };
        for axis in (0..space.n_axes()).filter(|axis| axes & (1 << axis) != 0) {
            group.size *= space.axis_size(axis);
            group.extent += space.axis_extent(axis);
        }
        group
    }
}
