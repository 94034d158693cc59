//! XLA's HLO text: `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`.
//!
//! Printed as XLA prints it (`CanonicalizeIotaDims` and `HloSharding::Subgroup` in its sources):
//! the devices as a reshaped and transposed iota, neighbours merged where they are contiguous, axes
//! of size 1 dropped, devices that hold the same last, the replicated ones ascending. Where XLA
//! has more than one way to write the same (`{replicated}` and `{devices=[1]<=[1]}` for one device,
//! say), the shortest is printed. The grammar is in `hlo_text.rs`.

use super::{
    axes::{Axes, Reading},
    hlo_text::{Devices, Kind, Sharding, WHAT},
    tiles,
};
use crate::{DType, Factor, Layout, LayoutError, Mesh, MeshAxis, Placement, ReduceOp, Result};

const FORM: &str = "an HLO sharding";

impl Layout {
    /// XLA's text for this layout: `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`.
    ///
    /// Device numbers are ranks, so a transposed mesh shows in the text, and a mesh that is a
    /// slice of another has none. Costs the same for any number of ranks.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
    /// let hlo = |placements| Layout::parse(&[8, 8], DType::F32, &mesh, placements)?.to_hlo();
    /// assert_eq!(hlo("[R, R]")?, "{replicated}");
    /// assert_eq!(hlo("[S(0), R]")?, "{devices=[2,1,4]<=[8] last_tile_dim_replicate}");
    /// assert_eq!(hlo("[S(1), S(0)]")?, "{devices=[4,2]<=[2,4]T(1,0)}");
    /// assert_eq!(hlo("[P(sum), S(1)]")?, "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={unreduced}}");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn to_hlo(&self) -> Result<String> {
        let axes = Axes::of(self, FORM, &[ReduceOp::Sum])?;
        let mesh = self.mesh();
        if !tiles::counts_from_zero(mesh) {
            return match mesh.size() {
                1 => Ok(format!("{{maximal device={}}}", mesh.base())),
                _ => Err(LayoutError::NotExpressible {
                    layout: format!("{self:?}"),
                    form: FORM,
                    why: slice_of_a_mesh(mesh),
                }),
            };
        }
        let size = |axes: &[usize]| axes.iter().map(|axis| mesh.axis_size(*axis)).product();
        let factors = |axes: &[usize]| -> Vec<Factor> {
            axes.iter().flat_map(|axis| mesh.axes()[*axis].factors()).copied().collect()
        };
        let is_replicated = |axis: &usize| self.placements()[*axis] == Placement::Replicate;
        let replicated: Vec<usize> = (0..mesh.n_axes()).filter(is_replicated).collect();

        let mut tile_sizes: Vec<usize> = axes.dims.iter().map(|dim| size(dim)).collect();
        let is_cut = tile_sizes.iter().any(|tiles| *tiles > 1);
        let (n_unreduced, n_replicated) = (size(&axes.unreduced), size(&replicated));
        let suffix = match (is_cut, n_unreduced > 1, n_replicated > 1) {
            (false, false, _) => return Ok("{replicated}".to_string()),
            (false, true, false) => return Ok("{unreduced}".to_string()),
            (true, false, false) => "",
            (true, false, true) => " last_tile_dim_replicate",
            (true, true, false) => " last_tile_dims={unreduced}",
            (_, true, true) => " last_tile_dims={unreduced, replicated}",
        };
        tile_sizes.extend([n_unreduced, n_replicated].into_iter().filter(|size| *size > 1));
        let mut devices: Vec<Factor> = axes.dims.iter().flat_map(|dim| factors(dim)).collect();
        devices.extend(factors(&axes.unreduced));
        devices.extend(tiles::ascending(factors(&replicated)));
        let tile_sizes: Vec<String> = tile_sizes.iter().map(usize::to_string).collect();
        Ok(format!("{{devices=[{}]{}{suffix}}}", tile_sizes.join(","), tiles::iota_text(devices)))
    }

    /// The layout that XLA means by a text, in the iota form or with a list of devices.
    ///
    /// The text knows nothing of axes: the mesh says which axes its tiles consist of. Axes of size 1
    /// become `R`.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, LayoutError, Mesh};
    /// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
    /// let parse = |text| Layout::from_hlo(&[8, 8], DType::F32, &mesh, text);
    /// assert_eq!(parse("{devices=[8,1]<=[8]}")?.to_string(), "[S(0), S(0)]");
    /// assert_eq!(parse("{devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}")?.to_string(), "[S(1), R]");
    /// // Four tiles would be axis `x` and half of axis `y`.
    /// assert!(matches!(parse("{devices=[4,2]<=[8]}"), Err(LayoutError::NotExpressible { .. })));
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn from_hlo(shape: &[usize], dtype: DType, mesh: &Mesh, text: &str) -> Result<Layout> {
        let reading = Reading { shape, dtype, mesh, what: WHAT, text };
        let mut axes = Axes::default();
        match Sharding::parse(text)? {
            Sharding::Maximal { device } if mesh.size() == 1 && mesh.base() == device => {}
            Sharding::Maximal { device } => {
                return Err(reading.not_a_layout(format!(
                    "only device {device} holds the tensor; give a mesh of that one rank"
                )));
            }
            _ if !tiles::counts_from_zero(mesh) => {
                return Err(reading.not_a_layout(slice_of_a_mesh(mesh)));
            }
            Sharding::Replicated => {}
            Sharding::Unreduced => {
                axes.unreduced =
                    (0..mesh.n_axes()).filter(|axis| mesh.axis_size(*axis) > 1).collect();
            }
            Sharding::Tiled { tiles, devices, kinds } => {
                axes = match_axes(&reading, &tiles, devices, &kinds)?;
            }
        }
        axes.into_layout(&reading)
    }
}

