//! Plans: how a tensor gets from one layout to another, as values.
//!
//! One axis at a time, the steps are those of PyTorch's DTensor:
//!
//! | from \ to | `R` | `S(j)` | `P(op)` |
//! |---|---|---|---|
//! | `R` | - | slice (local) | fill (local) |
//! | `S(i)` | all_gather | exchange | `P(sum)`: pad (local); other: by way of `R` |
//! | `P(op)` | all_reduce | reduce_scatter | same `op`: -; other: refused |
//!
//! ```text
//! all_gather      [A] / [B] / [C]        => [A B C] / [A B C] / [A B C]
//! exchange        [A1 A2] / [B1 B2]      => [A1 B1] / [A2 B2]
//! all_reduce      +[A] / +[B] / +[C]     => [A+B+C] / [A+B+C] / [A+B+C]
//! reduce_scatter  +[A1 A2] / +[B1 B2]    => [A1+B1] / [A2+B2]
//! slice           [A B C] on each        => [A] / [B] / [C]
//! fill            [A] on each            => +[A] / +[0] / +[0]
//! pad             [A] / [B] / [C]        => +[A 0 0] / +[0 B 0] / +[0 0 C]
//! ```
//!
//! One step may span several axes: a call over their product. Because every rank's boxes are known
//! exactly, that is right for uneven shards too. The exchange is the general step: every rank
//! receives exactly the boxes that it lacks, from ranks that differ from it only on the axes named.
//!
//! A plan is the cheapest path of such steps under a [`Topology`], among those whose intermediate
//! layouts need no more memory per rank than the larger of the two ends. It never moves more bytes
//! than [`Plan::greedy`]. Nothing is proportional to the number of ranks.
//!
//! Cheapest means: least time of transfers, then least latency. Where all links are alike, no plan
//! costs more than going by way of a third layout, with two exceptions: an axis that is pending at
//! both ends is not reduced in between, and where several axes become pending as sums not every
//! order of shards to be padded is tried. With links of two speeds the search is not exhaustive.
//!
//! ```
//! use dtensor_layout::{DType, Layout, Mesh, plan::{Plan, Topology}};
//!
//! let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
//! let from = Layout::parse(&[1024, 512], DType::F32, &mesh, "S(0), P(sum)")?;
//! let to = Layout::parse(&[1024, 512], DType::F32, &mesh, "S(0), S(1)")?;
//! let plan = Plan::new(&from, &to)?;
//! assert_eq!(plan.to_string(), "\
//! f32[1024, 512] on dp=2,tp=4: [S(0), P(sum)] -> [S(0), S(1)]
//!   1. reduce_scatter over tp -> [S(0), S(1)]");
//! // Each of the 8 ranks receives 3/4 of its 1 MiB.
//! assert_eq!(plan.cost(&Topology::default()).bytes_sent, 8 * 3 * 1024 * 1024 / 4);
//! assert_eq!(plan.to_string().parse(), Ok(plan));
//! # Ok::<(), dtensor_layout::LayoutError>(())
//! ```

mod cross;
mod greedy;
mod length;
mod neighbours;
mod search;
mod state;
mod text;
mod topology;
mod transfer;
mod volume;

use std::fmt;

use crate::{Layout, LayoutError, Placement, Result};
use length::Length;
use neighbours::Hop;
use state::Space;
pub use topology::{Link, Topology};

/// The steps from one layout to another.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    from: Layout,
    to: Layout,
    steps: Vec<Step>,
}

/// One step of a [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub kind: StepKind,
    /// The axes of `from`'s mesh over which ranks communicate, or that a local step changes.
    /// Empty for an exchange between meshes, which is among all ranks of both.
    pub axes: Vec<usize>,
    /// The layout before.
    pub from: Layout,
    /// The layout after.
    pub to: Layout,
}

/// What a [`Step`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Every rank receives the shards of all others of its group.
    AllGather,
    /// Pending values are reduced; every rank has the result.
    AllReduce,
    /// Pending values are reduced; every rank has its shard of the result.
    ReduceScatter,
    /// Every rank receives exactly the boxes that it lacks.
    Exchange,
    /// Every rank keeps a part of what it has. Local.
    Slice,
    /// The value becomes pending: for sum and product the first rank of the axis keeps it and the
    /// others take 0 or 1, for the other reductions all keep it. Local.
    Fill,
    /// The shard becomes pending as a sum: zeros where the other shards are. Local.
    Pad,
}

