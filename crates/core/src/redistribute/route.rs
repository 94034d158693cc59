//! A plan, made ready for one rank: groups, counts and boxes are worked out once.

use dtensor_comm::Group;
use dtensor_layout::{
    Layout, ReduceOp,
    plan::{Plan, Step, StepKind, Topology},
};

use super::parts::Parts;
use crate::{DeviceMesh, Error, Result};

/// The way from one layout to another for one rank.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) plan: Plan,
    pub(crate) hops: Vec<Hop>,
    /// Bytes that cross from one rank to another, over all ranks; 0 if and only if it is local.
    pub(crate) bytes_sent: u128,
}

/// One step of a [`Route`].
#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) kind: StepKind,
    /// Bytes that this step sends, over all ranks.
    pub(crate) bytes_sent: u128,
    /// Shape of what the rank holds afterwards.
    pub(crate) shape: Vec<usize>,
    pub(crate) work: Work,
}

impl Hop {
    /// Whether ranks communicate: not over an axis of one rank.
    pub(crate) fn communicates(&self) -> bool {
        !self.kind.is_local() && !matches!(self.work, Work::Keep)
    }
}

/// What the rank does.
#[derive(Debug)]
pub(crate) enum Work {
    /// It is not on the mesh, or the world is a fake: nothing but a shape.
    Nothing,
    /// It is alone, so that it has what it should have.
    Keep,
    AllReduce {
        group: Group,
        reduction: Reduction,
    },
    /// `send` has one entry, `recv` one per member.
    AllGather {
        group: Group,
        send: Parts,
        recv: Parts,
    },
    ReduceScatter {
        group: Group,
        send: Parts,
        recv: Parts,
        reduction: Reduction,
    },
    Exchange {
        group: Group,
        send: Option<Parts>,
        recv: Option<Parts>,
    },
    Slice {
        send: Parts,
        recv: Parts,
    },
    /// What the rank holds instead of its copy, if it is not the one that keeps it.
    Fill {
        instead: Option<ReduceOp>,
    },
    Pad {
        send: Parts,
        recv: Parts,
    },
}

/// How contributions are combined: by one reduction, and then divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) op: ReduceOp,
    /// Above 1 where sums and means are pending on different axes of one call.
    pub(crate) divisor: usize,
}

impl Route {
    /// The cheapest one. `from_mesh` and `to_mesh` are those of the layouts.
    pub(crate) fn new(
        op: &'static str,
        from: (&Layout, &DeviceMesh),
        to: (&Layout, &DeviceMesh),
    ) -> Result<Route> {
        let plan = Plan::new(from.0, to.0).map_err(Error::layout(op))?;
        let topology = Topology::default();
        let mut hops = Vec::with_capacity(plan.steps().len());
        for step in plan.steps() {
            let bytes_sent = step.cost(&topology).bytes_sent;
            let same_mesh = step.from.mesh() == step.to.mesh();
            // Steps before an exchange between meshes are on the first mesh, those after it on the second.
            let mesh = if step.to.mesh() == from.0.mesh() { from.1 } else { to.1 };
            let shape = match mesh.coord() {
                Some(coord) => step.to.local_shape(coord),
                None => vec![0],
            };
            let alone = same_mesh
                && !step.kind.is_local()
                && step.axes.iter().all(|axis| step.from.mesh().axis_size(*axis) == 1);
            let work = match (mesh.is_fake(), same_mesh) {
                _ if alone => Work::Keep,
                (true, _) => Work::Nothing,
                (false, true) => within(op, step, mesh)?,
                (false, false) => between(op, step, from.1, to.1)?,
            };
            hops.push(Hop { kind: step.kind, bytes_sent, shape, work });
        }
        let bytes_sent = hops.iter().map(|hop| hop.bytes_sent).sum();
        Ok(Route { plan, hops, bytes_sent })
    }

    pub(crate) fn is_local(&self) -> bool {
        !self.hops.iter().any(Hop::communicates)
    }

    /// Whether what the rank holds at the end may be a view of what it held before.
    pub(crate) fn ends_in_a_view(&self) -> bool {
        matches!(self.hops.last(), Some(Hop { work: Work::Slice { .. }, .. }))
    }
}

