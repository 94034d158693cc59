//! Which of an operation's rows to take, given where its operands lie.
//!
//! Each mesh axis takes one row of the rule. The rows taken are those for which the least data has to be
//! moved; among equals fewer calls, then fewer operands touched, then the order of the rule.
//!
//! Two things that would move less are not done, because they surprise later. An operand is never made
//! pending: that would be reduced more than once. And an axis on which no operand is cut cuts none: a sum
//! of copies and of a pending value is copies again, as its operands were, not shards that the next
//! operation has to gather.

use dtensor_layout::{
    Cut, Layout, Placement,
    rule::{Choices, Row, Rule},
};

use crate::{Error, Result, op::Meta};

/// Where the operands have to be, and where the results will be.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) operands: Vec<Layout>,
    pub(crate) results: Vec<Layout>,
}

/// A row that one axis may take.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) row: usize,
    pub(crate) cost: MoveCost,
}

/// What it costs to bring operands to the placements of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct MoveCost {
    /// Bytes that a rank receives, on average.
    pub(crate) bytes: f64,
    pub(crate) calls: u32,
    pub(crate) touched: u32,
}

/// The rows of a rule for operands in these layouts, with what each costs on each axis.
pub(crate) struct Considered {
    pub(crate) choices: Choices,
    /// Per axis, the cheapest first.
    pub(crate) axes: Vec<Vec<Candidate>>,
    /// The row that each axis takes.
    pub(crate) taken: Vec<usize>,
}

pub(crate) fn choose(
    op: &'static str,
    rule: &Rule,
    operands: &[&Layout],
    results: &[Meta],
    in_plain_order: bool,
) -> Result<Choice> {
    let considered = consider(op, rule, operands, results)?;
    let rows: Vec<&Row> =
        considered.taken.iter().map(|row| &considered.choices.rows()[*row]).collect();
    let orders = if in_plain_order {
        Vec::new()
    } else {
        orders(&considered.choices, &considered.taken, &rows, operands)
    };
    let mesh = operands[0].mesh();
    let place = |shape: &[usize], dtype, placement: &dyn Fn(&Row) -> Placement| {
        let placements: Vec<Placement> = rows.iter().map(|row| placement(row)).collect();
        let layout = match orders.is_empty() {
            true => Layout::new(shape, dtype, mesh, &placements),
            false => {
                let cuts = ordered(shape.len(), &placements, &orders);
                Layout::with_cuts(shape, dtype, mesh, &placements, &cuts)
            }
        };
        layout.map_err(Error::layout(op))
    };
    let targets = operands.iter().enumerate().map(|(operand, layout)| {
        place(layout.global_shape(), layout.dtype(), &|row| row.operands[operand])
    });
    let targets = targets.collect::<Result<Vec<_>>>()?;
    let results = results
        .iter()
        .enumerate()
        .map(|(result, meta)| place(&meta.shape, meta.dtype, &|row| row.results[result]));
    Ok(Choice { operands: targets, results: results.collect::<Result<Vec<_>>>()? })
}

/// Weighs the rows. There is always one: every tensor whole.
pub(crate) fn consider(
    op: &'static str,
    rule: &Rule,
    operands: &[&Layout],
    results: &[Meta],
) -> Result<Considered> {
    let shapes: Vec<&[usize]> = operands.iter().map(|layout| layout.global_shape()).collect();
    let choices = rule.choices(&shapes).map_err(Error::rule(op))?;
    let mesh = operands[0].mesh();
    let sizes = mesh.sizes();
    let bytes: Vec<f64> = operands.iter().map(|layout| local_bytes(layout)).collect();
    let mut axes = Vec::with_capacity(sizes.len());
    for (axis, size) in sizes.iter().enumerate() {
        let is_cut = |layout: &&Layout| layout.placements()[axis].shard_dim().is_some();
        let any_cut = operands.iter().any(is_cut);
        let mut candidates = Vec::new();
        for (number, row) in choices.rows().iter().enumerate() {
            let cuts = row.operands.iter().any(|placement| placement.shard_dim().is_some());
            if (cuts && !any_cut) || !keeps_values(row, operands, results) {
                continue;
            }
            let moves = operands.iter().zip(&row.operands).zip(&bytes);
            let mut cost = moves.map(|((layout, to), bytes)| {
                move_cost(layout.placements()[axis], *to, *bytes, *size as f64)
            });
            let total = cost.try_fold(MoveCost::default(), |sum, one| Some(sum.plus(one?)));
            candidates.extend(total.map(|cost| Candidate { row: number, cost }));
        }
        // Stable: among equals the order of the rule.
        candidates.sort_by(|a, b| a.cost.partial_cmp(&b.cost).unwrap_or(std::cmp::Ordering::Equal));
        axes.push(candidates);
    }
    let taken = cheapest(&choices, &axes, &sizes);
    Ok(Considered { choices, axes, taken })
}