/// What to plan by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanOptions {
    /// What communication costs.
    pub topology: Topology,
    /// Let intermediate layouts need more memory than both ends, where that is faster.
    pub unbounded_memory: bool,
}

/// What a step or a plan costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bytes that cross from one rank to another, over all ranks. Exact, uneven shards included,
    /// but for an exchange on a mesh of more than 64 ranks: there, what stays on its rank is
    /// counted as it is on average.
    pub bytes_sent: u128,
    /// The same, per rank, on average.
    pub bytes_per_rank: f64,
    /// Collective calls.
    pub calls: usize,
    /// Bytes of input and output of the step that needs the most, on the rank that has the most.
    pub peak_bytes: usize,
    /// Estimated time of calls beside their transfers, in microseconds.
    pub latency_us: f64,
    /// Estimated time of transfers, in microseconds.
    pub transfer_us: f64,
}

impl Plan {
    /// The cheapest plan with the default [`PlanOptions`].
    ///
    /// Both layouts must have the same global shape and dtype. Their meshes may differ. An axis
    /// that is pending in both must be so by the same reduction.
    pub fn new(from: &Layout, to: &Layout) -> Result<Plan> {
        Plan::with_options(from, to, &PlanOptions::default())
    }

    /// The cheapest plan.
    pub fn with_options(from: &Layout, to: &Layout, options: &PlanOptions) -> Result<Plan> {
        check(from, to)?;
        if from == to {
            return Ok(Plan { from: from.clone(), to: to.clone(), steps: Vec::new() });
        }
        if from.mesh() != to.mesh() {
            return cross::plan(from, to, options);
        }
        let links_differ = !options.topology.is_uniform(from.mesh());
        let space = Space::for_search(from, to, links_differ);
        let (start, goal) = (space.state(from), space.state(to));
        let held = |state| volume::total_elements(&space, state);
        let bound = match options.unbounded_memory {
            true => u128::MAX,
            false => held(&start).max(held(&goal)),
        };
        let topology = &options.topology;
        let path = |bound| {
            let hops = search::cheapest_path(&space, &start, &goal, topology, bound);
            hops.ok_or_else(|| {
                cannot(from, to, "no sequence of steps leads there; please report this")
            })
        };
        let mut hops = path(bound)?;
        // Memory may not be saved at the price of bytes. The greedy plan is among all paths, so
        // without the bound the shortest path does not transfer more.
        if let Some(greedy) = greedy::hops(&space, from, to) {
            let length = |hops: &[Hop]| Length::of_path(&space, topology, &start, hops);
            if length(&hops).transfers_more_than(&length(&greedy)) {
                hops = path(u128::MAX)?;
            }
        }
        Plan::of_hops(&space, from, to, &hops)
    }

    /// The plan that PyTorch makes, for comparison: one axis at a time, first from the inner axes
    /// to the outer to undo nested shards, then from the outer to the inner. An error where the
    /// meshes differ or an explicit shard order is involved.
    pub fn greedy(from: &Layout, to: &Layout) -> Result<Plan> {
        check(from, to)?;
        let space = Space::new(from, to);
        let hops = (from.mesh() == to.mesh()).then(|| greedy::hops(&space, from, to)).flatten();
        let hops = hops.ok_or_else(|| {
            cannot(from, to, "the greedy plan is for one mesh and left-to-right orders")
        })?;
        Plan::of_hops(&space, from, to, &hops)
    }

    /// Where it starts.
    pub fn from(&self) -> &Layout {
        &self.from
    }

    /// Where it ends.
    pub fn to(&self) -> &Layout {
        &self.to
    }

    /// Its steps; none if the layouts are equal.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What it costs: sums over its steps, and the largest of their peaks.
    pub fn cost(&self, topology: &Topology) -> Cost {
        let zero = Cost {
            bytes_sent: 0,
            bytes_per_rank: 0.0,
            calls: 0,
            peak_bytes: 0,
            latency_us: 0.0,
            transfer_us: 0.0,
        };
        self.steps.iter().map(|step| step.cost(topology)).fold(zero, |sum, step| Cost {
            bytes_sent: sum.bytes_sent + step.bytes_sent,
            bytes_per_rank: sum.bytes_per_rank + step.bytes_per_rank,
            calls: sum.calls + step.calls,
            peak_bytes: sum.peak_bytes.max(step.peak_bytes),
            latency_us: sum.latency_us + step.latency_us,
            transfer_us: sum.transfer_us + step.transfer_us,
        })
    }

