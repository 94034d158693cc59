//! All ranks of a mesh in plain loops: what a plan does to data, without threads or a world.

use std::collections::HashMap;

use dtensor_layout::{
    IndexBox, Layout, Placement, ReduceOp,
    plan::{Plan, Step, StepKind},
};

/// What every rank holds, by coordinate, in row-major order of its local shape.
pub type Ranks = HashMap<Vec<usize>, Vec<f64>>;

/// A value of the whole tensor for every global index. Small integers, so that sums are exact.
pub fn global_value(index: &[usize]) -> f64 {
    index.iter().fold(7.0, |value, i| value * 13.0 + *i as f64)
}

/// Lays the global values out; pending axes get contributions of mixed signs that only together
/// give the value.
pub fn scatter(layout: &Layout) -> Ranks {
    let held = |coord: Vec<usize>| {
        let values = local_indices(layout, &coord)
            .iter()
            .map(|index| contribution(layout, &coord, index))
            .collect();
        (coord, values)
    };
    layout.mesh().coords().map(held).collect()
}

/// Runs every step; returns what the ranks hold and how many elements crossed between ranks.
pub fn run(plan: &Plan, mut ranks: Ranks) -> (Ranks, u128) {
    let mut moved = 0;
    for step in plan.steps() {
        ranks = run_step(step, &ranks, &mut moved);
    }
    (ranks, moved)
}

/// Panics unless the ranks hold exactly the global values.
#[track_caller]
pub fn check(layout: &Layout, ranks: &Ranks, context: &str) {
    for coord in layout.mesh().coords() {
        // Pending: reduce over all ranks that differ only on pending axes.
        let pending: Vec<(usize, ReduceOp)> = layout
            .placements()
            .iter()
            .enumerate()
            .filter_map(|(axis, placement)| placement.reduce_op().map(|op| (axis, op)))
            .collect();
        let members =
            spread(layout, &coord, &pending.iter().map(|(axis, _)| *axis).collect::<Vec<_>>());
        for (position, index) in local_indices(layout, &coord).iter().enumerate() {
            let values: Vec<f64> = members.iter().map(|member| ranks[member][position]).collect();
            let value = reduce(layout, &pending, &values);
            assert_eq!(value, global_value(index), "{context}\nat {coord:?}, index {index:?}");
        }
        assert_eq!(ranks[&coord].len(), layout.local_numel(&coord), "{context}\nat {coord:?}");
    }
}

fn run_step(step: &Step, ranks: &Ranks, moved: &mut u128) -> Ranks {
    let same_mesh = step.from.mesh() == step.to.mesh();
    let receive = |receiver: Vec<usize>| {
        let n_elements = step.to.local_numel(&receiver);
        let mut parts: Vec<Vec<f64>> = vec![Vec::new(); n_elements];
        let senders =
            if same_mesh { step.group(&receiver) } else { step.from.mesh().coords().collect() };
        let mut n_received = 0;
        for sender in senders {
            let is_self = step.from.mesh().rank_at(&sender) == step.to.mesh().rank_at(&receiver);
            for shared in step.boxes(&sender, &receiver) {
                let source = positions(&step.from, &sender, &shared);
                let target = positions(&step.to, &receiver, &shared);
                for (source, target) in source.into_iter().zip(target) {
                    parts[target].push(ranks[&sender][source]);
                    n_received += u128::from(!is_self);
                }
            }
        }
        // The same bytes as the formulas count: an all-reduce is a reduce-scatter and a gathering,
        // so that every rank receives 2 (g - 1) / g of the elements.
        let group_size = step.group(&receiver).len() as u128;
        n_received = match step.kind {
            StepKind::AllReduce => 2 * (group_size - 1) * n_elements as u128,
            StepKind::ReduceScatter => n_received * group_size,
            _ => n_received * group_size,
        };
        let values = parts.into_iter().map(|part| combine(step, &receiver, &part)).collect();
        (n_received, group_size, receiver, values)
    };
    let mut after = Ranks::new();
    let mut weighted = 0;
    let mut weight = 1;
    for (n_received, group_size, receiver, values) in step.to.mesh().coords().map(receive) {
        weighted += n_received;
        weight = group_size;
        after.insert(receiver, values);
    }
    *moved += weighted / weight;
    after
}

