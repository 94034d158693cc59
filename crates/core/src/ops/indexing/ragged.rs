//! Parts whose sizes depend on values: ranks tell each other how much they have, and then put it into chunks
//! of the sizes that a layout has.

use std::ops::Range;

use dtensor_comm::{Values, ValuesMut};
use dtensor_layout::{Layout, Placement, plan::StepKind};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, DeviceMesh, Error, Result, debug,
    exchange::{Exchange, Run, members},
    op::{LocalContext, Meta, Op, Outputs},
};

/// What can be said of the results of an operation whose shapes depend on values: nothing, but that its
/// operands are right.
pub(in crate::ops) fn infer_by_values(op: &dyn Op, operands: &[Meta]) -> Result<Outputs<Meta>> {
    let metas = operands.iter().map(|meta| Tensor::meta(&meta.shape, meta.dtype));
    let metas = metas.collect::<Result<Vec<Tensor>, LocalError>>()?;
    match op.eval(&metas.iter().collect::<Vec<_>>(), &LocalContext::whole()) {
        Ok(results) => Ok(results.iter().map(Meta::of).collect()),
        Err(LocalError::Meta { .. }) => Ok(Outputs::new()),
        Err(error) => Err(error.into()),
    }
}

/// Refuses, for an operation whose shapes depend on values, a fake mesh, which has none, and a rank that is
/// not on the mesh: nobody tells it.
pub(in crate::ops) fn check_values(op: &'static str, operand: &DTensor) -> Result<()> {
    operand.mesh().own_coord(op)?;
    if operand.mesh().is_fake() {
        return Err(Error::Unsupported {
            op,
            what: "the shape of its result depends on values, and a fake mesh has none".into(),
            way_out: "run it on a mesh of real ranks",
        });
    }
    Ok(())
}

/// The axes on which one of these tensors is cut.
pub(in crate::ops) fn cut_axes(tensors: &[&DTensor]) -> Vec<usize> {
    let is_cut = |tensor: &&DTensor, axis: usize| tensor.placements()[axis].shard_dim().is_some();
    let n_axes = tensors.first().map_or(0, |tensor| tensor.mesh().n_axes());
    (0..n_axes).filter(|axis| tensors.iter().any(|tensor| is_cut(tensor, *axis))).collect()
}

/// Ranks that differ on some axes, in the order of their coordinates.
pub(in crate::ops) struct Line<'a> {
    pub(in crate::ops) op: &'static str,
    pub(in crate::ops) mesh: &'a DeviceMesh,
    /// Ascending.
    pub(in crate::ops) axes: &'a [usize],
}

