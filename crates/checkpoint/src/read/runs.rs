//! Elements that two row-major arrays share, as runs that are consecutive in both.

use std::ops::Range;

use dtensor_layout::IndexBox;

/// The box that two row-major arrays share, and where its elements lie in each: `from`, which is read, and `to`, which is written.
///
/// The elements are counted in row-major order of the box: in the order in which both arrays have them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Overlap {
    /// Outermost first, neighbours joined where they are one run in both. The last one steps by 1 in both.
    dims: Vec<Dim>,
    from_start: usize,
    to_start: usize,
    numel: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim {
    size: usize,
    /// Elements from one index to the next.
    from: usize,
    to: usize,
}

/// A row-major array that holds a box.
pub(crate) struct Array<'a> {
    /// Where the box begins in it, per dim.
    pub start: &'a [usize],
    /// Its size per dim.
    pub shape: &'a [usize],
}

impl Overlap {
    /// A box of this shape, as it lies in two arrays.
    pub(crate) fn new(shape: &[usize], from: &Array<'_>, to: &Array<'_>) -> Overlap {
        let mut dims: Vec<Dim> = Vec::with_capacity(shape.len() + 1);
        let (mut from_start, mut to_start) = (0, 0);
        let (mut from_step, mut to_step) = (1, 1);
        for dim in (0..shape.len()).rev() {
            from_start += from.start[dim] * from_step;
            to_start += to.start[dim] * to_step;
            match dims.last_mut() {
                _ if shape[dim] == 1 => {}
                Some(inner)
                    if inner.size * inner.from == from_step && inner.size * inner.to == to_step =>
                {
                    inner.size *= shape[dim];
                }
                _ => dims.push(Dim { size: shape[dim], from: from_step, to: to_step }),
            }
            from_step *= from.shape[dim];
            to_step *= to.shape[dim];
        }
        // Elements that are neighbours in neither are runs of one.
        if dims.first().is_none_or(|last| (last.from, last.to) != (1, 1)) {
            dims.insert(0, Dim { size: 1, from: 1, to: 1 });
        }
        dims.reverse();
        let numel = shape.iter().product();
        Overlap { dims, from_start, to_start, numel }
    }

    /// What two boxes of a tensor share, each of them an array of its own; `None` if that is nothing.
    pub(crate) fn of_boxes(from: &IndexBox, to: &IndexBox) -> Option<Overlap> {
        let mut shared = Vec::with_capacity(from.0.len());
        let (mut from_start, mut to_start) = (shared.clone(), shared.clone());
        for (one, other) in from.0.iter().zip(&to.0) {
            let (start, end) = (one.start.max(other.start), one.end.min(other.end));
            if start >= end {
                return None;
            }
            shared.push(end - start);
            from_start.push(start - one.start);
            to_start.push(start - other.start);
        }
        let from = Array { start: &from_start, shape: &from.shape() };
        Some(Overlap::new(&shared, &from, &Array { start: &to_start, shape: &to.shape() }))
    }

    /// Number of elements.
    pub(crate) fn numel(&self) -> usize {
        self.numel
    }

    /// How many elements lie before position `end` of the array that is read: in that order, so that those of a range of
    /// the array are themselves a range.
    pub(crate) fn before(&self, end: usize) -> usize {
        let Some(mut rest) = end.checked_sub(self.from_start) else { return 0 };
        let (mut count, mut inner) = (0, self.numel);
        for dim in &self.dims {
            inner /= dim.size.max(1);
            let index = rest / dim.from;
            if index >= dim.size {
                return count + dim.size * inner;
            }
            count += index * inner;
            rest -= index * dim.from;
        }
        count
    }

    /// Which elements lie in a range of the array that is read.
    pub(crate) fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.before(range.start)..self.before(range.end)
    }

    /// Whether these elements are consecutive in both arrays.
    pub(crate) fn is_one_run(&self, elements: &Range<usize>) -> bool {
        let run = self.run();
        elements.is_empty() || elements.start / run == (elements.end - 1) / run
    }

    /// Where an element lies in the arrays.
    pub(crate) fn position(&self, element: usize) -> (usize, usize) {
        let (mut from, mut to, mut rest) = (self.from_start, self.to_start, element);
        for dim in self.dims.iter().rev() {
            let index = rest % dim.size.max(1);
            rest /= dim.size.max(1);
            from += index * dim.from;
            to += index * dim.to;
        }
        (from, to)
    }

    /// Where these elements begin in the array that is written, if there are some and they are consecutive there.
    pub(crate) fn run_in_to(&self, elements: &Range<usize>) -> Option<usize> {
        let last = elements.end.checked_sub(1).filter(|last| elements.contains(last))?;
        let (start, end) = (self.position(elements.start).1, self.position(last).1);
        (end - start == last - elements.start).then_some(start)
    }

    /// Calls `each` with the runs of these elements: where a run lies in both arrays, and how long it is.
    pub(crate) fn for_runs(
        &self,
        elements: Range<usize>,
        mut each: impl FnMut(usize, usize, usize),
    ) {
        if elements.is_empty() {
            return;
        }
        let (run, rows) = (self.run(), self.dims.len() - 1);
        // The row that has begun, as an index per dim before the last, and where it begins.
        let mut index = vec![0; rows];
        let mut rest = elements.start / run;
        for (index, dim) in index.iter_mut().zip(&self.dims).rev() {
            (*index, rest) = (rest % dim.size, rest / dim.size);
        }
        let (mut from, mut to) = self.position(elements.start / run * run);
        let (mut at, mut column) = (elements.start, elements.start % run);
        loop {
            let length = (run - column).min(elements.end - at);
            each(from + column, to + column, length);
            at += length;
            if at == elements.end {
                return;
            }
            column = 0;
            for (index, dim) in index.iter_mut().zip(&self.dims).rev() {
                (from, to) = (from + dim.from, to + dim.to);
                *index += 1;
                if *index < dim.size {
                    break;
                }
                *index = 0;
                (from, to) = (from - dim.size * dim.from, to - dim.size * dim.to);
            }
        }
    }

    fn run(&self) -> usize {
        self.dims.last().map_or(1, |dim| dim.size.max(1))
    }
}