fn slice_of_a_mesh(mesh: &Mesh) -> String {
    format!(
        "its devices count from 0 without gaps, the ranks of mesh {mesh} do not; \
         use a mesh that numbers them so, and tell XLA the devices separately"
    )
}

/// Finds the mesh axes that every tile dim consists of.
fn match_axes(
    reading: &Reading<'_>,
    tiles: &[usize],
    devices: Devices,
    kinds: &[Kind],
) -> Result<Axes> {
    let mesh = reading.mesh;
    let n_dims = tiles.len() - kinds.len();
    if n_dims != reading.shape.len() {
        return Err(reading.not_a_layout(format!(
            "it has tiles for {n_dims} dims, the tensor has {}",
            reading.shape.len()
        )));
    }
    let n_devices = crate::mesh::checked_product("HLO tiles", tiles)?;
    if n_devices != mesh.size() {
        return Err(reading.not_a_layout(format!(
            "it is for {n_devices} devices, mesh {mesh} has {}",
            mesh.size()
        )));
    }
    let mut factors = device_factors(reading, tiles, devices, kinds)?;
    let not_whole = |axis: Option<&MeshAxis>| {
        let part = match axis {
            Some(axis) => format!(
                "it takes a part of mesh axis `{}`; unflatten that axis into its parts",
                axis.name()
            ),
            None => "its tiles are no axes of the mesh".to_string(),
        };
        reading.not_a_layout(part)
    };
    let mut axes = Axes::default();
    let mut unreduced: Vec<Factor> = Vec::new();
    let dim_kinds = std::iter::repeat_n(None, n_dims).chain(kinds.iter().copied().map(Some));
    for (n_tiles, kind) in tiles.iter().zip(dim_kinds) {
        let major = factors.first().copied();
        let taken = tiles::take_major(&mut factors, *n_tiles)
            .ok_or_else(|| not_whole(major.and_then(|major| tiles::part_of(major, mesh))))?;
        match kind {
            None => axes.dims.push(tiles::whole_axes(taken, mesh).map_err(not_whole)?),
            Some(Kind::Unreduced) => unreduced.extend(taken),
            // The axes that remain are these.
            Some(Kind::Replicated) => {}
        }
    }
    axes.unreduced = tiles::set_of_axes(unreduced, mesh).map_err(not_whole)?;
    Ok(axes)
}