/// Depth first over the axes, the cheapest rows first, leaving what cannot become the best.
fn cheapest(choices: &Choices, axes: &[Vec<Candidate>], sizes: &[usize]) -> Vec<usize> {
    // What the axes from this one on cost at least.
    let mut least = vec![MoveCost::default(); axes.len() + 1];
    for axis in (0..axes.len()).rev() {
        let first = axes[axis].first().map(|candidate| candidate.cost).unwrap_or_default();
        least[axis] = least[axis + 1].plus(first);
    }
    struct Search<'a> {
        choices: &'a Choices,
        axes: &'a [Vec<Candidate>],
        sizes: &'a [usize],
        least: &'a [MoveCost],
        taken: Vec<usize>,
        best: Option<(MoveCost, Vec<usize>)>,
    }
    impl Search<'_> {
        fn go(&mut self, cost: MoveCost) {
            let axis = self.taken.len();
            let bound = cost.plus(self.least[axis]);
            if self.best.as_ref().is_some_and(|(best, _)| bound >= *best) {
                return;
            }
            if axis == self.axes.len() {
                if self.choices.allows(&self.taken, self.sizes) {
                    self.best = Some((cost, self.taken.clone()));
                }
                return;
            }
            for candidate in &self.axes[axis] {
                self.taken.push(candidate.row);
                self.go(cost.plus(candidate.cost));
                self.taken.pop();
            }
        }
    }
    let mut search = Search { choices, axes, sizes, least: &least, taken: Vec::new(), best: None };
    search.go(MoveCost::default());
    // The first row, all whole, is allowed on every axis, so there is a best.
    search.best.map_or_else(|| vec![0; axes.len()], |(_, taken)| taken)
}

impl MoveCost {
    fn plus(self, other: MoveCost) -> MoveCost {
        MoveCost {
            bytes: self.bytes + other.bytes,
            calls: self.calls + other.calls,
            touched: self.touched + other.touched,
        }
    }
}

/// From one placement to another on an axis of `n` ranks, for `bytes` that a rank holds now. `None` where
/// there is no way, or none that should be taken unasked.
fn move_cost(from: Placement, to: Placement, bytes: f64, n: f64) -> Option<MoveCost> {
    use Placement::{Partial, Replicate, Shard};
    let moved = |bytes| Some(MoveCost { bytes, calls: u32::from(n > 1.0), touched: 1 });
    match (from, to) {
        _ if from == to => Some(MoveCost::default()),
        (_, Partial(_)) => None,
        (Replicate, _) => Some(MoveCost { bytes: 0.0, calls: 0, touched: 1 }),
        (Shard(_), Replicate) => moved(bytes * (n - 1.0)),
        (Shard(_), Shard(_)) => moved(bytes * (n - 1.0) / n),
        (Partial(_), Replicate) => moved(2.0 * bytes * (n - 1.0) / n),
        (Partial(_), Shard(_)) => moved(bytes * (n - 1.0) / n),
    }
}

/// Bytes that a rank holds, as if shards were even.
fn local_bytes(layout: &Layout) -> f64 {
    let cut = |(axis, placement): (usize, &Placement)| match placement.shard_dim() {
        Some(_) => layout.mesh().axis_size(axis) as f64,
        None => 1.0,
    };
    let parts: f64 = layout.placements().iter().enumerate().map(cut).product();
    // A tensor without elements is not free to move: the number of calls decides then.
    (layout.numel() * layout.dtype().size()) as f64 / parts
}

/// Whether contributions stay what they are. Integers that are contributions wrap around in their own
/// dtype, so they may not become wider before they are reduced; and a result must have the reduction.
fn keeps_values(row: &Row, operands: &[&Layout], results: &[Meta]) -> bool {
    let pending = row.operands.iter().zip(operands).filter(|(to, _)| to.reduce_op().is_some());
    let mut same_dtype = pending.map(|(_, layout)| {
        layout.dtype().is_float() || results.iter().all(|result| result.dtype == layout.dtype())
    });
    let supported = row
        .results
        .iter()
        .zip(results)
        .all(|(to, meta)| to.reduce_op().is_none_or(|op| op.supports(meta.dtype)));
    supported && same_dtype.all(|same| same)
}

/// An order of cuts other than from left to right, by the axes that it is an order of.
struct Order {
    axes: Vec<usize>,
    cuts: Vec<Cut>,
}

/// Where several axes cut one letter and an operand has them in an order of its own, all tensors take that
/// order: nothing has to be moved for it.
fn orders(choices: &Choices, taken: &[usize], rows: &[&Row], operands: &[&Layout]) -> Vec<Order> {
    let mut orders: Vec<Order> = Vec::new();
    if operands.iter().all(|layout| layout.order().is_left_to_right()) {
        return orders;
    }
    for (operand, layout) in operands.iter().enumerate() {
        for cuts in layout.order().dims() {
            let mut axes: Vec<usize> = cuts.iter().map(|cut| cut.axis).collect();
            axes.sort_unstable();
            let Some(first) = axes.first().copied() else { continue };
            let plain = cuts.is_sorted_by_key(|cut| cut.axis)
                && cuts.iter().all(|cut| cut.split_factor == 1);
            // These axes cut this letter, and no other axis does.
            let same_letter = |axis: &usize| taken[*axis] == taken[first];
            let stays = rows[first].operands[operand] == layout.placements()[first];
            let whole = (0..taken.len()).filter(same_letter).eq(axes.iter().copied());
            let known = orders.iter().any(|order| order.axes == axes);
            if !plain && stays && whole && !known && choices.cuts_whole_dims(taken[first]) {
                orders.push(Order { axes, cuts: cuts.to_vec() });
            }
        }
    }
    orders
}

fn ordered(n_dims: usize, placements: &[Placement], orders: &[Order]) -> Vec<Vec<Cut>> {
    (0..n_dims)
        .map(|dim| {
            let cut = |axis: &usize| placements[*axis] == Placement::Shard(dim);
            let axes: Vec<usize> = (0..placements.len()).filter(cut).collect();
            match orders.iter().find(|order| order.axes == axes) {
                Some(order) => order.cuts.clone(),
                None => axes.into_iter().map(|axis| Cut { axis, split_factor: 1 }).collect(),
            }
        })
        .collect()
}