/// Copies a few bytes or many; of the lengths of single elements, without a call.
#[inline]
pub(crate) fn copy_bytes(from: &[u8], to: &mut [u8]) {
    #[inline(always)]
    fn fixed<const N: usize>(from: &[u8], to: &mut [u8]) {
        if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
            *to = *from;
        }
    }
    match to.len() {
        1 => fixed::<1>(from, to),
        2 => fixed::<2>(from, to),
        4 => fixed::<4>(from, to),
        8 => fixed::<8>(from, to),
        _ => to.copy_from_slice(from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All positions of a box in an array, in order, by plain loops.
    fn positions(shape: &[usize], array: &Array<'_>) -> Vec<usize> {
        let mut all = vec![0];
        for ((size, start), length) in shape.iter().zip(array.start).zip(array.shape) {
            let step = |before: &usize| before * length + start..before * length + start + size;
            all = all.iter().flat_map(step).collect();
        }
        all
    }

    #[test]
    fn runs_are_the_elements_in_order_whatever_is_joined() {
        let cases: &[[&[usize]; 5]] = &[
            [&[], &[], &[], &[], &[]],
            [&[1, 1], &[2, 3], &[4, 5], &[0, 0], &[1, 1]],
            [&[4], &[2], &[7], &[1], &[5]],
            [&[3, 4], &[1, 0], &[5, 4], &[0, 0], &[3, 4]],
            [&[3, 4], &[1, 2], &[5, 7], &[2, 0], &[9, 4]],
            [&[3, 1], &[0, 1], &[3, 2], &[0, 0], &[3, 1]],
            [&[2, 3, 4], &[0, 1, 0], &[2, 5, 4], &[1, 0, 2], &[3, 3, 7]],
            [&[2, 1, 4], &[1, 0, 0], &[3, 1, 4], &[0, 2, 0], &[2, 4, 4]],
            [&[2, 3, 1, 2], &[0, 0, 1, 0], &[2, 3, 2, 2], &[0, 0, 0, 0], &[2, 3, 1, 2]],
        ];
        for [shape, from_start, from_shape, to_start, to_shape] in cases {
            let from = Array { start: from_start, shape: from_shape };
            let to = Array { start: to_start, shape: to_shape };
            let overlap = Overlap::new(shape, &from, &to);
            let (from, to) = (positions(shape, &from), positions(shape, &to));
            assert_eq!(overlap.numel(), from.len());
            for start in 0..=from.len() {
                for end in start..=from.len() {
                    let mut pairs = Vec::new();
                    let mut runs = 0;
                    overlap.for_runs(start..end, |from, to, length| {
                        pairs.extend((from..from + length).zip(to..to + length));
                        runs += 1;
                    });
                    let want: Vec<_> = from[start..end]
                        .iter()
                        .copied()
                        .zip(to[start..end].iter().copied())
                        .collect();
                    assert_eq!(pairs, want, "{overlap:?} {start}..{end}");
                    assert_eq!(overlap.is_one_run(&(start..end)), runs <= 1);
                    let in_to = to[start..end].windows(2).all(|pair| pair[1] == pair[0] + 1);
                    let in_to = to[start..end].first().filter(|_| in_to).copied();
                    assert_eq!(overlap.run_in_to(&(start..end)), in_to);
                }
            }
            for (element, pair) in from.iter().copied().zip(to.iter().copied()).enumerate() {
                assert_eq!(overlap.position(element), pair);
            }
            for end in 0..=from_shape.iter().product::<usize>() + 1 {
                let want = from.iter().filter(|position| **position < end).count();
                assert_eq!(overlap.before(end), want, "{overlap:?} before {end}");
            }
        }
    }

    #[test]
    fn boxes_that_touch_share_nothing() {
        let one = IndexBox(vec![0..2, 0..4]);
        assert_eq!(Overlap::of_boxes(&one, &IndexBox(vec![2..3, 0..4])), None);
        assert_eq!(Overlap::of_boxes(&one, &IndexBox(vec![1..5, 3..4])).unwrap().numel(), 1);
    }
}
