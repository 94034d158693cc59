//! Elements that go to other places along their dims: what slicing, flipping, rolling, padding or joining
//! along a cut dim needs, in one exchange in which every rank receives exactly what it lacks.
//!
//! [`Exchange`] is the common case: one source, one result. [`Traffic`] has several of both, in one call. What
//! they are told are two functions of a coordinate: what the rank there holds, and what it wants. Neither
//! needs to be the part of a layout. [`along`] is for results that are described by runs along their dims.

mod along;
mod run;

use std::ops::Range;

use dtensor_comm::{Values, ValuesMut};
use dtensor_layout::plan::StepKind;
use dtensor_local::Tensor;
use smallvec::SmallVec;

pub(crate) use along::{along, blank, carried, crossing, held_by, in_ranges, part_of, placed};
pub(crate) use run::Run;

use crate::{DeviceMesh, Error, Result, debug};

/// One run per dim: a box of the result that is a strided box of the source.
type Piece = SmallVec<[Run; 4]>;

/// The indices of every dim that the rank at a coordinate holds.
pub(crate) type Held<'a> = &'a dyn Fn(&[usize]) -> Vec<Range<usize>>;

/// Who holds what, and who needs what, for ranks that differ on some axes of a mesh.
pub(crate) struct Exchange<'a> {
    pub(crate) op: &'static str,
    pub(crate) mesh: &'a DeviceMesh,
    /// The axes on which the source is cut, ascending: every element is held by one of the ranks that differ
    /// only there.
    pub(crate) axes: &'a [usize],
    /// The indices of every dim of the source that the rank at a coordinate holds.
    pub(crate) held: Held<'a>,
    /// For every dim of the part that the rank at a coordinate gets: where in *that part* which indices of
    /// the whole source go. What no run has keeps its value.
    pub(crate) wanted: &'a dyn Fn(&[usize]) -> Vec<Vec<Run>>,
}

/// Several sources and several results, of one dtype, in one call. Nothing is called where every rank has what
/// it wants.
pub(crate) struct Traffic<'a> {
    pub(crate) op: &'static str,
    pub(crate) mesh: &'a DeviceMesh,
    pub(crate) sources: Vec<Source<'a>>,
}

/// A tensor of which elements are wanted.
pub(crate) struct Source<'a> {
    /// What this rank holds.
    pub(crate) local: &'a Tensor,
    /// The axes on which it is cut: every element is held by one of the ranks that differ only there. On the
    /// other axes a rank takes from those beside it.
    pub(crate) axes: &'a [usize],
    pub(crate) held: Held<'a>,
    /// What the rank at a coordinate gets of it.
    pub(crate) wanted: &'a dyn Fn(&[usize]) -> Vec<Want>,
}

/// A box of a part of a result, or several: every combination of a run of each dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// The number of the result.
    pub(crate) into: usize,
    /// For every dim, where in *the part* which indices of the whole source go. What no run has keeps its
    /// value.
    pub(crate) runs: Vec<Vec<Run>>,
}

impl Exchange<'_> {
    /// Moves: `local` is what this rank holds of the source, `into` the part of the result before.
    pub(crate) fn run(&self, local: &Tensor, into: Tensor) -> Result<Tensor> {
        let wanted = |coord: &[usize]| vec![Want { into: 0, runs: (self.wanted)(coord) }];
        let source = Source { local, axes: self.axes, held: self.held, wanted: &wanted };
        let traffic = Traffic { op: self.op, mesh: self.mesh, sources: vec![source] };
        let mut parts = traffic.run(vec![into])?;
        parts.pop().ok_or_else(|| lost(self.op))
    }
}

