//! What a picture shows, before it is known whether it becomes text or SVG.

use dtensor_layout::Layout;

use dtensor_layout::Result;

use crate::units::grouped;

use crate::{
    bands::{Band, band_at, bands, n_bands},
    label::label,
    words,
};

/// How much of a layout is drawn.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bands from top to bottom.
    pub rows: usize,
    /// Bands from left to right.
    pub columns: usize,
    pub slices: usize,
}

/// A layout as grids of blocks.
pub struct Picture {
    /// The layout and its sizes.
    pub head: Vec<String>,
    /// Which dim runs which way.
    pub directions: String,
    pub slices: Vec<Slice>,
    /// What is not drawn.
    pub notes: Vec<String>,
    /// What every axis does.
    pub legend: Vec<String>,
}

/// One grid: the blocks at one place of the dims that are not drawn as rows or columns.
pub struct Slice {
    /// `[0..2, :, :]`, where there is more than one slice.
    pub title: Option<String>,
    /// One without a range where no dim runs downwards.
    pub rows: Vec<Option<Band>>,
    pub columns: Vec<Option<Band>>,
    /// By row and column; `None` where a band is skipped.
    pub cells: Vec<Vec<Option<Cell>>>,
}

/// One block of the tensor and who holds it.
pub struct Cell {
    /// The ranks.
    pub label: String,
    /// Equal for equal owners, different for neighbours.
    pub color: usize,
    /// The block in global indices.
    pub indices: String,
}

/// Which dims run down, across, and through the slices.
struct Roles {
    rows: Option<usize>,
    columns: Option<usize>,
    slices: Vec<usize>,
}

impl Picture {
    pub fn new(layout: &Layout, limits: Limits) -> Result<Picture> {
        let mut picture = Picture {
            head: words::head(layout),
            directions: String::new(),
            slices: Vec::new(),
            notes: Vec::new(),
            legend: words::legend(layout),
        };
        if !words::has_elements(layout) {
            picture.notes.push("the tensor has no elements: no rank holds anything".to_string());
            return Ok(picture);
        }
        let roles = Roles::of(layout);
        picture.directions = roles.directions(layout);
        let rows = side(layout, roles.rows, limits.rows)?;
        let columns = side(layout, roles.columns, limits.columns)?;
        let places = slice_places(layout, &roles.slices, limits.slices)?;
        for place in &places {
            picture.slices.push(slice(layout, &roles, &rows, &columns, place)?);
        }
        picture.notes.extend(words::left_out(layout, roles.rows, &rows));
        picture.notes.extend(words::left_out(layout, roles.columns, &columns));
        let all_slices: Option<usize> =
            roles.slices.iter().map(|dim| n_bands(layout, *dim)).product();
        match all_slices {
            Some(all) if all > places.len() => picture.notes.push(format!(
                "{} of {} slices are drawn; --coord shows one rank",
                grouped(places.len()),
                grouped(all)
            )),
            None if places.len() == limits.slices => {
                picture.notes.push("not all slices are drawn; --coord shows one rank".to_string());
            }
            _ => {}
        }
        picture.notes.extend(words::empty_ranks(layout));
        Ok(picture)
    }
}

impl Roles {
    /// The last two dims that are cut into more than one band make the grid, earlier ones the
    /// slices. Dims that are whole on every rank would only repeat the picture; they fill the grid
    /// where fewer than two are cut.
    fn of(layout: &Layout) -> Roles {
        let cut = |dim: &usize| n_bands(layout, *dim) != Some(1);
        let mut cut_dims: Vec<usize> = (0..layout.n_dims()).filter(cut).collect();
        let last = layout.n_dims().checked_sub(1);
        match (cut_dims.pop(), cut_dims.pop()) {
            (Some(columns), Some(rows)) => {
                Roles { rows: Some(rows), columns: Some(columns), slices: cut_dims }
            }
            (Some(only), None) if Some(only) != last => {
                Roles { rows: Some(only), columns: last, slices: Vec::new() }
            }
            (only, _) => {
                let columns = only.or(last);
                let rows = columns.and_then(|columns| columns.checked_sub(1));
                Roles { rows, columns, slices: Vec::new() }
            }
        }
    }

    fn directions(&self, layout: &Layout) -> String {
        let size = |dim: usize| layout.global_shape()[dim];
        let mut parts = Vec::new();
        parts.extend(self.rows.map(|dim| format!("dim {dim} ({}) down", size(dim))));
        parts.extend(self.columns.map(|dim| format!("dim {dim} ({}) across", size(dim))));
        let drawn = |dim: &usize| self.rows == Some(*dim) || self.columns == Some(*dim);
        for dim in (0..layout.n_dims()).filter(|dim| !drawn(dim)) {
            let how = if self.slices.contains(&dim) { "in slices" } else { "whole" };
            parts.push(format!("dim {dim} ({}) {how}", size(dim)));
        }
        match parts.is_empty() {
            true => "one element".to_string(),
            false => parts.join(", "),
        }
    }
}

fn side(layout: &Layout, dim: Option<usize>, most: usize) -> Result<Vec<Option<Band>>> {
    match dim {
        Some(dim) => Ok(bands(layout, dim, most)?.into_iter().map(Some).collect()),
        None => Ok(vec![None]),
    }
}

