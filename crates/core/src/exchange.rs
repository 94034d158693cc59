//! Elements that go to other places along their dims: what slicing, flipping, rolling, padding or joining
//! along a cut dim needs, in one exchange in which every rank receives exactly what it lacks.

use std::ops::Range;

use dtensor_comm::{Values, ValuesMut};
use dtensor_layout::plan::StepKind;
use dtensor_local::Tensor;
use smallvec::SmallVec;

use crate::{DeviceMesh, Error, Result, debug};

/// Along one dim: the indices `to` of the result are the indices `from`, `from + step`, ... of the source. A
/// step of 0 repeats one, a negative one runs backwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) to: Range<usize>,
    pub(crate) from: usize,
    pub(crate) step: isize,
}

/// One run per dim: a box of the result that is a strided box of the source.
type Piece = SmallVec<[Run; 4]>;

/// Who holds what, and who needs what, for ranks that differ on some axes of a mesh.
pub(crate) struct Exchange<'a> {
    pub(crate) op: &'static str,
    pub(crate) mesh: &'a DeviceMesh,
    /// The axes on which the source is cut, ascending: every element is held by one of the ranks that differ
    /// only there.
    pub(crate) axes: &'a [usize],
    /// The indices of every dim of the source that the rank at a coordinate holds.
    pub(crate) held: &'a dyn Fn(&[usize]) -> Vec<Range<usize>>,
    /// For every dim of the part that the rank at a coordinate gets: where in *that part* which indices of
    /// the whole source go. What no run has keeps its value.
    pub(crate) wanted: &'a dyn Fn(&[usize]) -> Vec<Vec<Run>>,
}

impl Exchange<'_> {
    /// Moves: `local` is what this rank holds of the source, `into` the part of the result before.
    pub(crate) fn run(&self, local: &Tensor, into: Tensor) -> Result<Tensor> {
        let Some(coord) = self.mesh.coord() else { return Ok(into) };
        let dtype = local.dtype();
        let comm = || Error::comm(self.op);
        let members = members(self.mesh, self.axes, coord);
        let own_wanted = (self.wanted)(coord);
        let own_held = (self.held)(coord);
        let recv: Vec<Vec<Piece>> =
            members.iter().map(|member| pieces(&(self.held)(member), &own_wanted)).collect();
        let recv_counts: Vec<usize> = recv.iter().map(|pieces| numel(pieces)).collect();
        let _sending = (members.len() > 1)
            .then(|| {
                debug::sent(self.op, StepKind::Exchange, || self.bytes(&members, dtype.size()))
            })
            .flatten();
        if self.mesh.is_fake() {
            return Ok(into);
        }
        let mut send_counts = Vec::with_capacity(members.len());
        let mut views = Vec::new();
        for member in &members {
            let pieces = pieces(&own_held, &(self.wanted)(member));
            send_counts.push(numel(&pieces));
            for piece in &pieces {
                views.push(source_view(local, &own_held, piece)?);
            }
        }
        let packed = Tensor::pack(dtype, &views)?;
        let received = match members.len() {
            1 => packed,
            _ => {
                let group = self.mesh.group_of(self.op, self.axes)?.tag(self.op);
                let n = recv_counts.iter().sum();
                Tensor::from_bytes_with(&[n], dtype, |bytes| {
                    let recv = ValuesMut::from_bytes(dtype, bytes).map_err(comm())?;
                    let send = Values::from_bytes(dtype, packed.as_bytes()?).map_err(comm())?;
                    group
                        .erased()
                        .all_to_all_v(send, &send_counts, recv, &recv_counts)
                        .map_err(comm())
                })?
            }
        };
        let (mut into, mut at) = (into, 0);
        for piece in recv.iter().flatten() {
            let shape: SmallVec<[usize; 4]> = piece.iter().map(|run| run.to.len()).collect();
            let n = shape.iter().product();
            let values = received.narrow(0, at, n)?.reshape(&shape)?;
            let place: SmallVec<[Range<usize>; 4]> =
                piece.iter().map(|run| run.to.clone()).collect();
            into.slice_assign_in_place(&place, &values)?;
            at += n;
        }
        Ok(into)
    }

    /// Bytes that cross from one rank to another, over all ranks of the mesh: exact for up to 64 ranks in a
    /// group, else as if all received what the first does.
    fn bytes(&self, members: &[Vec<usize>], element: usize) -> u128 {
        const EXACT: usize = 64;
        let received = |receiver: &Vec<usize>| -> usize {
            let wanted = (self.wanted)(receiver);
            let senders = members.iter().filter(|sender| *sender != receiver);
            senders.map(|sender| numel(&pieces(&(self.held)(sender), &wanted))).sum()
        };
        let in_group = match members.len() <= EXACT {
            true => members.iter().map(received).sum::<usize>() as u128,
            false => received(&members[0]) as u128 * members.len() as u128,
        };
        in_group * (self.mesh.size() / members.len()) as u128 * element as u128
    }
}