impl Line<'_> {
    /// The coordinates of the ranks of the line that this rank is on.
    pub(in crate::ops) fn members(&self) -> Result<Vec<Vec<usize>>> {
        Ok(members(self.mesh, self.axes, self.mesh.own_coord(self.op)?))
    }

    /// The place of a coordinate in its line.
    pub(in crate::ops) fn position(&self, coord: &[usize]) -> usize {
        let sizes = self.axes.iter().map(|axis| (self.mesh.mesh().axis_size(*axis), coord[*axis]));
        sizes.fold(0, |position, (size, index)| position * size + index)
    }

    /// What every rank of the line says, in order. All say equally much.
    pub(in crate::ops) fn agree(&self, own: &[i64]) -> Result<Vec<Vec<i64>>> {
        let own = Tensor::from_slice(own, &[own.len()])?;
        let counts = vec![own.numel(); self.members()?.len()];
        let all = self.gather(&own, &counts)?.to_vec::<i64>()?;
        Ok(all.chunks(own.numel().max(1)).map(<[i64]>::to_vec).collect())
    }

    /// The elements of all ranks of the line, of which they have so many, one after the other.
    pub(in crate::ops) fn gather(&self, own: &Tensor, counts: &[usize]) -> Result<Tensor> {
        let dtype = own.dtype();
        let n: usize = counts.iter().sum();
        if counts.len() <= 1 {
            return Ok(own.contiguous().reshape(&[n])?);
        }
        let _sending = debug::sent(self.op, StepKind::AllGather, || {
            let lines = self.mesh.size() / counts.len();
            (n * (counts.len() - 1) * dtype.size() * lines) as u128
        });
        if own.is_meta() {
            return Ok(Tensor::meta(&[n], dtype)?);
        }
        let own = own.contiguous();
        let comm = || Error::comm(self.op);
        let group = self.mesh.group_of(self.op, self.axes)?.tag(self.op);
        Tensor::from_bytes_with(&[n], dtype, |bytes| {
            let recv = ValuesMut::from_bytes(dtype, bytes).map_err(comm())?;
            let send = Values::from_bytes(dtype, own.as_bytes()?).map_err(comm())?;
            group.erased().all_gather_v(send, recv, counts).map_err(comm())
        })
    }

    /// The elements of all ranks of the line for this one: `own` has so many for each of them, in order.
    /// They come in the order of the ranks, and so many from each.
    pub(in crate::ops) fn swap(
        &self,
        own: &Tensor,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Tensor> {
        let dtype = own.dtype();
        let n: usize = recv_counts.iter().sum();
        if recv_counts.len() <= 1 {
            return Ok(own.clone());
        }
        let position = self.position(self.mesh.own_coord(self.op)?);
        let _sending = debug::sent(self.op, StepKind::Exchange, || {
            // What this rank receives from others, as if all received as much.
            ((n - recv_counts[position]) * dtype.size() * self.mesh.size()) as u128
        });
        let comm = || Error::comm(self.op);
        let own = own.contiguous();
        let group = self.mesh.group_of(self.op, self.axes)?.tag(self.op);
        Tensor::from_bytes_with(&[n], dtype, |bytes| {
            let recv = ValuesMut::from_bytes(dtype, bytes).map_err(comm())?;
            let send = Values::from_bytes(dtype, own.as_bytes()?).map_err(comm())?;
            let group = group.erased();
            group.all_to_all_v(send, send_counts, recv, recv_counts).map_err(comm())
        })
    }

    /// Along `dim`, of which the ranks of the line hold so many indices one after the other: every rank gets
    /// what it wants.
    pub(in crate::ops) fn move_to(
        &self,
        local: &Tensor,
        dim: usize,
        counts: &[usize],
        wanted: &dyn Fn(&[usize]) -> Range<usize>,
    ) -> Result<Tensor> {
        let coord = self.mesh.own_coord(self.op)?;
        let mut ends = counts.to_vec();
        let mut total = 0;
        for end in &mut ends {
            total += *end;
            *end = total;
        }
        let held_at = |coord: &[usize]| {
            let position = self.position(coord);
            ends[position] - counts[position]..ends[position]
        };
        let mut shape = local.shape().to_vec();
        shape[dim] = wanted(coord).len();
        let same = |member: &Vec<usize>| {
            let (held, wanted) = (held_at(member), wanted(member));
            held == wanted || (held.is_empty() && wanted.is_empty())
        };
        // All see the same counts, so all leave it out or none does.
        if self.members()?.iter().all(same) {
            return Ok(local.clone());
        }
        let in_all_dims = |along: Range<usize>| -> Vec<Range<usize>> {
            let sizes = local.shape().iter().enumerate();
            sizes.map(|(d, size)| if d == dim { along.clone() } else { 0..*size }).collect()
        };
        let run = |range: Range<usize>, from: usize| match range.is_empty() {
            true => Vec::new(),
            false => vec![Run { to: 0..range.len(), from, step: 1 }],
        };
        let exchange = Exchange {
            op: self.op,
            mesh: self.mesh,
            axes: self.axes,
            held: &|coord| in_all_dims(held_at(coord)),
            wanted: &|coord| {
                let ranges = in_all_dims(wanted(coord)).into_iter();
                ranges.map(|range| run(range.clone(), range.start)).collect()
            },
        };
        exchange.run(local, Tensor::zeros(&shape, local.dtype())?)
    }

    /// As [`move_to`](Line::move_to), to the chunks of a layout.
    pub(in crate::ops) fn move_to_chunks(
        &self,
        local: &Tensor,
        dim: usize,
        counts: &[usize],
        layout: &Layout,
    ) -> Result<DTensor> {
        let local = self.move_to(local, dim, counts, &|coord| interval(layout, dim, coord))?;
        Ok(DTensor::from_parts(local, layout.clone(), self.mesh.clone()))
    }
}