/// What a rank makes of the parts that it received for one element.
fn combine(step: &Step, receiver: &[usize], parts: &[f64]) -> f64 {
    let op_after = |axis: &usize| step.to.placements()[*axis].reduce_op();
    match step.kind {
        StepKind::AllGather | StepKind::Exchange | StepKind::Slice => {
            assert_eq!(parts.len(), 1, "{step}: every element is received exactly once");
            parts[0]
        }
        StepKind::AllReduce | StepKind::ReduceScatter => {
            let pending: Vec<_> =
                step.axes.iter().map(|axis| (*axis, step.from.placements()[*axis])).collect();
            let pending: Vec<_> =
                pending.into_iter().map(|(axis, p)| (axis, p.reduce_op().unwrap())).collect();
            reduce(&step.from, &pending, parts)
        }
        StepKind::Fill => step.axes.iter().fold(parts[0], |value, axis| match op_after(axis) {
            Some(ReduceOp::Sum) if receiver[*axis] != 0 => 0.0,
            Some(ReduceOp::Product) if receiver[*axis] != 0 => 1.0,
            _ => value,
        }),
        StepKind::Pad => {
            assert!(parts.len() <= 1);
            parts.first().copied().unwrap_or(0.0)
        }
    }
}

fn reduce(layout: &Layout, pending: &[(usize, ReduceOp)], values: &[f64]) -> f64 {
    let Some((_, op)) = pending.first() else { return values[0] };
    let averaged = pending.iter().filter(|(_, op)| *op == ReduceOp::Avg);
    let divisor: usize = averaged.map(|(axis, _)| layout.mesh().axis_size(*axis)).product();
    let fold = |f: fn(f64, f64) -> f64| values.iter().copied().reduce(f).unwrap();
    match op {
        ReduceOp::Sum | ReduceOp::Avg => fold(|a, b| a + b) / divisor as f64,
        ReduceOp::Max => fold(f64::max),
        ReduceOp::Min => fold(f64::min),
        ReduceOp::Product => fold(|a, b| a * b),
    }
}

/// This rank's contribution to the value at a global index.
fn contribution(layout: &Layout, coord: &[usize], index: &[usize]) -> f64 {
    let value = global_value(index);
    let pending: Vec<usize> =
        (0..coord.len()).filter(|axis| layout.placements()[*axis].reduce_op().is_some()).collect();
    let Some(op) = pending.first().and_then(|axis| layout.placements()[*axis].reduce_op()) else {
        return value;
    };
    let (mut number, mut n_members, mut divisor) = (0, 1, 1.0);
    for axis in pending {
        let size = layout.mesh().axis_size(axis);
        number = number * size + coord[axis];
        n_members *= size;
        if layout.placements()[axis] == Placement::Partial(ReduceOp::Avg) {
            divisor *= size as f64;
        }
    }
    let noise =
        |number: usize| ((number * 37 + index.iter().sum::<usize>() * 11) % 17) as f64 - 8.0;
    let last = number == n_members - 1;
    match op {
        ReduceOp::Sum | ReduceOp::Avg if last => {
            value * divisor - (0..number).map(noise).sum::<f64>()
        }
        ReduceOp::Sum | ReduceOp::Avg => noise(number),
        ReduceOp::Max if last => value,
        ReduceOp::Max => value - 1.0 - noise(number).abs(),
        ReduceOp::Min if last => value,
        ReduceOp::Min => value + 1.0 + noise(number).abs(),
        // Powers of two divide exactly.
        ReduceOp::Product if last => value / 2f64.powi(number as i32),
        ReduceOp::Product => 2.0,
    }
}

/// The coordinates that differ from `coord` only on `axes`.
fn spread(layout: &Layout, coord: &[usize], axes: &[usize]) -> Vec<Vec<usize>> {
    let agrees = |other: &Vec<usize>| {
        (0..coord.len()).all(|axis| axes.contains(&axis) || other[axis] == coord[axis])
    };
    layout.mesh().coords().filter(agrees).collect()
}

/// The global indices that a rank holds, in the order of its memory.
fn local_indices(layout: &Layout, coord: &[usize]) -> Vec<Vec<usize>> {
    let mut indices = vec![vec![]];
    for dim in 0..layout.n_dims() {
        let held: Vec<usize> = layout.intervals(dim, coord).iter().flatten().collect();
        indices = indices
            .into_iter()
            .flat_map(|done: Vec<usize>| {
                held.iter().map(move |i| [done.as_slice(), &[*i]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    indices
}

/// Positions in a rank's memory of the elements of a box, in the order of the box.
fn positions(layout: &Layout, coord: &[usize], global: &IndexBox) -> Vec<usize> {
    let local = layout.local_box(coord, global).expect("a rank holds what it sends and receives");
    let shape = layout.local_shape(coord);
    local.0.iter().zip(&shape).fold(vec![0], |done, (range, size)| {
        done.into_iter().flat_map(|before| range.clone().map(move |i| before * size + i)).collect()
    })
}
