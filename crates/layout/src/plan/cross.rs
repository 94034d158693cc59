//! From one mesh to another: what is pending is reduced where it is, the boxes are exchanged
//! directly between the ranks of both meshes, and what shall be pending becomes so where it
//! arrives.

use super::{
    Cost, Plan, PlanOptions, Step, StepKind, Topology,
    state::{MAX_EXACT_COORDS, Space},
    topology::Group,
    volume,
};
use crate::{Layout, Placement, Result};

pub(super) fn plan(from: &Layout, to: &Layout, options: &PlanOptions) -> Result<Plan> {
    let arrives = without_partials(to, Placement::Replicate)?;
    let mut best: Option<(f64, Vec<Step>)> = None;
    for leaves in departures(from)? {
        let mut steps = Plan::with_options(from, &leaves, options)?.steps;
        steps.push(Step {
            kind: StepKind::Exchange,
            axes: Vec::new(),
            from: leaves,
            to: arrives.clone(),
        });
        let time_us: f64 = steps.iter().map(|step| step.cost(&options.topology).time_us()).sum();
        if best.as_ref().is_none_or(|(best_us, _)| time_us < *best_us) {
            best = Some((time_us, steps));
        }
    }
    let mut steps = best.map(|(_, steps)| steps).unwrap_or_default();
    steps.extend(Plan::with_options(&arrives, to, options)?.steps);
    Ok(Plan { from: from.clone(), to: to.clone(), steps })
}

/// The layouts without pending axes from which the exchange may start: what is pending reduced
/// everywhere, or scattered along one of the dims, which halves the bytes.
fn departures(from: &Layout) -> Result<Vec<Layout>> {
    if !from.is_partial() {
        return Ok(vec![from.clone()]);
    }
    let mut departures = vec![without_partials(from, Placement::Replicate)?];
    // Scattering cuts last, so it leaves an explicit order as it is only in left-to-right form.
    if from.order().is_left_to_right() {
        for dim in 0..from.n_dims() {
            departures.push(without_partials(from, Placement::Shard(dim))?);
        }
    }
    Ok(departures)
}

/// The layout with every pending axis placed otherwise.
fn without_partials(layout: &Layout, instead: Placement) -> Result<Layout> {
    if !layout.is_partial() {
        return Ok(layout.clone());
    }
    let replaced =
        |placement: &Placement| if placement.reduce_op().is_some() { instead } else { *placement };
    let placements: Vec<Placement> = layout.placements().iter().map(replaced).collect();
    match instead {
        Placement::Shard(_) => layout.with_placements(&placements),
        Placement::Replicate | Placement::Partial(_) => {
            let (shape, order) = (layout.global_shape(), layout.order().clone());
            Layout::intern(shape, layout.dtype(), layout.mesh(), &placements, order)
        }
    }
}

/// Whether the rank at `sender` is the one from which the rank at `receiver` takes what `sender`
/// holds.
///
/// Among the ranks that hold the same shard it is the receiver itself, if it is one of them; else
/// receivers spread over them by their rank.
pub(super) fn is_source(from: &Layout, sender: &[usize], to: &Layout, receiver: &[usize]) -> bool {
    let cuts = |axis: usize| from.placements()[axis].shard_dim().is_some();
    let Ok(receiver_rank) = to.mesh().rank_at(receiver) else { return false };
    if let Some(own) = from.mesh().coord_of(receiver_rank) {
        let has_it_already = (0..sender.len()).all(|axis| !cuts(axis) || own[axis] == sender[axis]);
        if has_it_already {
            return own == sender;
        }
    }
    let mut spread = receiver_rank;
    (0..sender.len()).filter(|axis| !cuts(*axis)).all(|axis| {
        let size = from.mesh().axis_size(axis);
        let chosen = spread % size;
        spread /= size;
        sender[axis] == chosen
    })
}

/// What the exchange between two meshes costs.
pub(super) fn exchange_cost(from: &Layout, to: &Layout, topology: &Topology) -> Cost {
    let n_receivers = to.mesh().size();
    let sampled = n_receivers > MAX_EXACT_COORDS;
    let n_samples = n_receivers.min(MAX_EXACT_COORDS);
    let mut received = 0u128;
    for sample in 0..n_samples {
        // Evenly spread over the coordinates; an odd step per axis keeps inner axes varied.
        let mut number =
            if sampled { sample * (n_receivers / n_samples) + sample % 7 } else { sample };
        let mut coord = vec![0; to.mesh().n_axes()];
        for axis in (0..coord.len()).rev() {
            coord[axis] = number % to.mesh().axis_size(axis);
            number /= to.mesh().axis_size(axis);
        }
        let rank = to.mesh().rank_at(&coord).unwrap_or_default();
        let has: u128 = match from.mesh().coord_of(rank) {
            Some(own) => {
                let both =
                    |dim| from.intervals(dim, &own).overlap(&to.intervals(dim, &coord)) as u128;
                (0..to.n_dims()).map(both).product()
            }
            None => 0,
        };
        received += to.local_numel(&coord) as u128 - has;
    }
    let bytes_sent = received * n_receivers as u128 / n_samples as u128 * to.dtype().size() as u128;
    let largest = |layout: &Layout| {
        let space = Space::new(layout, layout);
        volume::largest_local_bytes(&space, &space.state(layout))
    };
    let last_rank = |layout: &Layout| {
        let mesh = layout.mesh();
        mesh.base() + mesh.axes().iter().map(|axis| axis.offset(axis.size() - 1)).sum::<usize>()
    };
    let first = from.mesh().base().min(to.mesh().base());
    let extent = last_rank(from).max(last_rank(to)) - first;
    let group =
        Group { size: (from.mesh().size().saturating_add(n_receivers)).min(extent + 1), extent };
    let bytes_per_rank = bytes_sent as f64 / n_receivers as f64;
    Cost {
        bytes_sent,
        bytes_per_rank,
        calls: 1,
        peak_bytes: largest(from).saturating_add(largest(to)),
        latency_us: topology.latency_us(StepKind::Exchange, group),
        transfer_us: topology.transfer_us(group, bytes_per_rank),
    }
}
