//! What the notations have in common: per dim the axes that cut it, and the axes not yet reduced.

use crate::{Cut, DType, Layout, LayoutError, Mesh, Placement, ReduceOp, Result};

/// Axes by their position on the mesh.
#[derive(Default)]
pub(super) struct Axes {
    /// Per dim the axes that cut it, major first.
    pub(super) dims: Vec<Vec<usize>>,
    /// Axes on which a reduction is pending.
    pub(super) unreduced: Vec<usize>,
    /// That reduction, where there is any.
    pub(super) reduction: Option<ReduceOp>,
}

/// A text as it is being understood: what to build, and what to say if that fails.
pub(super) struct Reading<'a> {
    pub(super) shape: &'a [usize],
    pub(super) dtype: DType,
    pub(super) mesh: &'a Mesh,
    /// The notation, as in "is not a ...".
    pub(super) what: &'static str,
    pub(super) text: &'a str,
}

impl Axes {
    /// The axes of a layout whose pending reductions are all one of `reductions`.
    pub(super) fn of(layout: &Layout, form: &'static str, reductions: &[ReduceOp]) -> Result<Axes> {
        let not_expressible =
            |why| LayoutError::NotExpressible { layout: format!("{layout:?}"), form, why };
        let mut axes = Axes::default();
        for (dim, cuts) in layout.order().dims().enumerate() {
            if cuts.iter().any(|cut| cut.split_factor > 1) {
                let why = format!("dim {dim} has a strided shard; redistribute it to S({dim})");
                return Err(not_expressible(why));
            }
            let dim_axes: Vec<usize> = cuts.iter().map(|Cut { axis, .. }| *axis).collect();
            check_flat(dim, layout.global_shape()[dim], &dim_axes, layout.mesh())
                .map_err(not_expressible)?;
            axes.dims.push(dim_axes);
        }
        for (axis, placement) in layout.placements().iter().enumerate() {
            let Some(op) = placement.reduce_op() else { continue };
            if !reductions.contains(&op) {
                let name = layout.mesh().axes()[axis].name();
                let why = format!("it has no P({op}), as on axis `{name}`; reduce that axis first");
                return Err(not_expressible(why));
            }
            axes.unreduced.push(axis);
            axes.reduction = Some(op);
        }
        Ok(axes)
    }

    /// The layout that a text with these axes means.
    pub(super) fn into_layout(mut self, reading: &Reading<'_>) -> Result<Layout> {
        let Reading { shape, dtype, mesh, .. } = *reading;
        if self.dims.len() > shape.len() {
            return Err(reading.not_a_layout(format!(
                "it has {} dims, the tensor has {}",
                self.dims.len(),
                shape.len()
            )));
        }
        self.dims.resize(shape.len(), Vec::new());
        let mut placements = vec![Placement::Replicate; mesh.n_axes()];
        let mut place = |axis: usize, placement| match placements[axis] {
            Placement::Replicate => {
                placements[axis] = placement;
                Ok(())
            }
            _ => Err(reading
                .bad("an axis is named twice; it cuts one dim, or is unreduced, and that once")),
        };
        for (dim, axes) in self.dims.iter().enumerate() {
            for axis in axes {
                place(*axis, Placement::Shard(dim))?;
            }
        }
        for axis in &self.unreduced {
            place(*axis, Placement::Partial(self.reduction.unwrap_or(ReduceOp::Sum)))?;
        }
        for (dim, axes) in self.dims.iter().enumerate() {
            check_flat(dim, shape[dim], axes, mesh).map_err(|why| reading.not_a_layout(why))?;
        }
        let order: Vec<(usize, &[usize])> =
            self.dims.iter().enumerate().map(|(dim, axes)| (dim, axes.as_slice())).collect();
        Layout::with_order(shape, dtype, mesh, &placements, &order)
    }
}

