//! Meshes from meshes: slice, flatten, unflatten, concatenate, complement.

use super::{Factor, Mesh, MeshAxis};
use crate::{LayoutError, Result};

impl Mesh {
    /// The sub-mesh of the named axes, in the order given, that passes through `coord`.
    ///
    /// ```
    /// use dtensor_layout::Mesh;
    /// let mesh = Mesh::new(&[("pp", 2), ("dp", 2), ("tp", 2)])?;
    /// // The rank at pp=1, dp=0, tp=1 sees these ranks on (tp, dp):
    /// let slice = mesh.slice(&["tp", "dp"], &[1, 0, 1])?;
    /// assert_eq!(slice.ranks().collect::<Vec<_>>(), [4, 6, 5, 7]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn slice<N: AsRef<str>>(&self, names: &[N], coord: &[usize]) -> Result<Mesh> {
        let mut base = self.rank_at(coord)?;
        let mut axes = Vec::with_capacity(names.len());
        for (position, name) in names.iter().enumerate() {
            let index = self.axis_index(name.as_ref())?;
            if names[..position].iter().any(|other| other.as_ref() == name.as_ref()) {
                return Err(LayoutError::DuplicateAxis { axis: name.as_ref().to_string() });
            }
            base -= self.axes()[index].offset(coord[index]);
            axes.push(self.axes()[index].clone());
        }
        Mesh::from_axes(axes, base)
    }

    /// The sub-mesh of all axes that are *not* named, through `coord`.
    pub fn without<N: AsRef<str>>(&self, names: &[N], coord: &[usize]) -> Result<Mesh> {
        for name in names {
            self.axis_index(name.as_ref())?;
        }
        let rest: Vec<&str> = self.axes().iter().map(MeshAxis::name).collect();
        let rest: Vec<&str> = rest
            .into_iter()
            .filter(|axis| names.iter().all(|name| name.as_ref() != *axis))
            .collect();
        self.slice(&rest, coord)
    }

    /// One axis that walks all ranks of this mesh in the order of their coordinates.
    ///
    /// ```
    /// use dtensor_layout::Mesh;
    /// let mesh = Mesh::new(&[("dp", 2), ("cp", 3), ("tp", 2)])?;
    /// let flat = mesh.slice(&["dp", "tp"], &[0, 0, 0])?.flatten("dp_tp")?;
    /// assert_eq!(flat.ranks().collect::<Vec<_>>(), [0, 1, 6, 7]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn flatten(&self, name: &str) -> Result<Mesh> {
        let factors =
            axis_factors(self.axes().iter().flat_map(|axis| axis.factors().iter().copied()));
        Mesh::from_axes(vec![MeshAxis::new(name, factors)], self.base())
    }

    /// Replaces one axis by several whose sizes multiply to it, the last varying fastest.
    pub fn unflatten<N: AsRef<str>>(&self, axis: &str, parts: &[(N, usize)]) -> Result<Mesh> {
        let index = self.axis_index(axis)?;
        let old = &self.axes()[index];
        let sizes: Vec<usize> = parts.iter().map(|(_, size)| *size).collect();
        let mismatch = || LayoutError::UnflattenSizes {
            axis: axis.to_string(),
            size: old.size(),
            sizes: sizes.clone(),
        };
        if super::checked_product("unflatten sizes", &sizes)? != old.size() {
            return Err(mismatch());
        }
        let mut rest = old.factors().to_vec();
        let mut new = Vec::with_capacity(parts.len());
        // From the minor end: each part takes the minor factors of what is left.
        for (name, size) in parts.iter().rev() {
            let taken = take_minor(&mut rest, *size).ok_or_else(mismatch)?;
            new.push(MeshAxis::new(name.as_ref(), taken));
        }
        new.reverse();
        let mut axes = self.axes().to_vec();
        axes.splice(index..=index, new);
        Mesh::from_axes(axes, self.base())
    }

    /// One mesh with the axes of several, which must start at the same rank and not overlap: two
    /// slices of one mesh through coordinate zero, say.
    pub fn concatenate(meshes: &[Mesh]) -> Result<Mesh> {
        let Some(first) = meshes.first() else { return Err(LayoutError::EmptyMesh) };
        Mesh::concatenate_at(meshes, first.base())
    }

    /// One mesh with the axes of several that all have this rank and do not overlap: the slices of one mesh that
    /// the rank is on.
    ///
    /// ```
    /// use dtensor_layout::Mesh;
    /// let mesh = Mesh::new(&[("pp", 2), ("dp", 2), ("tp", 2)])?;
    /// let coord = mesh.coord_of(5).unwrap();
    /// let (pp, tp) = (mesh.slice(&["pp"], &coord)?, mesh.slice(&["tp"], &coord)?);
    /// let both = Mesh::concatenate_at(&[pp, tp], 5)?;
    /// assert_eq!(both.ranks().collect::<Vec<_>>(), [0, 1, 4, 5]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn concatenate_at(meshes: &[Mesh], rank: usize) -> Result<Mesh> {
        let Some(first) = meshes.first() else { return Err(LayoutError::EmptyMesh) };
        let cannot = |other: String, why| LayoutError::MeshesDoNotCombine {
            left: first.to_string(),
            right: other,
            why,
        };
        let mut base = rank;
        for mesh in meshes {
            let coord = mesh.coord_of(rank).ok_or_else(|| {
                let why = "there is no rank that all of them have; take all through one coordinate";
                cannot(mesh.to_string(), why)
            })?;
            let offsets = mesh.axes().iter().zip(&coord).map(|(axis, index)| axis.offset(*index));
            base = base.checked_sub(offsets.sum()).ok_or_else(|| {
                cannot(mesh.to_string(), "two coordinates would be the same rank")
            })?;
        }
        let axes = meshes.iter().flat_map(|mesh| mesh.axes().iter().cloned()).collect();
        Mesh::from_axes(axes, base).map_err(|error| match error {
            LayoutError::MeshesDoNotCombine { why, .. } => {
                let others = meshes[1..].iter().map(Mesh::to_string).collect::<Vec<_>>();
                cannot(others.join(" and "), why)
            }
            other => other,
        })
    }

    /// The ranks at which the copies of this mesh start that together tile a world of
    /// `world_size` ranks, as a mesh with axes `rest0`, `rest1`, and so on.
    ///
    /// ```
    /// use dtensor_layout::Mesh;
    /// let tp = Mesh::new(&[("dp", 2), ("tp", 4)])?.slice(&["tp"], &[0, 0])?;
    /// assert_eq!(tp.complement(8)?.ranks().collect::<Vec<_>>(), [0, 4]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn complement(&self, world_size: usize) -> Result<Mesh> {
        let mut factors: Vec<Factor> =
            self.axes().iter().flat_map(|axis| axis.factors().iter().copied()).collect();
        factors.retain(|factor| factor.size > 1);
        factors.sort_by_key(|factor| factor.stride);
        let mut covered = 1;
        let mut gaps = Vec::new();
        let does_not_tile = || LayoutError::MeshesDoNotCombine {
            left: self.to_string(),
            right: format!("world of {world_size} ranks"),
            why: "copies of the mesh do not tile the world",
        };
        let mut gap =
            |up_to: usize, covered: usize| match up_to.is_multiple_of(covered) && up_to > 0 {
                true => {
                    gaps.push(Factor { size: up_to / covered, stride: covered });
                    Ok(())
                }
                false => Err(does_not_tile()),
            };
        for factor in factors {
            gap(factor.stride, covered)?;
            covered = factor.stride * factor.size;
        }
        gap(world_size, covered)?;
        let real: Vec<Factor> = axis_factors(gaps.into_iter().rev());
        let axes = real
            .into_iter()
            .enumerate()
            .map(|(i, factor)| MeshAxis::new(&format!("rest{i}"), vec![factor]));
        Mesh::from_axes(axes.collect(), 0)
    }
}

