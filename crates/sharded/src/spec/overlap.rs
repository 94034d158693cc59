//! Two boxes with common elements, if there are some.
//!
//! Only dims in which the boxes differ matter. With one, neighbours in sorted order are compared. With two, a
//! line sweeps over one dim; what it crosses at any moment are intervals of the other, and as long as no two
//! overlap they are in order, so that a new one is compared with one of them. Both take the time of sorting.
//! With more dims, which nobody has in large numbers, [`overlap_many`](super::overlap_many) halves the boxes
//! dim by dim: n log^(d-1) n.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::overlap_many;
use crate::ShardMetadata;

/// The positions of two shards that overlap.
pub(super) fn find_overlap(shards: &[ShardMetadata]) -> Option<(usize, usize)> {
    let (first, others) = shards.split_first()?;
    if others.is_empty() {
        return None;
    }
    let differs = |dim: &usize| others.iter().any(|shard| shard.range(*dim) != first.range(*dim));
    let dims: Vec<usize> = (0..first.n_dims()).filter(differs).collect();
    match &*dims {
        [] => identical(first).then_some((0, 1)),
        // In the other dims all are the same; where they are empty there, they have nothing in common.
        _ if is_void(first, &dims) => None,
        [dim] => along(shards, *dim),
        [sweep, across] => swept(shards, *sweep, *across),
        _ => overlap_many::find(shards, &dims),
    }
}

/// Whether shards that are all the same overlap. Empty ones at the origin do not: so a rank writes shards that
/// are not known to it.
fn identical(shard: &ShardMetadata) -> bool {
    !(shard.is_empty() && shard.offsets().iter().all(|offset| *offset == 0))
}

/// Whether the shards are empty in a dim in which they are all the same.
fn is_void(shard: &ShardMetadata, differing: &[usize]) -> bool {
    (0..shard.n_dims()).any(|dim| shard.sizes()[dim] == 0 && !differing.contains(&dim))
}

/// Of boxes that differ in one dim.
fn along(shards: &[ShardMetadata], dim: usize) -> Option<(usize, usize)> {
    let order = sorted(shards, dim);
    // The one that reaches farthest of those before.
    let mut farthest = *order.first()?;
    for &current in &order[1..] {
        if shards[farthest].overlaps(&shards[current]) {
            return Some((farthest, current));
        }
        if shards[current].range(dim).end > shards[farthest].range(dim).end {
            farthest = current;
        }
    }
    None
}

/// Of boxes that differ in two dims.
fn swept(shards: &[ShardMetadata], sweep: usize, across: usize) -> Option<(usize, usize)> {
    // What the line crosses, by where it begins and ends in the other dim.
    let mut crossed: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
    let mut ends = BinaryHeap::new();
    for current in sorted(shards, sweep) {
        let shard = &shards[current];
        while let Some(Reverse((end, key))) = ends.peek() {
            if *end > shard.range(sweep).start {
                break;
            }
            crossed.remove(key);
            ends.pop();
        }
        let own = shard.range(across);
        // Those in `crossed` do not overlap, so of all that begin before the end of this one the last ends
        // last.
        if let Some((_, other)) = crossed.range(..(own.end, 0, 0)).next_back()
            && shards[*other].overlaps(shard)
        {
            return Some((*other, current));
        }
        let key = (own.start, own.end, current);
        crossed.insert(key, current);
        ends.push(Reverse((shard.range(sweep).end, key)));
    }
    None
}

/// By where they begin in a dim; among those that begin together, the empty ones first.
fn sorted(shards: &[ShardMetadata], dim: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shards.len()).collect();
    order.sort_by_key(|index| (shards[*index].range(dim).start, shards[*index].range(dim).end));
    order
}
