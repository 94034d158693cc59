//! Who holds which part of a tensor: asked without going through all ranks.

use std::ops::Range;

use dtensor_layout::{IndexBox, Layout, Placement};

use crate::read::runs::{Array, Overlap};

/// The parts of a tensor that ranks hold.
///
/// The cuts of one dim do not depend on the other dims. So there is a list of pieces per dim, and a part is the choice of one
/// piece (of several, under a strided shard) in each. A rank is the sum of the distances that belong to its pieces.
#[derive(Debug)]
pub(super) struct Grid {
    /// The rank at coordinate zero.
    base: usize,
    /// The pieces of each dim, in order; they do not overlap, and none is empty.
    dims: Vec<Vec<Piece>>,
    /// The distances of the ranks that hold the same, by way of axes that cut nothing.
    copies: Vec<usize>,
    /// The pieces of each dim that this rank holds; `None` if it is not on the mesh.
    mine: Option<Vec<Vec<Piece>>>,
}

/// Consecutive indices of a dim that the same ranks hold.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    range: Range<usize>,
    /// Where it begins in what those ranks hold, and how many indices that is.
    local_start: usize,
    local_size: usize,
    /// What they add to the number of a rank.
    distance: usize,
}

/// Ranks that hold the same of a chunk.
#[derive(Debug)]
pub(super) struct Part {
    /// In an order that is the same everywhere.
    pub ranks: Vec<usize>,
    /// From the chunk to the memory of those ranks: one, unless a strided shard holds several boxes.
    pub overlaps: Vec<Overlap>,
}

/// The ranks that hold something of a box. They are numbered, not listed.
#[derive(Clone)]
pub(super) struct Needers<'g> {
    grid: &'g Grid,
    pieces: Vec<&'g [Piece]>,
}

impl Grid {
    /// The parts of a tensor with this layout; `coord` is where this rank is on its mesh.
    pub(super) fn new(layout: &Layout, coord: Option<&[usize]>) -> Grid {
        let mesh = layout.mesh();
        let distance = |coord: &[usize], axes: &[usize]| -> usize {
            axes.iter().map(|&axis| mesh.axes()[axis].offset(coord[axis])).sum()
        };
        let (mut dims, mut mine) = (Vec::new(), coord.map(|_| Vec::new()));
        for dim in 0..layout.n_dims() {
            let axes: Vec<usize> = layout.order().cuts(dim).iter().map(|cut| cut.axis).collect();
            let mut pieces = Vec::new();
            for other in coordinates(layout, &axes) {
                let held = layout.intervals(dim, &other);
                let (mut local_start, local_size) = (0, held.len());
                for range in held.iter() {
                    let (length, distance) = (range.len(), distance(&other, &axes));
                    pieces.push(Piece { range, local_start, local_size, distance });
                    local_start += length;
                }
            }
            pieces.sort_unstable_by_key(|piece| piece.range.start);
            if let (Some(mine), Some(coord)) = (&mut mine, coord) {
                let own = distance(coord, &axes);
                mine.push(pieces.iter().filter(|piece| piece.distance == own).cloned().collect());
            }
            dims.push(pieces);
        }
        let is_copied = |axis: &usize| layout.placements()[*axis] == Placement::Replicate;
        let axes: Vec<usize> = (0..mesh.n_axes()).filter(is_copied).collect();
        let copies = coordinates(layout, &axes).map(|coord| distance(&coord, &axes)).collect();
        Grid { base: mesh.base(), dims, copies, mine }
    }

    /// The ranks that hold something of a box that is not empty.
    pub(super) fn needers(&self, bounds: &[Range<usize>]) -> Needers<'_> {
        let dims = self.dims.iter().zip(bounds);
        Needers { grid: self, pieces: dims.map(|(pieces, range)| touched(pieces, range)).collect() }
    }

    /// The parts that share something with a chunk.
    pub(super) fn parts(&self, chunk: &IndexBox) -> Vec<Part> {
        let dims = self.dims.iter().zip(&chunk.0);
        let choices = dims.map(|(pieces, range)| by_distance(touched(pieces, range)));
        let choices: Vec<Vec<Vec<&Piece>>> = choices.collect();
        let part = |choice: Vec<Vec<&Piece>>| {
            let distances = choice.iter().filter_map(|pieces| Some(pieces.first()?.distance));
            let first = self.base + distances.sum::<usize>();
            let ranks = self.copies.iter().map(|copy| first + copy).collect();
            Part { ranks, overlaps: overlaps(chunk, &choice) }
        };
        product(&choices).into_iter().map(part).collect()
    }

    /// What this rank holds of a chunk: as in its [`Part`].
    pub(super) fn mine(&self, chunk: &IndexBox) -> Vec<Overlap> {
        let Some(mine) = &self.mine else { return Vec::new() };
        let dims = mine.iter().zip(&chunk.0);
        let pieces = dims.map(|(pieces, range)| touched(pieces, range).iter().collect());
        overlaps(chunk, &pieces.collect::<Vec<Vec<&Piece>>>())
    }
}