impl Reading<'_> {
    /// The text is not in its notation.
    pub(super) fn bad(&self, why: &'static str) -> LayoutError {
        crate::text::bad(self.text, self.what, why)
    }

    /// The text is right, but is not a layout of this tensor on this mesh.
    pub(super) fn not_a_layout(&self, why: String) -> LayoutError {
        LayoutError::NotExpressible {
            layout: self.text.to_string(),
            form: "placements on the mesh",
            why,
        }
    }
}

/// Whether cutting `size` axis after axis gives the tiles that XLA means; if not, why not.
fn check_flat(dim: usize, size: usize, axes: &[usize], mesh: &Mesh) -> Result<(), String> {
    let sizes: Vec<usize> = axes.iter().map(|axis| mesh.axis_size(*axis)).collect();
    match nested_is_flat(size, &sizes) {
        true => Ok(()),
        false => {
            let names: Vec<&str> = axes.iter().map(|axis| mesh.axes()[*axis].name()).collect();
            Err(format!(
                "XLA cuts the {size} indices of dim {dim} into {} tiles at once, which are not the pieces that cuts by {} \
                 after each other give; pad the dim to a multiple of {0}, or cut it by one axis",
                sizes.iter().product::<usize>(),
                names.join(" and "),
            ))
        }
    }
}

/// Whether chunks of chunks of `length` are the tiles of `ceil(length / product of sizes)`.
fn nested_is_flat(length: usize, sizes: &[usize]) -> bool {
    // The sizes are of different axes of one mesh, so their product fits; its multiples may not.
    let mut below: u128 = sizes.iter().map(|size| *size as u128).product();
    let mut length = length as u128;
    let tile = length.div_ceil(below.max(1));
    for size in sizes {
        below /= *size as u128;
        let (chunk, want) = (length.div_ceil(*size as u128), tile * below);
        if chunk == want {
            // Full chunks hold whole tiles. The last one may be short: look at how it is cut.
            length %= chunk.max(1);
        } else if chunk < length || want < length {
            // The second chunk exists in one of the ways, and starts elsewhere in the other.
            return false;
        }
        // Otherwise the first chunk has everything in both ways.
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk;

    /// By the definitions, tile by tile.
    fn nested_is_flat_by_enumeration(length: usize, sizes: &[usize]) -> bool {
        let n_tiles: usize = sizes.iter().product();
        (0..n_tiles).all(|tile| {
            let (mut nested, mut below) = (0..length, n_tiles);
            for size in sizes {
                below /= size;
                let part = chunk(nested.len(), *size, tile / below % size);
                nested = nested.start + part.start..nested.start + part.end;
            }
            let flat = chunk(length, n_tiles, tile);
            nested == flat || (nested.is_empty() && flat.is_empty())
        })
    }

    #[test]
    fn which_uneven_cuts_xla_shares_is_known_without_enumerating_tiles() {
        let mut counts = [0, 0];
        for sizes in [
            &[][..],
            &[3],
            &[2, 2],
            &[2, 3],
            &[3, 2],
            &[4, 2],
            &[2, 4],
            &[1, 3],
            &[3, 1],
            &[2, 2, 2],
            &[3, 2, 2],
            &[2, 1, 3],
            &[2, 3, 2, 2],
        ] {
            for length in 0..200 {
                let want = nested_is_flat_by_enumeration(length, sizes);
                assert_eq!(nested_is_flat(length, sizes), want, "{length} by {sizes:?}");
                counts[usize::from(want)] += 1;
            }
        }
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    }

    #[test]
    fn that_the_first_chunks_divide_is_not_enough() {
        // 8, 8 and 6 of 22: the last is cut into 3 and 3, where XLA has 4 and 2.
        assert!(!nested_is_flat(22, &[3, 2]));
        assert!(nested_is_flat(23, &[3, 2]));
    }

    #[test]
    fn huge_sizes_do_not_overflow() {
        assert!(nested_is_flat(usize::MAX, &[1 << 31, 1 << 32]));
        assert!(!nested_is_flat(usize::MAX / 2, &[3, 1 << 60]));
    }
}
