//! Boxes that meet a box.

use std::ops::Range;

use crate::ShardMetadata;

/// Shards in the order of one dim, so that those that meet a box are found without looking at all of them.
pub(crate) struct BoxIndex<'a> {
    shards: Vec<&'a ShardMetadata>,
    dim: usize,
    /// Positions in `shards` of those that are not empty, by where they begin in `dim`.
    order: Vec<usize>,
    /// A binary tree over `order`: how far the shards below a node reach in `dim`. The root is 1, the children
    /// of `n` are `2 n` and `2 n + 1`, the second half are the leaves. One shard that is longer than all others
    /// then costs one leaf, and not a look at everything that begins after it.
    reach: Vec<usize>,
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
        let (order, reach) = match n_dims {
            0 => (filled, Vec::new()),
            _ => {
                let ends = order.iter().map(|index| shards[*index].range(dim).end);
                let reach = reach_of(ends);
                (order, reach)
            }
        };
        BoxIndex { shards, dim, order, reach }
    }

    /// The positions of the shards that have elements of a box, ascending, each with the common indices.
    pub(crate) fn meeting(&self, other: &ShardMetadata) -> Vec<(usize, Vec<Range<usize>>)> {
        if other.is_empty() || self.order.is_empty() {
            return Vec::new();
        }
        let candidates = match other.n_dims() {
            0 => self.order.clone(),
            _ => self.along(&other.range(self.dim)),
        };
        let common = |index: usize| Some((index, common_ranges(self.shards[index], other)?));
        let mut met: Vec<_> = candidates.into_iter().filter_map(common).collect();
        met.sort_by_key(|(index, _)| *index);
        met
    }

    /// The positions of the shards that have indices of a range in `dim`: the logarithm of all steps for each.
    fn along(&self, range: &Range<usize>) -> Vec<usize> {
        let start = |index: &usize| self.shards[*index].offsets()[self.dim];
        let n_begun = self.order.partition_point(|index| start(index) < range.end);
        let n_leaves = self.reach.len() / 2;
        let mut met = Vec::new();
        let mut nodes = vec![1];
        while let Some(node) = nodes.pop() {
            let first_leaf = (node << (n_leaves.ilog2() - usize::ilog2(node))) - n_leaves;
            if first_leaf >= n_begun || self.reach[node] <= range.start {
                continue;
            }
            match node < n_leaves {
                true => nodes.extend([2 * node + 1, 2 * node]),
                false => met.push(self.order[first_leaf]),
            }
        }
        met
    }
}

/// The tree of how far shards reach that end here.
fn reach_of(ends: impl ExactSizeIterator<Item = usize>) -> Vec<usize> {
    let n_leaves = ends.len().next_power_of_two();
    let mut reach = vec![0; 2 * n_leaves];
    for (leaf, end) in reach[n_leaves..].iter_mut().zip(ends) {
        *leaf = end;
    }
    for node in (1..n_leaves).rev() {
        reach[node] = reach[2 * node].max(reach[2 * node + 1]);
    }
    reach
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn boxed(sides: &[(usize, usize)]) -> ShardMetadata {
        let (offsets, sizes): (Vec<usize>, Vec<usize>) = sides.iter().copied().unzip();
        ShardMetadata::new(&offsets, &sizes, None).unwrap()
    }

    /// A list of boxes of one number of dims, which may overlap and be empty, and a box of that number of dims.
    fn boxes_and_one() -> impl Strategy<Value = (Vec<ShardMetadata>, ShardMetadata)> {
        (0..4_usize).prop_flat_map(|n_dims| {
            let one = || proptest::collection::vec((0..12_usize, 0..9_usize), n_dims);
            let list = proptest::collection::vec(one().prop_map(|sides| boxed(&sides)), 0..20);
            (list, one().prop_map(|sides| boxed(&sides)))
        })
    }

    proptest! {
        #[test]
        fn an_index_finds_what_a_look_at_all_boxes_finds((list, one) in boxes_and_one()) {
            let meets = |(index, shard): (usize, &ShardMetadata)| {
                let met = !shard.is_empty() && !one.is_empty();
                met.then(|| Some((index, common_ranges(shard, &one)?))).flatten()
            };
            let want: Vec<_> = list.iter().enumerate().filter_map(meets).collect();
            prop_assert_eq!(BoxIndex::new(list.iter().collect()).meeting(&one), want);
        }
    }

    #[test]
    fn one_long_box_does_not_make_all_others_candidates() {
        let mut list: Vec<_> = (0..1000).map(|row| boxed(&[(row, 1), (0, 4)])).collect();
        list.push(boxed(&[(0, 1000), (4, 1)]));
        let index = BoxIndex::new(list.iter().collect());
        assert_eq!(index.along(&(500..502)), [1000, 500, 501]);
        assert_eq!(index.meeting(&boxed(&[(500, 2), (0, 5)])).len(), 3);
    }
}