/// The first places in the product of the slice dims' bands, one band per dim.
fn slice_places(layout: &Layout, dims: &[usize], most: usize) -> Result<Vec<Vec<Band>>> {
    let mut places = vec![Vec::new()];
    for dim in dims {
        let mut longer = Vec::new();
        for place in &places {
            for band in bands(layout, *dim, most.max(3))? {
                let skipped = matches!(band, Band::Skipped { .. });
                if !skipped && longer.len() < most {
                    longer.push(place.iter().cloned().chain([band]).collect());
                }
            }
        }
        places = longer;
    }
    Ok(places)
}

fn slice(
    layout: &Layout,
    roles: &Roles,
    rows: &[Option<Band>],
    columns: &[Option<Band>],
    place: &[Band],
) -> Result<Slice> {
    // The one band of every dim that has only one, and the bands of this slice.
    let mut around: Vec<Band> = Vec::with_capacity(layout.n_dims());
    for dim in 0..layout.n_dims() {
        around.push(match roles.slices.iter().position(|slice_dim| *slice_dim == dim) {
            Some(position) => place[position].clone(),
            None => band_at(layout, dim, 0)?,
        });
    }
    let cell = |row: &Option<Band>, column: &Option<Band>| {
        let mut block = around.clone();
        for (dim, band) in [(roles.rows, row), (roles.columns, column)] {
            if let (Some(dim), Some(band)) = (dim, band) {
                block[dim] = band.clone();
            }
        }
        let mut owner = Vec::new();
        for band in &block {
            match band {
                Band::Held { owner: one_dim, .. } => owner.extend_from_slice(one_dim),
                Band::Skipped { .. } => return None,
            }
        }
        let ranges = block.iter().map(range_text).collect::<Vec<_>>();
        Some(Cell {
            label: label(layout, &owner),
            color: color(layout, &owner),
            indices: format!("[{}]", ranges.join(", ")),
        })
    };
    let title = (!roles.slices.is_empty()).then(|| {
        let one = |dim: usize| match roles.slices.contains(&dim) {
            true => range_text(&around[dim]),
            false => ":".to_string(),
        };
        format!("[{}]", (0..layout.n_dims()).map(one).collect::<Vec<_>>().join(", "))
    });
    Ok(Slice {
        title,
        rows: rows.to_vec(),
        columns: columns.to_vec(),
        cells: rows
            .iter()
            .map(|row| columns.iter().map(|column| cell(row, column)).collect())
            .collect(),
    })
}

/// `0..7`.
pub fn range_text(band: &Band) -> String {
    let range = band.range();
    format!("{}..{}", range.start, range.end)
}

/// A number for the owner: its coordinate on the cutting axes, counted through.
fn color(layout: &Layout, owner: &[(usize, usize)]) -> usize {
    let mut owner = owner.to_vec();
    owner.sort_unstable();
    owner.iter().fold(0, |number: usize, (axis, index)| {
        number.wrapping_mul(layout.mesh().axis_size(*axis)).wrapping_add(*index)
    })
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};
    use dtensor_testing::golden::layout_cases;

    use super::*;
    use crate::label::rank_list;

    /// By asking every rank, the ranks that hold the first element of `[0..7, 4..8]`.
    fn holders(layout: &Layout, indices: &str) -> Vec<usize> {
        let starts = indices.trim_matches(['[', ']']).split(", ").filter(|range| !range.is_empty());
        let first: Vec<usize> =
            starts.map(|range| range.split_once("..").unwrap().0.parse().unwrap()).collect();
        let holds = |coord: &Vec<usize>| {
            let mut dims = first.iter().enumerate();
            dims.all(|(dim, index)| layout.intervals(dim, coord).position(*index).is_some())
        };
        let mesh = layout.mesh();
        mesh.coords().filter(holds).map(|coord| mesh.rank_at(&coord).unwrap()).collect()
    }

    fn numel(indices: &str) -> usize {
        let ranges = indices.trim_matches(['[', ']']).split(", ").filter(|range| !range.is_empty());
        let size = |range: &str| {
            let (start, end) = range.split_once("..").unwrap();
            end.parse::<usize>().unwrap() - start.parse::<usize>().unwrap()
        };
        ranges.map(size).product()
    }

    #[test]
    fn the_cells_of_every_golden_layout_tile_it_and_name_its_holders() {
        let all = Limits { rows: 1000, columns: 1000, slices: 1000 };
        let mut n_cells = 0;
        for case in layout_cases() {
            let mesh = Mesh::from_sizes(&case.mesh).unwrap();
            let layout = Layout::parse(&case.shape, DType::F32, &mesh, &case.placements).unwrap();
            let picture = Picture::new(&layout, all).unwrap();
            let cells = picture.slices.iter().flat_map(|slice| slice.cells.iter().flatten());
            let cells: Vec<&Cell> = cells.flatten().collect();
            let drawn: usize = cells.iter().map(|cell| numel(&cell.indices)).sum();
            assert_eq!(drawn, layout.numel(), "{layout:?}");
            for cell in &cells {
                let want = rank_list(&holders(&layout, &cell.indices));
                assert_eq!(cell.label, want, "{layout:?} at {}", cell.indices);
            }
            n_cells += cells.len();
        }
        assert!(n_cells > 1000, "{n_cells}");
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mesh: Mesh = "4,64,64,4".parse().unwrap();
        let layout = Layout::parse(&[64; 4], DType::F32, &mesh, "S(0),S(1),S(2),S(3)").unwrap();
        let picture = Picture::new(&layout, Limits { rows: 5, columns: 5, slices: 6 }).unwrap();
        assert_eq!(picture.slices.len(), 6);
        assert_eq!(
            picture.notes,
            [
                "4 of 64 bands of dim 2 are drawn",
                "6 of 256 slices are drawn; --coord shows one rank"
            ]
        );
    }
}