/// The array of all devices as sizes and strides.
fn device_factors(
    reading: &Reading<'_>,
    tiles: &[usize],
    devices: Devices,
    kinds: &[Kind],
) -> Result<Vec<Factor>> {
    let n_devices = reading.mesh.size();
    match devices {
        Devices::Iota { sizes, order } => {
            if crate::mesh::checked_product("HLO devices", &sizes)? != n_devices {
                return Err(
                    reading.bad("the sizes after `<=` multiply to another number of devices")
                );
            }
            Ok(tiles::iota_factors(&sizes, &order))
        }
        Devices::List(mut list) => {
            let mut is_listed = vec![false; list.len()];
            let is_permutation = list.iter().all(|device| {
                is_listed.get_mut(*device).is_some_and(|seen| !std::mem::replace(seen, true))
            });
            if list.len() != n_devices || !is_permutation {
                return Err(reading.bad("the list names every device of the tiles once, from 0"));
            }
            // Devices that hold the same may be listed in any order; XLA sorts them as well.
            let n_alike = kinds.iter().rev().take_while(|kind| Some(*kind) == kinds.last()).count();
            let alike: usize = tiles[tiles.len() - n_alike..].iter().product();
            list.chunks_mut(alike).for_each(<[usize]>::sort_unstable);
            tiles::list_factors(&list).ok_or_else(|| {
                reading.not_a_layout(
                    "its list of devices does not follow the axes of the mesh; \
                     permute the mesh so that its ranks come in the list's order"
                        .to_string(),
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interchange::check::reason;

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(reason(text, Layout::from_hlo), want);
    }

    #[test]
    fn tiles_that_are_no_axes_are_refused_with_the_way_out() {
        check("{maximal device=3}", "only device 3 holds the tensor; give a mesh of that one rank");
        let dims = "it has tiles for 1 dims, the tensor has 2";
        check("{devices=[8]<=[8]}", dims);
        check("{devices=[8,1]<=[8] last_tile_dim_replicate}", dims);
        let part = "it takes a part of mesh axis `y`; unflatten that axis into its parts";
        check("{devices=[4,2]<=[8]}", part);
        check("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", part);
        check("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}", part);
        check("{devices=[4,2]0,2,4,6,1,3,5,7}", part);
        check("{devices=[2,1,2,2]<=[8] last_tile_dims={unreduced, replicated}}", part);
        let mesh = Mesh::new(&[("x", 6), ("y", 2)]).unwrap();
        let parse = |shape: &[usize], text| Layout::from_hlo(shape, DType::F32, &mesh, text);
        for (shape, text) in [
            ([12, 12], "{devices=[4,3]<=[6,2]T(1,0)}"),
            // XLA's tiles of 13 by 12 are 2 long, the first cut of axis `x` is 3.
            ([13, 12], "{devices=[12,1]<=[12]}"),
        ] {
            assert!(matches!(parse(&shape, text), Err(LayoutError::NotExpressible { .. })));
        }
    }

    #[test]
    fn half_of_a_flattened_axis_is_not_mistaken_for_the_whole() {
        let mesh: Mesh = "dp_tp=2:6*2:1,cp=3:2".parse().unwrap();
        for text in [
            "{devices=[2,6]<=[12] last_tile_dim_replicate}",
            "{devices=[2,6]<=[6,2]T(1,0) last_tile_dim_replicate}",
            "{devices=[4,3]<=[2,2,3]T(1,0,2) last_tile_dim_replicate}",
            "{devices=[1,2,6]<=[12] last_tile_dims={unreduced, replicated}}",
            "{devices=[1,6,2]<=[12] last_tile_dims={unreduced, replicated}}",
        ] {
            let refused = Layout::from_hlo(&[12], DType::F32, &mesh, text);
            assert!(matches!(refused, Err(LayoutError::NotExpressible { .. })), "{text}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_errors_not_allocations() {
        check(
            "{devices=[99999999999,1]<=[99999999999]}",
            "it is for 99999999999 devices, mesh x=2,y=4 has 8",
        );
        check(
            "{devices=[99999999999,99999999999]<=[8]}",
            "the product of HLO tiles [99999999999, 99999999999] overflows; make it smaller",
        );
        check(
            "{devices=[8,1]<=[99999999999,99999999999]}",
            "the product of HLO devices [99999999999, 99999999999] overflows; make it smaller",
        );
        check("{devices=[0,1]<=[0]}", "it is for 0 devices, mesh x=2,y=4 has 8");
        let sizes = "the sizes after `<=` multiply to another number of devices";
        check("{devices=[8,1]<=[0,8]}", sizes);
        check("{devices=[8,1]<=[4]}", sizes);
    }

    #[test]
    fn a_long_text_costs_no_more_than_its_length() {
        // Half a million sizes; work in their square would take minutes.
        let ones = "1,".repeat(500_000);
        let mesh = Mesh::new(&[("x", 2), ("y", 4)]).unwrap();
        let parse = |text: &str| Layout::from_hlo(&[8, 8], DType::F32, &mesh, text);
        let layout = parse(&format!("{{devices=[8,1]<=[{ones}8]}}")).unwrap();
        assert_eq!(layout.to_string(), "[S(0), S(0)]");
        assert!(parse(&format!("{{devices=[{ones}8]<=[8]}}")).is_err());
        assert!(parse(&format!("{{devices=[8,1]{ones}8}}")).is_err());
    }

    #[test]
    fn lists_name_every_device_once_in_an_order_that_a_mesh_can_have() {
        let list = "the list names every device of the tiles once, from 0";
        check("{devices=[8,1]0,1,2}", list);
        check("{devices=[8,1]0,1,2,3,4,5,6,6}", list);
        check("{devices=[8,1]1,2,3,4,5,6,7,8}", list);
        check("{devices=[8,1]0,1,2,3,4,5,6,18446744073709551615}", list);
        let pattern = "its list of devices does not follow the axes of the mesh; \
                       permute the mesh so that its ranks come in the list's order";
        check("{devices=[8,1]0,1,2,3,4,5,7,6}", pattern);
        check("{devices=[8,1]7,6,5,4,3,2,1,0}", pattern);
    }
}
