//! Overlaps of boxes that differ in many dims.
//!
//! Two intervals have something in common if and only if one contains the beginning of the other. So a pair of
//! boxes is looked for as an *interval* and a *point* in one dim after the other: in each, the points are
//! halved, an interval that spans all points of a half goes on to the next dim with them, and the others follow
//! the halves that they touch. That takes n log^(d-1) n steps (Zomorodian and Edelsbrunner, "Fast software for
//! box intersections", 2000).

use crate::ShardMetadata;

/// The positions of two shards that overlap, looked for in these dims.
pub(super) fn find(shards: &[ShardMetadata], dims: &[usize]) -> Option<(usize, usize)> {
    let all: Vec<usize> = (0..shards.len()).collect();
    Search { shards, dims }.among(&all, &all, (0, usize::MAX), dims.len().checked_sub(1)?)
}

/// Below so many boxes, all pairs are compared.
const FEW: usize = 16;

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
        span: (usize, usize),
        level: usize,
    ) -> Option<(usize, usize)> {
        if intervals.is_empty() || points.is_empty() {
            return None;
        }
        if level == 0 || intervals.len() < FEW || points.len() < FEW {
            return self.scan(intervals, points, level);
        }
        let dim = self.dims[level];
        let range = |index: usize| self.shards[index].range(dim);
        let spans = |index: &usize| range(*index).start <= span.0 && range(*index).end >= span.1;
        let (spanning, others): (Vec<usize>, Vec<usize>) = intervals.iter().partition(|i| spans(i));
        let everywhere = (0, usize::MAX);
        // In this dim they have something in common with every point; which of the two is the interval in the
        // next dim is open again.
        let found = self
            .among(&spanning, points, everywhere, level - 1)
            .or_else(|| self.among(points, &spanning, everywhere, level - 1));
        if found.is_some() {
            return found;
        }
        let mut starts: Vec<usize> = points.iter().map(|index| range(*index).start).collect();
        starts.sort_unstable();
        let middle = starts[starts.len() / 2];
        if middle == starts[0] {
            // All points begin together, at least half of them: they cannot be halved.
            let (here, rest): (Vec<usize>, Vec<usize>) =
                points.iter().partition(|index| range(**index).start == middle);
            let containing: Vec<usize> = others
                .iter()
                .copied()
                .filter(|i| range(*i).start <= middle && middle < range(*i).end)
                .collect();
            return self
                .among(&containing, &here, everywhere, level - 1)
                .or_else(|| self.among(&here, &containing, everywhere, level - 1))
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
        span: (usize, usize),
        level: usize,
    ) -> Option<(usize, usize)> {
        let dim = self.dims[level];
        let touches = |index: &usize| {
            let range = self.shards[*index].range(dim);
            range.start < span.1 && span.0 < range.end
        };
        let touching: Vec<usize> = intervals.iter().copied().filter(touches).collect();
        self.among(&touching, points, span, level)
    }

    /// Pairs of intervals and points in the order of the last dim.
    fn scan(&self, intervals: &[usize], points: &[usize], level: usize) -> Option<(usize, usize)> {
        let dim = self.dims[0];
        let start = |index: usize| self.shards[index].range(dim).start;
        let test = |a: usize, b: usize| {
            (a != b && self.shards[a].overlaps(&self.shards[b])).then(|| (a.min(b), a.max(b)))
        };
        if level > 0 {
            return intervals.iter().find_map(|a| points.iter().find_map(|b| test(*a, *b)));
        }
        let mut points = points.to_vec();
        points.sort_by_key(|index| start(*index));
        // Every pair that is met here has something in common in all dims, or the boxes are empty in one.
        intervals.iter().find_map(|interval| {
            let range = self.shards[*interval].range(dim);
            let first = points.partition_point(|point| start(*point) < range.start);
            let inside = points[first..].iter().take_while(|point| start(**point) < range.end);
            inside.copied().find_map(|point| test(*interval, point))
        })
    }
}