/// A step on one mesh.
fn within(op: &'static str, step: &Step, mesh: &DeviceMesh) -> Result<Work> {
    let Some(coord) = mesh.coord() else { return Ok(Work::Nothing) };
    let members = step.group(coord);
    let group = || -> Result<Group> { Ok(mesh.group_of(op, &step.axes)?.tag(op)) };
    let own =
        |layout: &Layout| Parts::new(layout, coord, std::iter::once(step.boxes(coord, coord)));
    Ok(match step.kind {
        StepKind::AllReduce => Work::AllReduce { group: group()?, reduction: Reduction::of(step) },
        StepKind::AllGather => Work::AllGather {
            group: group()?,
            send: own(&step.from),
            recv: Parts::new(
                &step.to,
                coord,
                members.iter().map(|member| step.boxes(member, coord)),
            ),
        },
        StepKind::ReduceScatter => Work::ReduceScatter {
            group: group()?,
            send: Parts::new(
                &step.from,
                coord,
                members.iter().map(|member| step.boxes(coord, member)),
            ),
            recv: own(&step.to),
            reduction: Reduction::of(step),
        },
        StepKind::Exchange => Work::Exchange {
            group: group()?,
            send: Some(Parts::new(
                &step.from,
                coord,
                members.iter().map(|member| step.boxes(coord, member)),
            )),
            recv: Some(Parts::new(
                &step.to,
                coord,
                members.iter().map(|member| step.boxes(member, coord)),
            )),
        },
        StepKind::Slice => Work::Slice { send: own(&step.from), recv: own(&step.to) },
        StepKind::Pad => Work::Pad { send: own(&step.from), recv: own(&step.to) },
        StepKind::Fill => {
            let gives_up = |axis: &&usize| {
                let op = step.to.placements()[**axis].reduce_op();
                coord[**axis] != 0 && matches!(op, Some(ReduceOp::Sum | ReduceOp::Product))
            };
            let axis = step.axes.iter().find(gives_up);
            Work::Fill { instead: axis.and_then(|axis| step.to.placements()[*axis].reduce_op()) }
        }
    })
}

/// An exchange between two meshes, among the ranks of both.
fn between(op: &'static str, step: &Step, from: &DeviceMesh, to: &DeviceMesh) -> Result<Work> {
    let (sender, receiver) = (from.coord(), to.coord());
    if sender.is_none() && receiver.is_none() {
        return Ok(Work::Nothing);
    }
    let mut ranks: Vec<usize> = from.mesh().ranks().chain(to.mesh().ranks()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let group = from.world().subgroup(&ranks).map_err(Error::comm(op))?.tag(op);
    let send = sender.map(|own| {
        let boxes = ranks.iter().map(|rank| match to.mesh().coord_of(*rank) {
            Some(receiver) => step.boxes(own, &receiver),
            None => Vec::new(),
        });
        Parts::new(&step.from, own, boxes)
    });
    let recv = receiver.map(|own| {
        let boxes = ranks.iter().map(|rank| match from.mesh().coord_of(*rank) {
            Some(sender) => step.boxes(&sender, own),
            None => Vec::new(),
        });
        Parts::new(&step.to, own, boxes)
    });
    Ok(Work::Exchange { group, send, recv })
}

impl Reduction {
    fn of(step: &Step) -> Reduction {
        let pending = |axis: &usize| step.from.placements()[*axis].reduce_op();
        let ops: Vec<ReduceOp> = step.axes.iter().filter_map(pending).collect();
        let op = ops.first().copied().unwrap_or(ReduceOp::Sum);
        if ops.iter().all(|other| *other == op) {
            return Reduction { op, divisor: 1 };
        }
        // Only sums and means mix.
        let means = step.axes.iter().filter(|axis| pending(axis) == Some(ReduceOp::Avg));
        let divisor = means.map(|axis| step.from.mesh().axis_size(*axis)).product();
        Reduction { op: ReduceOp::Sum, divisor }
    }
}