impl Run {
    /// `n` indices from `from` on, at the beginning of the result.
    pub(crate) fn whole(n: usize) -> Run {
        Run { to: 0..n, from: 0, step: 1 }
    }

    /// The part of it whose result indices are in `to`, counted from the beginning of that range.
    pub(crate) fn within(&self, to: &Range<usize>) -> Option<Run> {
        let (start, end) = (self.to.start.max(to.start), self.to.end.min(to.end));
        if start >= end {
            return None;
        }
        let from = self.at(start - self.to.start);
        Some(Run { to: start - to.start..end - to.start, from, step: self.step })
    }

    /// The part of it whose source indices are in `held`.
    fn clipped(&self, held: &Range<usize>) -> Option<Run> {
        let n = self.to.len();
        let (first, last) = match self.step {
            0 if held.contains(&self.from) => (0, n),
            0 => (0, 0),
            step if step > 0 => {
                let step = step.unsigned_abs();
                let reach = |bound: usize| bound.saturating_sub(self.from).div_ceil(step).min(n);
                (reach(held.start), reach(held.end))
            }
            step => {
                // from - i step is below the end from the first i on, and below the start from the last.
                let step = step.unsigned_abs();
                let below = |bound: usize| match self.from >= bound {
                    true => ((self.from - bound) / step + 1).min(n),
                    false => 0,
                };
                (below(held.end), below(held.start))
            }
        };
        if first >= last {
            return None;
        }
        let to = self.to.start + first..self.to.start + last;
        Some(Run { to, from: self.at(first), step: self.step })
    }

    fn at(&self, number: usize) -> usize {
        self.from.wrapping_add_signed(self.step.wrapping_mul(number as isize))
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

fn numel(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.iter().map(|run| run.to.len()).product::<usize>()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of all pairs of indices.
    #[test]
    fn a_run_is_clipped_to_what_is_held() {
        for step in [-3_isize, -2, -1, 0, 1, 2, 3] {
            for from in 0..12_usize {
                for n in 1..6_usize {
                    let run = Run { to: 4..4 + n, from, step };
                    let source = |i: usize| isize::try_from(from).unwrap_or(0) + step * i as isize;
                    if source(n - 1) < 0 {
                        continue;
                    }
                    for start in 0..12_usize {
                        for end in start..14 {
                            let inside =
                                |i: &usize| (start as isize..end as isize).contains(&source(*i));
                            let want: Vec<usize> = (0..n).filter(inside).collect();
                            let got = run.clipped(&(start..end));
                            let got: Vec<usize> = got.map_or(Vec::new(), |part| {
                                assert_eq!(part.from as isize, source(part.to.start - 4));
                                (part.to.start - 4..part.to.end - 4).collect()
                            });
                            assert_eq!(got, want, "{run:?} in {start}..{end}");
                        }
                    }
                }
            }
        }
    }
}
