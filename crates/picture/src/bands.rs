use std::ops::Range;

use dtensor_layout::Layout;

use dtensor_layout::Result;

use crate::lengths::lengths;

/// A stretch of one dim in a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Band {
    /// Indices that the same ranks hold, with the index of those ranks on every axis that cuts
    /// the dim.
    Held { range: Range<usize>, owner: Vec<(usize, usize)> },
    /// Bands that are not drawn.
    Skipped { range: Range<usize> },
}

impl Band {
    pub fn range(&self) -> &Range<usize> {
        match self {
            Band::Held { range, .. } | Band::Skipped { range } => range,
        }
    }
}

/// The bands of one dim, of which at most `most` (three or more) are drawn: the first ones and the
/// last. Costs time in proportion to `most`, not to the number of ranks: each band is found by
/// asking who owns the index where it starts.
///
/// The tensor must have elements.
pub fn bands(layout: &Layout, dim: usize, most: usize) -> Result<Vec<Band>> {
    let size = layout.global_shape()[dim];
    let mut bands = Vec::new();
    let mut next = 0;
    while next < size && bands.len() < most {
        let band = band_at(layout, dim, next)?;
        next = band.range().end;
        bands.push(band);
    }
    if next < size {
        // One of the drawn ones is the last, one says that some are missing.
        bands.truncate(most.max(3) - 2);
        let last = band_at(layout, dim, size - 1)?;
        let drawn = bands.last().map_or(0, |band| band.range().end);
        bands.push(Band::Skipped { range: drawn..last.range().start });
        bands.push(last);
    }
    Ok(bands)
}

/// The ranks that hold an index of a dim, and what they hold around it.
pub fn band_at(layout: &Layout, dim: usize, index: usize) -> Result<Band> {
    let mut element = vec![0; layout.n_dims()];
    element[dim] = index;
    let coord = layout.owner(&element)?;
    let held = layout.intervals(dim, &coord);
    let range = held.iter().find(|range| range.contains(&index)).unwrap_or(index..index + 1);
    let cuts = layout.order().cuts(dim).iter();
    Ok(Band::Held { range, owner: cuts.map(|cut| (cut.axis, coord[cut.axis])).collect() })
}

/// Number of bands of a dim, or `None` where only drawing them all would tell: one for each
/// coordinate that holds something, unless a strided shard gives it several.
pub fn n_bands(layout: &Layout, dim: usize) -> Option<usize> {
    let plain = layout.order().cuts(dim).iter().all(|cut| cut.split_factor == 1);
    let held = lengths(layout, dim).into_iter().filter(|(length, _)| *length > 0);
    plain.then(|| held.map(|(_, coords)| coords).sum())
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    fn layout(size: usize, mesh: &str, placements: &str) -> Layout {
        let mesh: Mesh = mesh.parse().unwrap();
        Layout::parse(&[size], DType::F32, &mesh, placements).unwrap()
    }

    fn ranges(layout: &Layout, most: usize) -> Vec<Range<usize>> {
        bands(layout, 0, most).unwrap().iter().map(|band| band.range().clone()).collect()
    }

    #[test]
    fn bands_tile_the_dim_without_empty_ones() {
        let uneven = layout(5, "4", "S(0)");
        assert_eq!(ranges(&uneven, 9), [0..2, 2..4, 4..5]);
        assert_eq!(n_bands(&uneven, 0), Some(3));
        let strided = layout(9, "4,2", "_S(0, 2), S(0)");
        assert_eq!(ranges(&strided, 99), [0..2, 2..4, 4..5, 5..6, 6..7, 7..8, 8..9]);
        assert_eq!(n_bands(&strided, 0), None);
    }

    #[test]
    fn many_bands_are_drawn_as_the_first_and_the_last() {
        let many = layout(1_000_000_000_000, "1000000", "S(0)");
        let drawn = bands(&many, 0, 4).unwrap();
        assert_eq!(drawn[1].range(), &(1_000_000..2_000_000));
        assert_eq!(drawn[2], Band::Skipped { range: 2_000_000..999_999_000_000 });
        assert_eq!(
            drawn[3],
            Band::Held { range: 999_999_000_000..1_000_000_000_000, owner: vec![(0, 999_999)] }
        );
        assert_eq!(n_bands(&many, 0), Some(1_000_000));
    }
}
