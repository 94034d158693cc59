use std::{fmt, ops::Range};

use crate::Intervals;

/// A box of global indices: one range per tensor dim.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IndexBox(pub Vec<Range<usize>>);

impl IndexBox {
    /// All indices of a tensor of this shape.
    pub fn whole(shape: &[usize]) -> IndexBox {
        IndexBox(shape.iter().map(|&size| 0..size).collect())
    }

    /// Number of elements; the box of a 0-dim tensor has one.
    pub fn numel(&self) -> usize {
        numel(self.0.iter().map(Range::len))
    }

    /// Size in every dim.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(Range::len).collect()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.0.iter().any(Range::is_empty)
    }
}

impl fmt::Debug for IndexBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for IndexBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (dim, range) in self.0.iter().enumerate() {
            let comma = if dim == 0 { "" } else { ", " };
            write!(f, "{comma}{}..{}", range.start, range.end)?;
        }
        f.write_str("]")
    }
}

/// All boxes with one range of every dim, the last dim varying fastest.
pub(crate) fn product(dims: &[Intervals]) -> Vec<IndexBox> {
    let mut boxes = vec![IndexBox(Vec::with_capacity(dims.len()))];
    for held in dims {
        boxes = boxes
            .into_iter()
            .flat_map(|done| {
                held.iter().map(move |range| IndexBox([done.0.as_slice(), &[range]].concat()))
            })
            .collect();
    }
    boxes
}

/// The product of sizes that are within those of a tensor. With a zero among them it is zero,
/// though the others alone may multiply to more than a `usize` holds.
pub(crate) fn numel(sizes: impl Iterator<Item = usize>) -> usize {
    sizes.reduce(usize::saturating_mul).unwrap_or(1)
}