impl Needers<'_> {
    /// How many there are. A rank with several pieces of a strided shard counts for each.
    pub(super) fn count(&self) -> usize {
        let pieces = self.pieces.iter().map(|pieces| pieces.len());
        pieces.fold(self.grid.copies.len(), usize::saturating_mul)
    }

    /// How many of them hold the same.
    pub(super) fn copies(&self) -> usize {
        self.grid.copies.len()
    }

    /// Whether they are the same as others, as far as counting them and comparing two tells.
    pub(super) fn is_like(&self, other: &Needers<'_>) -> bool {
        let (count, copies) = (self.count(), self.copies());
        (count, copies) == (other.count(), other.copies())
            && self.nth(0) == other.nth(0)
            && self.nth(count - 1) == other.nth(count - 1)
    }

    /// The rank with this number below their count.
    pub(super) fn nth(&self, number: usize) -> usize {
        let n_copies = self.grid.copies.len();
        let mut rank = self.grid.base + self.grid.copies[number % n_copies];
        let mut rest = number / n_copies;
        for pieces in &self.pieces {
            rank += pieces[rest % pieces.len()].distance;
            rest /= pieces.len();
        }
        rank
    }
}

/// The pieces that share something with a range.
fn touched<'p>(pieces: &'p [Piece], range: &Range<usize>) -> &'p [Piece] {
    let first = pieces.partition_point(|piece| piece.range.end <= range.start);
    let end = pieces.partition_point(|piece| piece.range.start < range.end);
    &pieces[first..end.max(first)]
}

/// The pieces of the same ranks together.
fn by_distance(pieces: &[Piece]) -> Vec<Vec<&Piece>> {
    let mut sorted: Vec<&Piece> = pieces.iter().collect();
    sorted.sort_by_key(|piece| piece.distance);
    sorted.chunk_by(|one, other| one.distance == other.distance).map(<[_]>::to_vec).collect()
}

/// What a chunk shares with the boxes that have a piece of each dim.
fn overlaps(chunk: &IndexBox, dims: &[Vec<&Piece>]) -> Vec<Overlap> {
    let of_box = |pieces: Vec<&Piece>| {
        let n_dims = pieces.len();
        let (mut shape, mut from, mut to) = (vec![0; n_dims], vec![0; n_dims], vec![0; n_dims]);
        for (dim, (piece, held)) in pieces.iter().zip(&chunk.0).enumerate() {
            let start = piece.range.start.max(held.start);
            shape[dim] = piece.range.end.min(held.end) - start;
            from[dim] = start - held.start;
            to[dim] = piece.local_start + start - piece.range.start;
        }
        let local: Vec<usize> = pieces.iter().map(|piece| piece.local_size).collect();
        let from = Array { start: &from, shape: &chunk.shape() };
        Overlap::new(&shape, &from, &Array { start: &to, shape: &local })
    };
    product(dims).into_iter().map(of_box).collect()
}

/// All choices of one element of every list, the last list varying fastest.
fn product<T: Clone>(lists: &[Vec<T>]) -> Vec<Vec<T>> {
    let mut all = vec![Vec::with_capacity(lists.len())];
    for list in lists {
        let longer = |begun: Vec<T>| {
            list.iter().map(move |next| [begun.as_slice(), std::slice::from_ref(next)].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// The coordinates that differ on some axes and are zero on the others.
fn coordinates(layout: &Layout, axes: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let mesh = layout.mesh();
    let mut all = vec![vec![0; mesh.n_axes()]];
    for &axis in axes {
        let along = |coord: Vec<usize>| {
            (0..mesh.axis_size(axis)).map(move |index| {
                let mut coord = coord.clone();
                coord[axis] = index;
                coord
            })
        };
        all = all.into_iter().flat_map(along).collect();
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    /// The elements of a box that a rank holds, by asking the layout about every one of them.
    fn held(layout: &Layout, rank: usize, index: &IndexBox) -> usize {
        let Some(coord) = layout.mesh().coord_of(rank) else { return 0 };
        let dims = index.0.iter().enumerate();
        let count = |(dim, range): (usize, &Range<usize>)| {
            let held = layout.intervals(dim, &coord);
            range.clone().filter(|index| held.position(*index).is_some()).count()
        };
        dims.map(count).product()
    }

    #[test]
    fn every_rank_gets_what_its_layout_says() {
        let mesh = Mesh::new(&[("a", 2), ("b", 3), ("c", 2)]).unwrap();
        for text in [
            "[S(0), S(1), R]",
            "[R, R, R]",
            "[S(0), S(0), S(1)]",
            "[S(1)[1], S(1)[0], R]",
            "[_S(0, 3), S(0), R]",
            "[R, S(1), S(0)]",
        ] {
            let layout = Layout::parse(&[7, 11], DType::F32, &mesh, text).unwrap();
            for index in [vec![0..7, 0..11], vec![2..5, 3..4], vec![6..7, 0..11], vec![0..1, 9..11]]
            {
                let index = IndexBox(index);
                let any = Grid::new(&layout, None);
                let parts = any.parts(&index);
                for rank in 0..13 {
                    let want = held(&layout, rank, &index);
                    let coord = layout.mesh().coord_of(rank);
                    let numel =
                        |overlaps: &[Overlap]| overlaps.iter().map(Overlap::numel).sum::<usize>();
                    let mine = Grid::new(&layout, coord.as_deref()).mine(&index);
                    assert_eq!(numel(&mine), want, "{layout:?} {index} rank {rank}");
                    let part = parts.iter().find(|part| part.ranks.contains(&rank));
                    assert_eq!(
                        part.map_or(&[][..], |part| &part.overlaps),
                        mine,
                        "{layout:?} {index}"
                    );
                    let needers = any.needers(&index.0);
                    let named = (0..needers.count()).any(|number| needers.nth(number) == rank);
                    assert_eq!(named, want > 0, "{layout:?} {index} rank {rank}");
                }
            }
        }
    }
}