    /// Whether an intermediate layout needs more memory than both ends do, counting shards as if
    /// they were even.
    ///
    /// A greedy plan may, and one made with [`PlanOptions::unbounded_memory`]. Any other only
    /// where a single step must: where the target is pending as a sum and making it so early, in
    /// full size, is what saves the bytes that the greedy plan saves.
    pub fn exceeds_memory_bound(&self) -> bool {
        // On average over the ranks of the layout's own mesh, which may differ from step to step.
        let held = |layout: &Layout| {
            let space = Space::new(layout, layout);
            volume::total_elements(&space, &space.state(layout)) / layout.mesh().size() as u128
        };
        let bound = held(&self.from).max(held(&self.to));
        self.steps.iter().any(|step| held(&step.to) > bound)
    }

    fn of_hops(space: &Space, from: &Layout, to: &Layout, hops: &[Hop]) -> Result<Plan> {
        let mut steps = Vec::with_capacity(hops.len());
        let mut before = from.clone();
        for (kind, axes, state) in hops {
            let after = space.layout(state)?;
            let axes = (0..space.n_axes()).filter(|axis| axes & (1 << axis) != 0).collect();
            steps.push(Step { kind: *kind, axes, from: before, to: after.clone() });
            before = after;
        }
        Ok(Plan { from: from.clone(), to: to.clone(), steps })
    }
}

impl Step {
    /// What the step costs.
    pub fn cost(&self, topology: &Topology) -> Cost {
        if self.from.mesh() != self.to.mesh() {
            return cross::exchange_cost(&self.from, &self.to, topology);
        }
        let space = Space::new(&self.from, &self.to);
        let (from, to) = (space.state(&self.from), space.state(&self.to));
        let axes = self.axes.iter().fold(0, |axes, axis| axes | 1 << axis);
        let group = topology::Group::of_axes(&space, axes);
        let elements = volume::elements_moved(&space, self.kind, group.size, &from, &to);
        let bytes_sent = elements * space.dtype().size() as u128;
        let bytes_per_rank = bytes_sent as f64 / space.n_ranks() as f64;
        let peak = volume::largest_local_bytes(&space, &from)
            .saturating_add(volume::largest_local_bytes(&space, &to));
        Cost {
            bytes_sent,
            bytes_per_rank,
            calls: usize::from(!self.kind.is_local()),
            peak_bytes: peak,
            latency_us: topology.latency_us(self.kind, group),
            transfer_us: topology.transfer_us(group, bytes_per_rank),
        }
    }
}

impl Cost {
    /// Estimated time, in microseconds.
    pub fn time_us(&self) -> f64 {
        self.latency_us + self.transfer_us
    }
}

impl StepKind {
    /// Whether no rank communicates.
    pub fn is_local(self) -> bool {
        matches!(self, StepKind::Slice | StepKind::Fill | StepKind::Pad)
    }

    /// The name that a plan prints.
    pub fn name(self) -> &'static str {
        match self {
            StepKind::AllGather => "all_gather",
            StepKind::AllReduce => "all_reduce",
            StepKind::ReduceScatter => "reduce_scatter",
            StepKind::Exchange => "exchange",
            StepKind::Slice => "slice",
            StepKind::Fill => "fill",
            StepKind::Pad => "pad",
        }
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whatever makes two layouts impossible to connect.
fn check(from: &Layout, to: &Layout) -> Result<()> {
    if from.global_shape() != to.global_shape() {
        return Err(cannot(from, to, "the global shapes differ; reshape first"));
    }
    if from.dtype() != to.dtype() {
        return Err(cannot(from, to, "the dtypes differ; cast first"));
    }
    if from.mesh() != to.mesh() {
        return Ok(());
    }
    for (axis, placements) in from.placements().iter().zip(to.placements()).enumerate() {
        if let (Placement::Partial(a), Placement::Partial(b)) = placements
            && a != b
        {
            let axis = from.mesh().axes()[axis].name().to_string();
            return Err(LayoutError::PartialToPartial {
                from: *placements.0,
                to: *placements.1,
                axis,
            });
        }
    }
    Ok(())
}

fn cannot(from: &Layout, to: &Layout, why: &str) -> LayoutError {
    LayoutError::CannotRedistribute {
        from: format!("{from:?}"),
        to: format!("{to:?}"),
        why: why.to_string(),
    }
}