/// Joins neighbours that together are one stride, and drops factors of one rank.
pub(crate) fn coalesce(factors: impl IntoIterator<Item = Factor>) -> Vec<Factor> {
    let mut joined: Vec<Factor> = Vec::new();
    for factor in factors {
        match joined.last_mut() {
            _ if factor.size == 1 => {}
            Some(last) if last.stride == factor.stride * factor.size => {
                *last = Factor { size: last.size * factor.size, stride: factor.stride };
            }
            _ => joined.push(factor),
        }
    }
    joined
}

/// [`coalesce`], for an axis: that of one rank keeps a factor.
fn axis_factors(factors: impl IntoIterator<Item = Factor>) -> Vec<Factor> {
    let mut joined = coalesce(factors);
    if joined.is_empty() {
        joined.push(Factor { size: 1, stride: 1 });
    }
    joined
}

/// Takes `size` ranks from the minor end of `factors`.
fn take_minor(factors: &mut Vec<Factor>, mut size: usize) -> Option<Vec<Factor>> {
    let mut taken = Vec::new();
    while size > 1 {
        let factor = factors.last_mut()?;
        if size.is_multiple_of(factor.size) {
            size /= factor.size;
            taken.push(*factor);
            factors.pop();
        } else if factor.size.is_multiple_of(size) {
            taken.push(Factor { size, stride: factor.stride });
            *factor = Factor { size: factor.size / size, stride: factor.stride * size };
            size = 1;
        } else {
            return None;
        }
    }
    taken.reverse();
    if taken.is_empty() {
        // An axis of one rank: any stride will do, the one at hand keeps row-major meshes row-major.
        let stride = factors.last().map_or(1, |factor| factor.stride);
        taken.push(Factor { size: 1, stride });
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(mesh: &Mesh) -> Vec<usize> {
        mesh.ranks().collect()
    }

    fn cube() -> Mesh {
        Mesh::new(&[("a", 2), ("b", 3), ("c", 4)]).unwrap()
    }

    #[test]
    fn every_rank_has_the_coordinate_that_leads_to_it() {
        let cube = cube();
        let meshes = [
            cube.clone(),
            cube.slice(&["c", "a"], &[1, 2, 3]).unwrap(),
            cube.slice(&["a", "c"], &[0, 1, 0]).unwrap().flatten("ac").unwrap(),
            cube.slice(&["c", "a"], &[0, 1, 0]).unwrap().flatten("ca").unwrap(),
            cube.flatten("all").unwrap().unflatten("all", &[("x", 4), ("y", 6)]).unwrap(),
        ];
        for mesh in meshes {
            let mut on_mesh = vec![false; 30];
            for coord in mesh.coords() {
                let rank = mesh.rank_at(&coord).unwrap();
                assert_eq!(mesh.coord_of(rank), Some(coord), "{mesh}");
                on_mesh[rank] = true;
            }
            for (rank, inside) in on_mesh.into_iter().enumerate() {
                assert_eq!(mesh.contains(rank), inside, "{mesh}, rank {rank}");
            }
        }
    }

    #[test]
    fn slices_come_in_any_order_and_through_any_coordinate() {
        assert_eq!(ranks(&cube().slice(&["b"], &[1, 0, 2]).unwrap()), [14, 18, 22]);
        assert_eq!(ranks(&cube().slice(&["c", "b"], &[1, 1, 1]).unwrap())[..4], [12, 16, 20, 13]);
        assert_eq!(
            cube().without(&["b"], &[0, 2, 0]).unwrap(),
            cube().slice(&["a", "c"], &[0, 2, 0]).unwrap()
        );
        let axis: Vec<usize> = cube().axis_ranks(1, &[1, 2, 2]).unwrap().collect();
        assert_eq!(axis, [14, 18, 22]);
    }

    #[test]
    fn flatten_and_unflatten_are_inverse() {
        let cube = cube();
        let flat = cube.flatten("abc").unwrap();
        assert_eq!(flat.axes()[0].factors(), [Factor { size: 24, stride: 1 }]);
        assert_eq!(flat.unflatten("abc", &[("a", 2), ("b", 3), ("c", 4)]).unwrap(), cube);
        let strided = cube.slice(&["a", "c"], &[0, 1, 0]).unwrap();
        let again = strided.flatten("x").unwrap().unflatten("x", &[("a", 2), ("c", 4)]).unwrap();
        assert_eq!(again, strided);
        // Across the border of two factors: 8 ranks as 2 x 4 strided, seen as 4 x 2.
        let other = strided.flatten("x").unwrap().unflatten("x", &[("p", 4), ("q", 2)]).unwrap();
        assert_eq!(ranks(&other), ranks(&strided));
        let ones = Mesh::new(&[("a", 1), ("b", 1)]).unwrap().flatten("x").unwrap();
        assert_eq!(ranks(&ones.unflatten("x", &[("p", 1), ("q", 1)]).unwrap()), [0]);
    }

    #[test]
    fn sizes_that_do_not_multiply_to_the_axis_are_refused() {
        let error = cube().unflatten("b", &[("x", 2), ("y", 2)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unflatten: sizes [2, 2] do not multiply to 3, the size of axis `b`"
        );
    }

    #[test]
    fn slices_of_one_mesh_concatenate_and_overlapping_ones_do_not() {
        let cube = cube();
        let a = cube.slice(&["a"], &[0, 1, 2]).unwrap();
        let c = cube.slice(&["c"], &[0, 1, 2]).unwrap();
        let rank = cube.rank_at(&[1, 1, 2]).unwrap();
        assert_eq!(
            Mesh::concatenate_at(&[c, a.clone()], rank).unwrap_err(),
            LayoutError::MeshesDoNotCombine {
                left: "c=4:1@4".to_string(),
                right: "c=4:1@4".to_string(),
                why: "there is no rank that all of them have; take all through one coordinate",
            }
        );
        let c = cube.slice(&["c"], &[1, 1, 2]).unwrap();
        assert_eq!(
            Mesh::concatenate_at(&[c, a.clone()], rank).unwrap(),
            cube.slice(&["c", "a"], &[0, 1, 0]).unwrap()
        );
        let a = cube.slice(&["a"], &[0, 1, 0]).unwrap();
        let c = cube.slice(&["c"], &[0, 1, 0]).unwrap();
        assert_eq!(
            Mesh::concatenate(&[c, a.clone()]).unwrap(),
            cube.slice(&["c", "a"], &[0, 1, 0]).unwrap()
        );
        let again = Mesh::new(&[("z", 2)]).unwrap();
        let shifted = Mesh::from_axes(
            vec![MeshAxis::new("y", vec![Factor { size: 3, stride: 12 }])],
            a.base(),
        )
        .unwrap();
        assert!(matches!(
            Mesh::concatenate(&[a, shifted]),
            Err(LayoutError::MeshesDoNotCombine { .. })
        ));
        assert!(matches!(
            Mesh::concatenate(&[again.clone(), again]),
            Err(LayoutError::DuplicateAxis { .. })
        ));
    }

    #[test]
    fn a_mesh_and_its_complement_tile_the_world() {
        let cube = cube();
        for names in [
            vec!["a"],
            vec!["b"],
            vec!["c"],
            vec!["a", "b"],
            vec!["a", "c"],
            vec!["c", "b"],
            vec!["a", "b", "c"],
        ] {
            let slice = cube.slice(&names, &[0, 0, 0]).unwrap();
            let rest = slice.complement(48).unwrap();
            let mut all: Vec<usize> = rest
                .ranks()
                .flat_map(|start| slice.ranks().map(move |rank| rank + start))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..48).collect::<Vec<_>>(), "{names:?}");
        }
        assert!(cube.complement(25).is_err());
        assert!(cube.complement(0).is_err());
    }

    #[test]
    fn a_quarter_of_a_million_ranks_is_a_handful_of_numbers() {
        let mesh = Mesh::new(&[("pp", 16), ("dp", 128), ("tp", 128)]).unwrap();
        assert_eq!(mesh.size(), 262_144);
        let flat = mesh.slice(&["pp", "tp"], &[3, 5, 7]).unwrap().flatten("x").unwrap();
        assert_eq!(flat.axes()[0].factors().len(), 2);
        assert_eq!(mesh.coord_of(262_143), Some(vec![15, 127, 127]));
    }
}
