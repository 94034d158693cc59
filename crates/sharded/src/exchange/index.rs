//! Boxes that meet a box.

use std::ops::Range;

use crate::ShardMetadata;

/// Shards in the order of one dim, so that those that meet a box are found without looking at all of them.
pub(crate) struct BoxIndex<'a> {
    shards: Vec<&'a ShardMetadata>,
    dim: usize,
    /// Positions in `shards` of those that are not empty, by where they begin in `dim`.
    order: Vec<usize>,
    /// The largest size in `dim`.
    longest: usize,
}

impl<'a> BoxIndex<'a> {
    pub(crate) fn new(shards: Vec<&'a ShardMetadata>) -> BoxIndex<'a> {
        let n_dims = shards.first().map_or(0, |shard| shard.n_dims());
        let mut best = (0, 0, Vec::new());
        let filled: Vec<usize> = (0..shards.len()).filter(|i| !shards[*i].is_empty()).collect();
        for dim in 0..n_dims {
            let mut order = filled.clone();
            order.sort_by_key(|index| shards[*index].offsets()[dim]);
            let starts =
                order.chunk_by(|a, b| shards[*a].offsets()[dim] == shards[*b].offsets()[dim]);
            let n_starts = starts.count();
            if n_starts > best.0 {
                best = (n_starts, dim, order);
            }
        }
        let (_, dim, order) = best;
        // A tensor without dims has one element, which every box has.
        let order = if n_dims == 0 { filled } else { order };
        let longest = match n_dims {
            0 => 0,
            _ => order.iter().map(|index| shards[*index].sizes()[dim]).max().unwrap_or(0),
        };
        BoxIndex { shards, dim, order, longest }
    }

    /// The positions of the shards that have elements of a box, ascending, each with the common indices.
    pub(crate) fn meeting(&self, other: &ShardMetadata) -> Vec<(usize, Vec<Range<usize>>)> {
        if other.is_empty() || self.order.is_empty() {
            return Vec::new();
        }
        let candidates = match other.n_dims() {
            0 => &*self.order,
            _ => {
                let range = other.range(self.dim);
                let start = |index: &usize| self.shards[*index].offsets()[self.dim];
                let first = self.order.partition_point(|i| start(i) + self.longest <= range.start);
                let end = self.order.partition_point(|i| start(i) < range.end);
                &self.order[first.min(end)..end]
            }
        };
        let common = |index: &usize| Some((*index, common_ranges(self.shards[*index], other)?));
        let mut met: Vec<_> = candidates.iter().filter_map(common).collect();
        met.sort_by_key(|(index, _)| *index);
        met
    }
}

/// The indices that two boxes have in common, if there are some.
fn common_ranges(a: &ShardMetadata, b: &ShardMetadata) -> Option<Vec<Range<usize>>> {
    let common = (0..a.n_dims()).map(|dim| {
        let (a, b) = (a.range(dim), b.range(dim));
        let range = a.start.max(b.start)..a.end.min(b.end);
        (!range.is_empty()).then_some(range)
    });
    common.collect()
}
