//! Overlaps of boxes that differ in many dims.
//!
//! Two intervals have something in common if and only if one contains the beginning of the other. So a pair of
//! boxes is looked for as an *interval* and a *point* in one dim after the other: in each, the points are
//! halved, an interval that spans all points of a half goes on to the next dim with them, and the others follow
//! the halves that they touch (Zomorodian and Edelsbrunner, "Fast software for box intersections", 2000). That
//! takes n log^(d-1) n steps, if every pair that is met at the end is one that is looked for, so that the first
//! ends the search.
//!
//! Boxes that are empty in a dim would spoil it: two of them at one place never overlap, and any number may lie
//! there. So boxes are taken apart by the dims in which they are empty, and only kinds without a common one
//! are looked at, two at a time. There are a handful of kinds: chunks have one besides the boxes with elements.
//! With k of them the bound is k times as large; only lists that were made for it have more than 2d.

use std::{collections::BTreeMap, ops::Range};

use crate::ShardMetadata;

/// The positions of two shards that overlap, looked for in these dims.
pub(super) fn find(shards: &[ShardMetadata], dims: &[usize]) -> Option<(usize, usize)> {
    let level = dims.len().checked_sub(1)?;
    let mut kinds: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (index, shard) in shards.iter().enumerate() {
        let empty = dims.iter().copied().filter(|dim| shard.sizes()[*dim] == 0).collect();
        kinds.entry(empty).or_default().push(index);
    }
    let search = Search { shards, dims };
    let kinds: Vec<(Vec<usize>, Vec<usize>)> = kinds.into_iter().collect();
    kinds.iter().enumerate().find_map(|(n, (empty, own))| {
        if empty.is_empty()
            && let Some(found) = search.among(own, own, EVERYWHERE, level)
        {
            return Some(found);
        }
        let can_meet = |(other, _): &&(Vec<usize>, Vec<usize>)| {
            !other.iter().any(|dim| empty.binary_search(dim).is_ok())
        };
        kinds[n + 1..].iter().filter(can_meet).find_map(|(_, others)| {
            let first = search.among(own, others, EVERYWHERE, level);
            first.or_else(|| search.among(others, own, EVERYWHERE, level))
        })
    })
}

/// Below so many boxes, all pairs are compared.
const FEW: usize = 16;
const EVERYWHERE: (u128, u128) = (0, u128::MAX);

struct Search<'a> {
    shards: &'a [ShardMetadata],
    dims: &'a [usize],
}

impl Search<'_> {
    /// An overlap of one of the `intervals` with one of the `points` that begin within `span` in the dim of
    /// this level.
    fn among(
        &self,
        intervals: &[usize],
        points: &[usize],
        span: (u128, u128),
        level: usize,
    ) -> Option<(usize, usize)> {
        if intervals.is_empty() || points.is_empty() {
            return None;
        }
        if level == 0 || intervals.len() < FEW || points.len() < FEW {
            return self.scan(intervals, points, level);
        }
        let range = |index: usize| self.range(index, level);
        let spans = |index: &usize| range(*index).start <= span.0 && range(*index).end >= span.1;
        let (spanning, others): (Vec<usize>, Vec<usize>) = intervals.iter().partition(|i| spans(i));
        // In this dim they have something in common with every point; which of the two is the interval in the
        // next dim is open again.
        let found = self
            .among(&spanning, points, EVERYWHERE, level - 1)
            .or_else(|| self.among(points, &spanning, EVERYWHERE, level - 1));
        if found.is_some() {
            return found;
        }
        let mut starts: Vec<u128> = points.iter().map(|index| range(*index).start).collect();
        starts.sort_unstable();
        let middle = starts[starts.len() / 2];
        if middle == starts[0] {
            // All points begin together, at least half of them: they cannot be halved.
            let (here, rest): (Vec<usize>, Vec<usize>) =
                points.iter().partition(|index| range(**index).start == middle);
            let containing: Vec<usize> =
                others.iter().copied().filter(|i| range(*i).contains(&middle)).collect();
            return self
                .among(&containing, &here, EVERYWHERE, level - 1)
                .or_else(|| self.among(&here, &containing, EVERYWHERE, level - 1))
                .or_else(|| self.half(&others, &rest, (middle + 1, span.1), level));
        }
        let (left, right): (Vec<usize>, Vec<usize>) =
            points.iter().partition(|index| range(**index).start < middle);
        self.half(&others, &left, (span.0, middle), level)
            .or_else(|| self.half(&others, &right, (middle, span.1), level))
    }

    /// The same in one half, with the intervals that touch it.
    fn half(
        &self,
        intervals: &[usize],
        points: &[usize],
        span: (u128, u128),
        level: usize,
    ) -> Option<(usize, usize)> {
        let touches = |index: &usize| {
            let range = self.range(*index, level);
            range.start < span.1 && span.0 < range.end
        };
        let touching: Vec<usize> = intervals.iter().copied().filter(touches).collect();
        self.among(&touching, points, span, level)
    }

    /// Pairs of intervals and points in the order of the last dim.
    fn scan(&self, intervals: &[usize], points: &[usize], level: usize) -> Option<(usize, usize)> {
        let start = |index: usize| self.range(index, 0).start;
        let test = |a: usize, b: usize| {
            (a != b && self.shards[a].overlaps(&self.shards[b])).then(|| (a.min(b), a.max(b)))
        };
        if level > 0 {
            return intervals.iter().find_map(|a| points.iter().find_map(|b| test(*a, *b)));
        }
        let mut points = points.to_vec();
        points.sort_by_key(|index| start(*index));
        // Every pair that is met here overlaps, but for a box and itself.
        intervals.iter().find_map(|interval| {
            let range = self.range(*interval, 0);
            let first = points.partition_point(|point| start(*point) < range.start);
            let inside = points[first..].iter().take_while(|point| start(**point) < range.end);
            inside.copied().find_map(|point| test(*interval, point))
        })
    }

    /// The places of a box in a dim, none of them empty: indices are the odd places, and the even ones lie
    /// between them. So a box that is empty has the one place where it would cut another.
    fn range(&self, index: usize, level: usize) -> Range<u128> {
        let Range { start, end } = self.shards[index].range(self.dims[level]);
        let (start, end) = (2 * start as u128, 2 * end as u128);
        if start == end { start..start + 1 } else { start + 1..end }
    }
}
