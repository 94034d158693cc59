//! Where the pieces of the ranks lie in a buffer.

use crate::call::Counts;

/// Offsets in bytes, in group-rank order and without gaps.
#[derive(Clone, Debug)]
pub(super) enum Pieces {
    /// All have this length.
    Even(usize),
    /// The start of each, and the end of the last.
    Starts(Box<[usize]>),
}

impl Pieces {
    /// The pieces of an even call, or of one with a count per rank.
    pub(super) fn new(counts: &Counts<'_>, element_bytes: usize) -> Pieces {
        match counts {
            Counts::Even(n) => Pieces::Even(n * element_bytes),
            Counts::Each(counts) => Pieces::uneven(counts, element_bytes),
            Counts::Pairs { recv, .. } => Pieces::uneven(recv, element_bytes),
        }
    }

    pub(super) fn uneven(counts: &[usize], element_bytes: usize) -> Pieces {
        let mut end = 0;
        let mut starts = Vec::with_capacity(counts.len() + 1);
        starts.push(0);
        for n in counts {
            end += n * element_bytes;
            starts.push(end);
        }
        Pieces::Starts(starts.into())
    }

    /// `elements` cut into `size` pieces that differ as little as whole cache lines allow.
    pub(super) fn slices(elements: usize, element_bytes: usize, size: usize) -> Pieces {
        let line = CACHE_LINE / element_bytes;
        let each = elements.div_ceil(size).next_multiple_of(line);
        let starts = (0..=size).map(|i| (i * each).min(elements) * element_bytes);
        Pieces::Starts(starts.collect())
    }

    /// Offset and length of one piece.
    pub(super) fn get(&self, i: usize) -> (usize, usize) {
        match self {
            Pieces::Even(bytes) => (i * bytes, *bytes),
            Pieces::Starts(starts) => (starts[i], starts[i + 1] - starts[i]),
        }
    }

    /// The length of the longest of `size` pieces.
    pub(super) fn longest(&self, size: usize) -> usize {
        (0..size).map(|i| self.get(i).1).max().unwrap_or(0)
    }
}

const CACHE_LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_tile_the_vector() {
        for (elements, size) in [(0, 3), (1, 4), (100, 3), (64, 2), (1000, 7)] {
            let slices = Pieces::slices(elements, 4, size);
            let mut end = 0;
            for i in 0..size {
                let (offset, bytes) = slices.get(i);
                assert_eq!(offset, end);
                end += bytes;
            }
            assert_eq!(end, elements * 4, "{elements} in {size}");
        }
    }

    #[test]
    fn uneven_pieces_follow_each_other() {
        let pieces = Pieces::uneven(&[3, 0, 2], 8);
        assert_eq!([pieces.get(0), pieces.get(1), pieces.get(2)], [(0, 24), (24, 0), (24, 16)]);
        assert_eq!(pieces.longest(3), 24);
    }
}
