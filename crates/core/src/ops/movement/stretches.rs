//! What a reshape does to indices.
//!
//! Both shapes are split into stretches: dims of the one side that together are as many elements as dims of
//! the other, `[2, 3 | 4]` and `[6 | 4]`. Within a stretch all that matters is the *place* of an element when
//! it is seen as one line.

use std::ops::Range;

/// Dims of the two sides that have the same elements, as few as possible. A side is empty only where there are
/// nothing but dims of size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) from: Range<usize>,
    pub(super) to: Range<usize>,
}

/// Consecutive places of a stretch, as boxes of the indices of its first side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Together they are all elements, each once.
    pub(super) boxes: Vec<Vec<Range<usize>>>,
    /// A box around them in which, seen as one line, they are consecutive.
    pub(super) cover: Vec<Range<usize>>,
    /// Where they begin there.
    pub(super) start: usize,
    /// How many they are.
    pub(super) length: usize,
}

/// The stretches of two shapes of equally many elements, of which there are some.
pub(super) fn stretches(from: &[usize], to: &[usize]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let first = (i, j);
        let (mut p, mut q) = (1, 1);
        loop {
            // The smaller side takes its next dim; each at least one, if it has one.
            if (p <= q && i < from.len() && !(p == q && i > first.0)) || j == to.len() {
                p *= from[i];
                i += 1;
            } else {
                q *= to[j];
                j += 1;
            }
            let both = i > first.0 && j > first.1;
            if p == q && both || i == from.len() && j == to.len() {
                break;
            }
        }
        let stretch = Stretch { from: first.0..i, to: first.1..j };
        match all.last_mut() {
            // Dims of size 1 at the end belong to what is before them.
            Some(last) if stretch.from.is_empty() || stretch.to.is_empty() => {
                (last.from.end, last.to.end) = (i, j);
            }
            _ => all.push(stretch),
        }
    }
    all
}

/// The places of a box of the second side: ranges of consecutive ones, in order.
pub(super) fn places(shape: &[usize], part: &[Range<usize>]) -> Vec<Range<usize>> {
    if part.iter().any(Range::is_empty) {
        return Vec::new();
    }
    // Up to the last dim that is not whole, every index begins another range.
    let cut = (0..shape.len()).rev().find(|dim| part[*dim].len() < shape[*dim]).unwrap_or(0);
    let inner = |dim: usize| shape[dim + 1..].iter().product::<usize>();
    let Some(last) = part.get(cut) else { return std::iter::once(0..1).collect() };
    let outer = (0..cut).fold(vec![0], |starts: Vec<usize>, dim| {
        let indices = || part[dim].clone().map(|index| index * inner(dim));
        starts.iter().flat_map(|start| indices().map(move |index| start + index)).collect()
    });
    let inner = inner(cut);
    outer.iter().map(|start| start + last.start * inner..start + last.end * inner).collect()
}

impl Line {
    /// The line of these places, of which there are some, in dims of these sizes.
    pub(super) fn new(shape: &[usize], places: Range<usize>) -> Line {
        let boxes = boxes(shape, places.clone());
        let cover: Vec<Range<usize>> = (0..shape.len())
            .map(|dim| {
                let ranges = || boxes.iter().map(|one| &one[dim]);
                let start = ranges().map(|range| range.start).min().unwrap_or(0);
                start..ranges().map(|range| range.end).max().unwrap_or(0)
            })
            .collect();
        let first =
            cover.iter().zip(shape).fold(0, |place, (range, size)| place * size + range.start);
        Line { boxes, cover, start: places.start - first, length: places.len() }
    }
}

