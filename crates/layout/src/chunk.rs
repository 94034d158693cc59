//! Cutting a length into chunks: the one rule under every layout.

use std::ops::Range;

/// The `index`-th of `parts` chunks of `length`, as `torch.chunk` cuts: each is `ceil(length /
/// parts)` long, but the last ones are short or empty. An empty chunk starts and ends at `length`.
///
/// ```
/// use dtensor_layout::chunk;
/// let chunks: Vec<_> = (0..4).map(|i| chunk(5, 4, i)).collect();
/// assert_eq!(chunks, [0..2, 2..4, 4..5, 5..5]);
/// ```
#[inline]
pub fn chunk(length: usize, parts: usize, index: usize) -> Range<usize> {
    let size = length.div_ceil(parts.max(1));
    // Saturating: `index` is below `parts`, but `parts * size` may exceed the largest usize.
    let start = size.saturating_mul(index).min(length);
    start..start.saturating_add(size).min(length)
}

/// The indices of one tensor dim that one rank holds: disjoint ascending ranges, none of them
/// empty, in the order in which they lie in the rank's memory.
///
/// One range, unless a strided shard left several. No range at all is an empty shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intervals {
    /// Almost every set is one range, so the first is kept without an allocation.
    first: Range<usize>,
    more: Vec<Range<usize>>,
}

impl Intervals {
    /// The whole of a dim.
    pub fn whole(length: usize) -> Intervals {
        Intervals { first: 0..length, more: Vec::new() }
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.first.len() + self.more.iter().map(Range::len).sum::<usize>()
    }

    /// Whether there is no index.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let first = Some(self.first.clone()).filter(|range| !range.is_empty());
        first.into_iter().chain(self.more.iter().cloned())
    }

    /// The first index held, if any.
    pub fn start(&self) -> Option<usize> {
        (!self.is_empty()).then_some(self.first.start)
    }

    /// Where `index` lies among the held ones.
    pub fn position(&self, index: usize) -> Option<usize> {
        let mut before = 0;
        for range in self.iter() {
            if range.contains(&index) {
                return Some(before + index - range.start);
            }
            before += range.len();
        }
        None
    }

    /// What both hold.
    pub fn intersect(&self, other: &Intervals) -> Intervals {
        let mut both = Builder::default();
        for a in self.iter() {
            for b in other.iter() {
                both.push(a.start.max(b.start)..a.end.min(b.end));
            }
        }
        both.finish()
    }

    /// Number of indices that both hold; [`intersect`](Self::intersect) without building the set.
    pub fn overlap(&self, other: &Intervals) -> usize {
        let overlap = |a: &Range<usize>, b: &Range<usize>| {
            a.end.min(b.end).saturating_sub(a.start.max(b.start))
        };
        if self.more.is_empty() && other.more.is_empty() {
            return overlap(&self.first, &other.first);
        }
        self.iter().map(|a| other.iter().map(|b| overlap(&a, &b)).sum::<usize>()).sum()
    }

    /// The part of rank `index` when `parts` ranks cut this set.
    ///
    /// With a split factor above 1 the set is first cut into that many pieces, each piece is cut
    /// into `parts` chunks, and the rank takes its chunk of every piece: PyTorch's
    /// `_StridedShard`.
    pub fn cut(&self, parts: usize, index: usize, split_factor: usize) -> Intervals {
        if self.more.is_empty() && split_factor == 1 {
            let part = chunk(self.first.len(), parts, index);
            return Intervals {
                first: self.first.start + part.start..self.first.start + part.end,
                more: Vec::new(),
            };
        }
        let length = self.len();
        let mut result = Builder::default();
        // Pieces beyond `length` are empty, however large the factor.
        for piece_index in 0..split_factor.min(length) {
            let piece = chunk(length, split_factor, piece_index);
            let part = chunk(piece.len(), parts, index);
            self.slice_into(piece.start + part.start..piece.start + part.end, &mut result);
        }
        result.finish()
    }

    /// Pushes the ranges at positions `wanted` of this set.
    fn slice_into(&self, wanted: Range<usize>, result: &mut Builder) {
        let mut before = 0;
        for range in self.iter() {
            let start = wanted.start.max(before) - before;
            let end = wanted.end.min(before + range.len()).max(before) - before;
            if start < end {
                result.push(range.start + start..range.start + end);
            }
            before += range.len();
        }
    }
}

/// Collects ranges in ascending order, joining those that touch.
#[derive(Default)]
struct Builder(Vec<Range<usize>>);

impl Builder {
    fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    fn finish(self) -> Intervals {
        let mut ranges = self.0;
        match ranges.is_empty() {
            true => Intervals { first: 0..0, more: ranges },
            false => Intervals { first: ranges.remove(0), more: ranges },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(set: &Intervals) -> Vec<usize> {
        set.iter().flatten().collect()
    }

    #[test]
    fn chunks_tile_the_length_in_order() {
        for length in 0..40 {
            for parts in 1..12 {
                let all: Vec<usize> = (0..parts).flat_map(|i| chunk(length, parts, i)).collect();
                assert_eq!(all, (0..length).collect::<Vec<_>>(), "{length} over {parts}");
            }
        }
    }

    #[test]
    fn huge_lengths_and_meshes_do_not_overflow() {
        assert_eq!(chunk(usize::MAX, 2, 1).end, usize::MAX);
        assert!(chunk(3, usize::MAX, usize::MAX - 1).is_empty());
        assert!(Intervals::whole(3).cut(2, 1, usize::MAX).len() < 3);
    }

    #[test]
    fn cutting_in_every_way_keeps_every_index_once() {
        for length in 0..30 {
            for (parts, factor) in
                [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (2, 5), (4, 3), (3, 100)]
            {
                let mut all: Vec<usize> = (0..parts)
                    .flat_map(|i| list(&Intervals::whole(length).cut(parts, i, factor)))
                    .collect();
                all.sort_unstable();
                assert_eq!(
                    all,
                    (0..length).collect::<Vec<_>>(),
                    "{length} over {parts}, split {factor}"
                );
            }
        }
    }

    #[test]
    fn positions_and_overlaps_agree_with_the_list() {
        let sets: Vec<Intervals> = (0..3).map(|i| Intervals::whole(23).cut(3, i, 4)).collect();
        let halves: Vec<Intervals> =
            sets.iter().flat_map(|set| (0..2).map(|i| set.cut(2, i, 1))).collect();
        for a in sets.iter().chain(&halves) {
            for (position, index) in list(a).into_iter().enumerate() {
                assert_eq!(a.position(index), Some(position));
            }
            for b in sets.iter().chain(&halves) {
                let both: Vec<usize> =
                    list(a).into_iter().filter(|i| list(b).contains(i)).collect();
                assert_eq!(list(&a.intersect(b)), both);
                assert_eq!(a.overlap(b), both.len());
            }
        }
    }
}