impl Traffic<'_> {
    /// Moves: `into` are the parts of the results before.
    pub(crate) fn run(&self, mut into: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (Some(coord), Some(first)) = (self.mesh.coord(), self.sources.first()) else {
            return Ok(into);
        };
        let dtype = first.local.dtype();
        let members = members(self.mesh, &self.axes(), coord);
        let is_local = members.iter().all(|member| self.has_all_it_wants(member));
        let _sending = match is_local {
            true => None,
            false => {
                debug::sent(self.op, StepKind::Exchange, || self.bytes(&members, dtype.size()))
            }
        };
        if self.mesh.is_fake() {
            return Ok(into);
        }
        // Where nothing is called, a rank sends to itself.
        let members = if is_local { vec![coord.to_vec()] } else { members };
        let recv: Vec<_> = members.iter().map(|member| self.pieces(member, coord)).collect();
        let mut send_counts = Vec::with_capacity(members.len());
        let mut views = Vec::new();
        let own_held: Vec<_> = self.sources.iter().map(|source| (source.held)(coord)).collect();
        for member in &members {
            let pieces = self.pieces(coord, member);
            send_counts.push(numel(pieces.iter().map(|(.., piece)| piece)));
            for (source, _, piece) in &pieces {
                views.push(source_view(self.sources[*source].local, &own_held[*source], piece)?);
            }
        }
        let packed = Tensor::pack(dtype, &views)?;
        let received = match is_local {
            true => packed,
            false => {
                let recv_counts: Vec<usize> =
                    recv.iter().map(|one| numel(one.iter().map(|(.., piece)| piece))).collect();
                self.call(&packed, &send_counts, &recv_counts)?
            }
        };
        let mut at = 0;
        for (_, number, piece) in recv.iter().flatten() {
            let shape: SmallVec<[usize; 4]> = piece.iter().map(|run| run.to.len()).collect();
            let n = shape.iter().product();
            let values = received.narrow(0, at, n)?.reshape(&shape)?;
            let place: SmallVec<[Range<usize>; 4]> =
                piece.iter().map(|run| run.to.clone()).collect();
            let part = into.get_mut(*number).ok_or_else(|| lost(self.op))?;
            part.slice_assign_in_place(&place, &values)?;
            at += n;
        }
        Ok(into)
    }

    fn call(&self, packed: &Tensor, send: &[usize], recv: &[usize]) -> Result<Tensor> {
        let (dtype, comm) = (packed.dtype(), Error::comm(self.op));
        let group = self.mesh.group_of(self.op, &self.axes())?.tag(self.op);
        Tensor::from_bytes_with(&[recv.iter().sum()], dtype, |bytes| {
            let into = ValuesMut::from_bytes(dtype, bytes).map_err(&comm)?;
            let from = Values::from_bytes(dtype, packed.as_bytes()?).map_err(&comm)?;
            group.erased().all_to_all_v(from, send, into, recv).map_err(&comm)
        })
    }

    /// The axes on which any source is cut, ascending.
    fn axes(&self) -> Vec<usize> {
        let mut axes: Vec<usize> =
            self.sources.iter().flat_map(|source| source.axes).copied().collect();
        axes.sort_unstable();
        axes.dedup();
        axes
    }

    /// What one rank has for another, in the order in which it is sent: the number of the source, that of the
    /// result, and where.
    fn pieces(&self, sender: &[usize], receiver: &[usize]) -> Vec<(usize, usize, Piece)> {
        let mut all = Vec::new();
        for (number, source) in self.sources.iter().enumerate() {
            if !source.serves(sender, receiver) {
                continue;
            }
            let held = (source.held)(sender);
            for want in (source.wanted)(receiver) {
                let pieces = pieces(&held, &want.runs);
                all.extend(pieces.into_iter().map(|piece| (number, want.into, piece)));
            }
        }
        all
    }

    fn has_all_it_wants(&self, member: &[usize]) -> bool {
        self.sources.iter().all(|source| {
            let held = (source.held)(member);
            (source.wanted)(member).iter().all(|want| {
                let in_dim = |runs: &Vec<Run>| runs.iter().map(|run| run.to.len()).sum::<usize>();
                let wanted: usize = want.runs.iter().map(in_dim).product();
                numel(&pieces(&held, &want.runs)) == wanted
            })
        })
    }

    /// Bytes that cross from one rank to another, over all ranks of the mesh: exact for up to 64 ranks in a
    /// group, else as if all received what the first does.
    fn bytes(&self, members: &[Vec<usize>], element: usize) -> u128 {
        const EXACT: usize = 64;
        let received = |receiver: &Vec<usize>| -> usize {
            let senders = members.iter().filter(|sender| *sender != receiver);
            let from = |sender: &Vec<usize>| {
                numel(self.pieces(sender, receiver).iter().map(|(.., piece)| piece))
            };
            senders.map(from).sum()
        };
        let in_group = match members.len() <= EXACT {
            true => members.iter().map(received).sum::<usize>() as u128,
            false => received(&members[0]) as u128 * members.len() as u128,
        };
        in_group * (self.mesh.size() / members.len()) as u128 * element as u128
    }
}

impl Source<'_> {
    /// Whether the receiver takes from this sender: they are beside each other on the axes that do not cut.
    fn serves(&self, sender: &[usize], receiver: &[usize]) -> bool {
        let mut others =
            sender.iter().zip(receiver).enumerate().filter(|(axis, _)| !self.axes.contains(axis));
        others.all(|(_, (sender, receiver))| sender == receiver)
    }
}

/// The boxes of the result that a rank with these indices has the elements of.
fn pieces(held: &[Range<usize>], wanted: &[Vec<Run>]) -> Vec<Piece> {
    held.iter().zip(wanted).fold(vec![Piece::new()], |pieces, (held, runs)| {
        let clipped: Vec<Run> = runs.iter().filter_map(|run| run.clipped(held)).collect();
        pieces
            .iter()
            .flat_map(|done| {
                clipped.iter().map(move |run| {
                    let mut piece = done.clone();
                    piece.push(run.clone());
                    piece
                })
            })
            .collect()
    })
}

fn numel<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> usize {
    let one = |piece: &Piece| piece.iter().map(|run| run.to.len()).product::<usize>();
    pieces.into_iter().map(one).sum()
}

fn source_view(local: &Tensor, held: &[Range<usize>], piece: &Piece) -> Result<Tensor> {
    let mut view = local.clone();
    for (dim, (run, held)) in piece.iter().zip(held).enumerate() {
        let (n, step) = (run.to.len(), run.step.unsigned_abs());
        let (first, last) = (run.from - held.start, run.at(n - 1) - held.start);
        let d = dim as isize;
        view = match run.step {
            0 => {
                let one = view.narrow(d, first, 1)?;
                let mut shape = one.shape().to_vec();
                shape[dim] = n;
                one.expand(&shape)?
            }
            1 if n == view.shape()[dim] => view,
            step_up if step_up > 0 => view.slice(d, first, last + 1, step)?,
            _ => view.slice(d, last, first + 1, step)?.flip(d)?,
        };
    }
    Ok(view)
}

fn lost(op: &'static str) -> Error {
    Error::Unsupported {
        op,
        what: "an exchange has a result without a part".into(),
        way_out: "please report this",
    }
}

/// The coordinates beside `coord` on these axes, the last varying fastest.
pub(crate) fn members(mesh: &DeviceMesh, axes: &[usize], coord: &[usize]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![coord.to_vec()], |members, axis| {
        let size = mesh.mesh().axis_size(*axis);
        let varied = members.into_iter().flat_map(|member| {
            (0..size).map(move |index| {
                let mut member = member.clone();
                member[*axis] = index;
                member
            })
        });
        varied.collect()
    })
}