/// Consecutive places as boxes: what is left of the first row, whole rows, what there is of the last.
fn boxes(shape: &[usize], places: Range<usize>) -> Vec<Vec<Range<usize>>> {
    let Some((_, rest)) = shape.split_first() else { return vec![Vec::new()] };
    let inner: usize = rest.iter().product();
    let with = |index: usize, places: Range<usize>| {
        let row = places.start - index * inner..places.end - index * inner;
        boxes(rest, row).into_iter().map(move |mut one| {
            one.insert(0, index..index + 1);
            one
        })
    };
    let (first, last) = (places.start / inner, (places.end - 1) / inner);
    if first == last && places.len() < inner {
        return with(first, places).collect();
    }
    let whole = places.start.div_ceil(inner)..places.end / inner;
    let mut all = Vec::new();
    if first < whole.start {
        all.extend(with(first, places.start..whole.start * inner));
    }
    if !whole.is_empty() {
        let rows = std::iter::once(whole.clone()).chain(rest.iter().map(|size| 0..*size));
        all.push(rows.collect());
    }
    if whole.end <= last {
        all.extend(with(last, whole.end * inner..places.end));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &[usize], to: &[usize], want: &[(Range<usize>, Range<usize>)]) {
        let got: Vec<_> = stretches(from, to).into_iter().map(|one| (one.from, one.to)).collect();
        assert_eq!(got, want, "{from:?} to {to:?}");
    }

    #[test]
    fn stretches_are_as_short_as_they_can_be() {
        check(&[6, 4], &[24], &[(0..2, 0..1)]);
        check(&[2, 3, 4], &[6, 4], &[(0..2, 0..1), (2..3, 1..2)]);
        check(&[4, 6], &[6, 4], &[(0..2, 0..2)]);
        check(&[2, 2, 6], &[2, 12], &[(0..1, 0..1), (1..3, 1..2)]);
        check(&[1, 6], &[6, 1], &[(0..2, 0..2)]);
        check(&[1, 6], &[1, 2, 3], &[(0..1, 0..1), (1..2, 1..3)]);
        check(&[6, 1], &[6], &[(0..2, 0..1)]);
        check(&[6], &[1, 1, 6], &[(0..1, 0..3)]);
        check(&[1], &[], &[(0..1, 0..0)]);
        check(&[], &[1, 1], &[(0..0, 0..2)]);
        check(&[], &[], &[]);
    }

    #[test]
    fn the_places_of_a_box_are_those_of_its_elements() {
        let shape = [2, 3, 4];
        for (a, b, c) in
            [(0..2, 0..3, 0..4), (0..2, 1..3, 0..4), (0..2, 0..3, 1..2), (1..1, 0..3, 0..4)]
        {
            let mut want = Vec::new();
            for i in a.clone() {
                for j in b.clone() {
                    want.extend(c.clone().map(|k| (i * 3 + j) * 4 + k));
                }
            }
            let ranges = places(&shape, &[a, b, c]);
            assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), want, "{ranges:?}");
        }
        assert_eq!(places(&[], &[]).into_iter().flatten().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_line_has_every_place_once_and_lies_in_its_cover() {
        for shape in [&[5_usize][..], &[2, 3], &[2, 3, 4], &[3, 1, 2], &[1, 4]] {
            let n: usize = shape.iter().product();
            for start in 0..n {
                for end in start + 1..=n {
                    let line = Line::new(shape, start..end);
                    let mut got = Vec::new();
                    let mut in_cover = Vec::new();
                    for one in &line.boxes {
                        let sizes: Vec<usize> = line.cover.iter().map(Range::len).collect();
                        let local: Vec<Range<usize>> = (one.iter().zip(&line.cover))
                            .map(|(range, cover)| {
                                range.start - cover.start..range.end - cover.start
                            })
                            .collect();
                        got.extend(places(shape, one).into_iter().flatten());
                        in_cover.extend(places(&sizes, &local).into_iter().flatten());
                    }
                    assert_eq!(got, (start..end).collect::<Vec<_>>(), "{shape:?}");
                    let want = line.start..line.start + line.length;
                    assert_eq!(in_cover, want.collect::<Vec<_>>(), "{shape:?} {start}..{end}");
                }
            }
        }
    }
}