/// The indices of a dim that a rank holds, where they are one range.
pub(in crate::ops) fn interval(layout: &Layout, dim: usize, coord: &[usize]) -> Range<usize> {
    let held = layout.intervals(dim, coord);
    held.start().map_or(0..0, |start| start..start + held.len())
}

/// Tensors that are broadcast to one shape and cut so that their parts, in the order of the ranks, are all
/// elements in order: only the first dim that has more than one index is cut.
pub(in crate::ops) struct InOrder<'a> {
    pub(in crate::ops) op: &'static str,
    pub(in crate::ops) mesh: &'a DeviceMesh,
    pub(in crate::ops) shape: &'a [usize],
    /// The axes that cut.
    pub(in crate::ops) axes: &'a [usize],
}

impl InOrder<'_> {
    /// The dim that is cut. A shape of which nothing can be cut has one rank with everything.
    pub(in crate::ops) fn dim(&self) -> Option<usize> {
        self.shape.iter().position(|size| *size != 1)
    }

    /// The layout of a tensor of the whole shape.
    pub(in crate::ops) fn layout(&self, of: &DTensor) -> Result<Layout> {
        let placements = self.placements(|| self.dim());
        Layout::new(self.shape, of.dtype(), self.mesh.mesh(), &placements)
            .map_err(Error::layout(self.op))
    }

    /// The tensor in this order, and the part of this rank, broadcast.
    pub(in crate::ops) fn part(&self, tensor: &DTensor) -> Result<Tensor> {
        // Broadcasting counts dims from the end.
        let missing = self.shape.len() - tensor.n_dims();
        let own = || {
            let dim = self.dim()?;
            let own = dim.checked_sub(missing)?;
            (tensor.shape()[own] == self.shape[dim]).then_some(own)
        };
        let tensor = tensor.settled()?;
        let to = tensor.layout().with_placements(&self.placements(own));
        let placed = tensor.redistribute_as(self.op, &to.map_err(Error::layout(self.op))?)?;
        let shape = self.layout(&placed)?.local_shape(self.mesh.own_coord(self.op)?);
        Ok(placed.local().expand(&shape)?)
    }

    /// How many elements each rank has, for ranks that have so many indices of the dim.
    pub(in crate::ops) fn counts(&self, line: &Line<'_>, of: &DTensor) -> Result<Vec<usize>> {
        let layout = self.layout(of)?;
        Ok(line.members()?.iter().map(|coord| layout.local_numel(coord)).collect())
    }

    fn placements(&self, dim: impl Fn() -> Option<usize>) -> Vec<Placement> {
        let cut = dim().map_or(Placement::Replicate, Placement::Shard);
        let on = |axis: usize| self.axes.contains(&axis);
        (0..self.mesh.n_axes())
            .map(|axis| if on(axis) { cut } else { Placement::Replicate })
            .collect()
    }
}

/// A layout of one dim, or of rows, that these axes cut.
pub(in crate::ops) fn rows_layout(
    op: &'static str,
    mesh: &DeviceMesh,
    axes: &[usize],
    shape: &[usize],
    dtype: dtensor_layout::DType,
) -> Result<Layout> {
    let on = |axis: usize| axes.contains(&axis);
    let cut = (0..mesh.n_axes())
        .map(|axis| if on(axis) { Placement::Shard(0) } else { Placement::Replicate });
    Layout::new(shape, dtype, mesh.mesh(), &cut.collect::<Vec<_>>()).map_err(Error::layout(op))
}

/// The shape that two are broadcast to; their operation has found that they fit.
pub(in crate::ops) fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n_dims = a.len().max(b.len());
    let size = |shape: &[usize], dim: usize| {
        dim.checked_sub(n_dims - shape.len()).map_or(1, |dim| shape[dim])
    };
    let larger = |dim| match (size(a, dim), size(b, dim)) {
        (1, other) => other,
        (own, _) => own,
    };
    (0..n_dims).map(larger).collect()
}
