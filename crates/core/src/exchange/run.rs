//! Equally spaced indices.

use std::ops::Range;

/// Along one dim: the indices `to` of the result are the indices `from`, `from + step`, ... of the source. A
/// step of 0 repeats one, a negative one runs backwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) to: Range<usize>,
    pub(crate) from: usize,
    pub(crate) step: isize,
}

impl Run {
    /// `n` indices from `from` on, at the beginning of the result.
    pub(crate) fn whole(n: usize) -> Run {
        Run { to: 0..n, from: 0, step: 1 }
    }

    /// All indices of a range of the source, at the beginning of the result.
    pub(crate) fn of(range: Range<usize>) -> Run {
        Run { to: 0..range.len(), from: range.start, step: 1 }
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
    pub(super) fn clipped(&self, held: &Range<usize>) -> Option<Run> {
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

    /// The source index of its `number`-th.
    pub(super) fn at(&self, number: usize) -> usize {
        self.from.wrapping_add_signed(self.step.wrapping_mul(number as isize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs worth trying, with their source indices.
    fn runs() -> impl Iterator<Item = (Run, Vec<usize>)> {
        let all = (-3_isize..=3).flat_map(|step| {
            (0..12_usize).flat_map(move |from| (1..6_usize).map(move |n| (step, from, n)))
        });
        all.filter_map(|(step, from, n)| {
            let sources = (0..n).map(|i| from.checked_add_signed(step * i as isize));
            Some((Run { to: 4..4 + n, from, step }, sources.collect::<Option<Vec<_>>>()?))
        })
    }

    /// Against a list of all pairs of indices.
    #[test]
    fn a_run_is_clipped_to_what_is_held() {
        for (run, sources) in runs() {
            for start in 0..12 {
                for end in start..14 {
                    let inside = |i: &usize| (start..end).contains(&sources[*i]);
                    let want: Vec<usize> = (0..sources.len()).filter(inside).collect();
                    let got = run.clipped(&(start..end));
                    let got: Vec<usize> = got.map_or(Vec::new(), |part| {
                        assert_eq!(part.from, sources[part.to.start - 4]);
                        (part.to.start - 4..part.to.end - 4).collect()
                    });
                    assert_eq!(got, want, "{run:?} in {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn a_run_within_a_part_counts_from_the_beginning_of_the_part() {
        for (run, sources) in runs() {
            for start in 0..12 {
                for end in start..12 {
                    let want: Vec<(usize, usize)> = (run.to.clone())
                        .zip(sources.iter().copied())
                        .filter(|(to, _)| (start..end).contains(to))
                        .map(|(to, from)| (to - start, from))
                        .collect();
                    let got: Vec<(usize, usize)> =
                        run.within(&(start..end)).map_or(Vec::new(), |part| {
                            let from = (0..part.to.len()).map(|i| part.at(i));
                            part.to.clone().zip(from).collect()
                        });
                    assert_eq!(got, want, "{run:?} within {start}..{end}");
                }
            }
        }
    }
}
