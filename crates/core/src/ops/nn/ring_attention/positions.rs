//! Which positions the elements of a cut sequence have, and which of them see each other.

use std::ops::Range;

/// The order in which a sequence lies along its dim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Positions {
    /// Index `i` has position `i`.
    #[default]
    InOrder,
    /// For so many ranks: each has a part of the beginning and a part of the end. Where queries see no later keys, the
    /// last rank would otherwise have most of the work, and the first almost none.
    ///
    /// The dim is cut as into shards, and the first half of every shard (the larger one) goes on where that of
    /// the shard before it ends; the second halves follow, those of the last shard first. For a length that
    /// is a multiple of `2n`, shard `r` has the pieces `r` and `2n - 1 - r` of `2n`.
    ///
    /// ```
    /// use dtensor::ops::nn::Positions;
    /// assert_eq!(Positions::HeadTail(2).of(8), [0, 1, 6, 7, 2, 3, 4, 5]);
    /// assert_eq!(Positions::HeadTail(2).of(5), [0, 1, 4, 2, 3]);
    /// ```
    HeadTail(usize),
}

impl Positions {
    /// The position of every index of a sequence of this length.
    pub fn of(self, length: usize) -> Vec<usize> {
        self.runs(0..length, length).iter().flat_map(Run::positions).collect()
    }

    /// A range of indices of a sequence, as ranges of positions.
    pub(super) fn runs(self, range: Range<usize>, length: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut push = |indices: Range<usize>, first: usize| {
            let (start, end) = (indices.start.max(range.start), indices.end.min(range.end));
            if start >= end {
                return;
            }
            let at = start - range.start..end - range.start;
            let run = Run { at, first: first + start - indices.start };
            match runs.last_mut() {
                Some(last) if last.end() == run.first => last.at.end = run.at.end,
                _ => runs.push(run),
            }
        };
        match self {
            Positions::InOrder => push(range.clone(), range.start),
            Positions::HeadTail(ranks) => {
                let shard = length.div_ceil(ranks.max(1)).max(1);
                let (head, n_heads) = (shard.div_ceil(2), heads(length, shard));
                for number in range.start / shard..range.end.div_ceil(shard) {
                    let start = number * shard;
                    let end = length.min(start + shard);
                    let middle = start + (end - start).div_ceil(2);
                    push(start..middle, number * head);
                    // What the second halves of this shard and of those before it leave.
                    let is_short = end - start < shard;
                    let left = length - (number + 1) * (shard - head) * usize::from(!is_short);
                    push(middle..end, if is_short { n_heads } else { left });
                }
            }
        }
        runs
    }
}

/// The number of elements in the first halves of all shards.
fn heads(length: usize, shard: usize) -> usize {
    length / shard * shard.div_ceil(2) + (length % shard).div_ceil(2)
}

/// Elements of a part that have consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where they are in the part.
    at: Range<usize>,
    /// The position of the first.
    first: usize,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    fn end(&self) -> usize {
        self.first + self.len()
    }

    fn positions(&self) -> Range<usize> {
        self.first..self.end()
    }
}

/// Queries and keys of two parts that see each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    /// Whether query `i` of them sees only their keys `0..=i`, and not all.
    pub(super) causal: bool,
}

/// Whether any query of a part sees any key of another.
pub(super) fn sees(causal: bool, queries: &[Run], keys: &[Run]) -> bool {
    let (last, first) =
        (queries.iter().map(Run::end).max(), keys.iter().map(|run| run.first).min());
    match (last, first) {
        (Some(end), Some(first)) => !causal || first < end,
        _ => false,
    }
}

/// What the queries of a part see of the keys of another.
pub(super) fn pieces(causal: bool, queries: &[Run], keys: &[Run]) -> Vec<Piece> {
    let len = |runs: &[Run]| runs.last().map_or(0, |run| run.at.end);
    if !causal {
        let whole = Piece { queries: 0..len(queries), keys: 0..len(keys), causal };
        return Some(whole).filter(|_| sees(causal, queries, keys)).into_iter().collect();
    }
    let mut pieces = Vec::new();
    for query in queries {
        for key in keys {
            // Keys before all of the queries, and then those from the first query on, of the queries from the first
            // key on: there both begin at the same position.
            let before = key.len().min(query.first.saturating_sub(key.first));
            let full = Piece {
                queries: query.at.clone(),
                keys: key.at.start..key.at.start + before,
                causal: false,
            };
            let skipped = query.len().min(key.first.saturating_sub(query.first));
            let visible = key.len().min(query.end().saturating_sub(key.first));
            let diagonal = Piece {
                queries: query.at.start + skipped..query.at.end,
                keys: key.at.start + before..key.at.start + visible.max(before),
                causal: true,
            };
            let some = [full, diagonal].into_iter();
            pieces.extend(some.filter(|piece| !piece.queries.is_empty() && !piece.keys.is_empty()));
        }
    }
    joined(pieces)
}

/// The same with fewer and larger pieces: neighbouring keys of the same queries together, and then neighbouring
/// queries with the same keys.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let by_keys = merged(pieces, |last, next| {
        let joins = last.queries == next.queries && last.keys.end == next.keys.start;
        joins.then(|| last.keys.end = next.keys.end)
    });
    merged(by_keys, |last, next| {
        let joins = last.keys == next.keys && last.queries.end == next.queries.start;
        joins.then(|| last.queries.end = next.queries.end)
    })
}

fn merged(pieces: Vec<Piece>, join: impl Fn(&mut Piece, &Piece) -> Option<()>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::new();
    for next in pieces {
        let whole = merged.iter_mut().filter(|last| !last.causal && !next.causal);
        let mut joins = whole.filter_map(|last| join(last, &next));
        if joins.next().is_none() {
            merged.push(next);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::{Positions, pieces, sees};

    const ORDERS: [Positions; 4] = [
        Positions::InOrder,
        Positions::HeadTail(1),
        Positions::HeadTail(2),
        Positions::HeadTail(3),
    ];

    #[test]
    fn every_position_is_there_once() {
        for order in ORDERS {
            for length in 0..20 {
                let mut positions = order.of(length);
                positions.sort_unstable();
                assert!(positions.into_iter().eq(0..length), "{order:?} {length}");
            }
        }
    }

    #[test]
    fn a_shard_has_a_piece_of_the_beginning_and_its_counterpart() {
        let order = Positions::HeadTail(3).of(12);
        assert_eq!(order, [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]);
        assert_eq!(Positions::HeadTail(1).of(4), [0, 1, 2, 3]);
    }

    #[test]
    fn pieces_have_every_visible_pair_once() {
        for (order, causal) in ORDERS.into_iter().flat_map(|order| [(order, true), (order, false)])
        {
            for (n_queries, n_keys) in [(7, 7), (12, 12), (5, 9), (9, 4)] {
                let of_queries = order.of(n_queries);
                let of_keys = order.of(n_keys);
                for (at, keys_at) in
                    [(0..n_queries, 0..n_keys), (2..5, 1..4), (0..3, 3..4), (3..5, 0..2)]
                {
                    let runs = order.runs(at.clone(), n_queries);
                    let key_runs = order.runs(keys_at.clone(), n_keys);
                    let mut seen = vec![vec![0; keys_at.len()]; at.len()];
                    let found = pieces(causal, &runs, &key_runs);
                    assert_eq!(sees(causal, &runs, &key_runs), !found.is_empty());
                    for piece in found {
                        for (i, query) in piece.queries.clone().enumerate() {
                            for (j, key) in piece.keys.clone().enumerate() {
                                seen[query][key] += usize::from(!piece.causal || j <= i);
                            }
                        }
                    }
                    for (query, row) in seen.iter().enumerate() {
                        for (key, times) in row.iter().enumerate() {
                            let (query, key) =
                                (of_queries[at.start + query], of_keys[keys_at.start + key]);
                            let want = usize::from(!causal || key <= query);
                            assert_eq!(*times, want, "{order:?} {query} {key}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn balanced_shards_see_each_other_in_one_piece() {
        let order = Positions::HeadTail(4);
        let runs: Vec<_> = (0..4).map(|r| order.runs(r * 4..r * 4 + 4, 16)).collect();
        for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))).filter(|(i, j)| i != j) {
            assert_eq!(pieces(true, &runs[i], &runs[j]).len(), 1, "{i} {j}");
        }
    }
}
