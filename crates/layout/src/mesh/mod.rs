//! A mesh of ranks: named axes, each a pattern of sizes and strides over rank numbers.

mod algebra;
mod text;

use std::sync::Arc;

use crate::{LayoutError, Result};

pub(crate) use algebra::coalesce;

/// Ranks arranged on named axes.
///
/// The rank at a coordinate is `base + sum(index * stride)`. Ranks are never listed, so a mesh of
/// 262,144 ranks costs as much as one of 4. A slice, a flattened axis or a transposed mesh is
/// again sizes and strides. Clones share their data.
///
/// ```
/// use dtensor_layout::Mesh;
/// let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
/// assert_eq!(mesh.rank_at(&[1, 2])?, 6);
/// assert_eq!(mesh.coord_of(6), Some(vec![1, 2]));
/// assert_eq!(mesh.to_string(), "dp=2,tp=4");
/// assert_eq!("dp=2,tp=4".parse::<Mesh>()?, mesh);
/// # Ok::<(), dtensor_layout::LayoutError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh(Arc<Inner>);

#[derive(PartialEq, Eq, Hash)]
struct Inner {
    axes: Vec<MeshAxis>,
    base: usize,
    size: usize,
}

/// One axis of a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshAxis {
    name: String,
    size: usize,
    /// Major first. One factor, unless axes that do not lie next to each other were flattened.
    factors: Vec<Factor>,
}

/// `size` ranks, each `stride` after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// Number of ranks.
    pub size: usize,
    /// Distance between neighbours.
    pub stride: usize,
}

impl Mesh {
    /// The most axes a mesh can have.
    pub const MAX_AXES: usize = 16;

    /// A mesh over the ranks `0..product of sizes`, the last axis varying fastest.
    pub fn new<N: AsRef<str>>(axes: &[(N, usize)]) -> Result<Mesh> {
        let sizes: Vec<usize> = axes.iter().map(|(_, size)| *size).collect();
        let mut stride = checked_product("mesh sizes", &sizes)?;
        let axes = axes.iter().map(|(name, size)| {
            stride = stride.checked_div(*size).unwrap_or(0);
            MeshAxis::new(name.as_ref(), vec![Factor { size: *size, stride }])
        });
        Mesh::from_axes(axes.collect(), 0)
    }

    /// A mesh whose axes are called `axis0`, `axis1`, and so on.
    pub fn from_sizes(sizes: &[usize]) -> Result<Mesh> {
        let axes: Vec<_> =
            sizes.iter().enumerate().map(|(i, size)| (format!("axis{i}"), *size)).collect();
        Mesh::new(&axes)
    }

    /// Number of axes.
    pub fn n_axes(&self) -> usize {
        self.0.axes.len()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The axes, outermost first.
    pub fn axes(&self) -> &[MeshAxis] {
        &self.0.axes
    }

    /// Size of one axis.
    pub fn axis_size(&self, axis: usize) -> usize {
        self.0.axes[axis].size
    }

    /// Size of every axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.axes().iter().map(MeshAxis::size).collect()
    }

    /// Position of the axis of this name.
    pub fn axis_index(&self, name: &str) -> Result<usize> {
        self.axes().iter().position(|axis| axis.name == name).ok_or_else(|| {
            LayoutError::UnknownAxis {
                axis: name.to_string(),
                known: self.axes().iter().map(MeshAxis::name).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// The rank at coordinate zero.
    pub fn base(&self) -> usize {
        self.0.base
    }

    /// The rank at a coordinate.
    pub fn rank_at(&self, coord: &[usize]) -> Result<usize> {
        self.check_coord(coord)?;
        Ok(self.base()
            + self.axes().iter().zip(coord).map(|(axis, index)| axis.offset(*index)).sum::<usize>())
    }

    /// The coordinate of a rank, or `None` for a rank outside of the mesh.
    pub fn coord_of(&self, rank: usize) -> Option<Vec<usize>> {
        let mut rest = rank.checked_sub(self.base())?;
        // Strides nest (`check_nested`), so dividing by the largest first finds every digit.
        let mut factors: Vec<(usize, usize, Factor)> = Vec::new();
        for (axis_index, axis) in self.axes().iter().enumerate() {
            let mut below = axis.size;
            for factor in &axis.factors {
                below /= factor.size;
                factors.push((axis_index, below, *factor));
            }
        }
        factors.sort_by_key(|(_, _, factor)| std::cmp::Reverse((factor.stride, factor.size)));
        let mut coord = vec![0; self.n_axes()];
        for (axis, weight, factor) in factors {
            if factor.size == 1 {
                continue;
            }
            let digit = (rest / factor.stride).min(factor.size - 1);
            rest -= digit * factor.stride;
            coord[axis] += digit * weight;
        }
        (rest == 0).then_some(coord)
    }

    /// Whether the rank is on the mesh.
    pub fn contains(&self, rank: usize) -> bool {
        self.coord_of(rank).is_some()
    }

    /// The ranks of one axis, through a coordinate (whose index on that axis does not matter).
    pub fn axis_ranks(
        &self,
        axis: usize,
        coord: &[usize],
    ) -> Result<impl Iterator<Item = usize> + '_> {
        let here = self.rank_at(coord)?;
        let axis_ = &self.0.axes[axis];
        let first = here - axis_.offset(coord[axis]);
        Ok((0..axis_.size).map(move |index| first + axis_.offset(index)))
    }

    /// All ranks, in the order of their coordinates.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        self.coords().map(|coord| {
            self.base()
                + self
                    .axes()
                    .iter()
                    .zip(&coord)
                    .map(|(axis, index)| axis.offset(*index))
                    .sum::<usize>()
        })
    }

    /// All coordinates, the last axis varying fastest.
    pub fn coords(&self) -> impl Iterator<Item = Vec<usize>> + use<> {
        let sizes = self.sizes();
        (0..self.size()).map(move |mut number| {
            let mut coord = vec![0; sizes.len()];
            for (index, size) in coord.iter_mut().zip(&sizes).rev() {
                *index = number % size;
                number /= size;
            }
            coord
        })
    }

    /// Whether this is [`Mesh::new`] of its sizes: row-major over `0..size`.
    pub fn is_row_major(&self) -> bool {
        let mut stride = self.size();
        self.base() == 0
            && self.axes().iter().all(|axis| {
                stride /= axis.size;
                axis.factors == [Factor { size: axis.size, stride }]
            })
    }

    pub(crate) fn check_coord(&self, coord: &[usize]) -> Result<()> {
        let fits = coord.len() == self.n_axes()
            && coord.iter().zip(self.axes()).all(|(index, axis)| *index < axis.size);
        match fits {
            true => Ok(()),
            false => {
                Err(LayoutError::BadCoordinate { coord: coord.to_vec(), mesh: self.to_string() })
            }
        }
    }

    fn from_axes(axes: Vec<MeshAxis>, base: usize) -> Result<Mesh> {
        if axes.is_empty() {
            return Err(LayoutError::EmptyMesh);
        }
        if axes.len() > Mesh::MAX_AXES {
            return Err(LayoutError::TooManyAxes { got: axes.len(), limit: Mesh::MAX_AXES });
        }
        for (index, axis) in axes.iter().enumerate() {
            let starts_well = axis.name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if !starts_well
                || !axis.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
            {
                return Err(LayoutError::BadAxisName { axis: axis.name.clone() });
            }
            if axes[..index].iter().any(|other| other.name == axis.name) {
                return Err(LayoutError::DuplicateAxis { axis: axis.name.clone() });
            }
            if axis.factors.iter().any(|factor| factor.size == 0) {
                return Err(LayoutError::EmptyAxis { axis: axis.name.clone() });
            }
        }
        let sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
        let size = checked_product("mesh sizes", &sizes)?;
        let last = axes.iter().flat_map(|axis| &axis.factors).try_fold(base, |last, factor| {
            last.checked_add((factor.size - 1).checked_mul(factor.stride)?)
        });
        if last.is_none() {
            return Err(LayoutError::Overflow { what: "mesh sizes and strides", sizes });
        }
        let mesh = Mesh(Arc::new(Inner { axes, base, size }));
        mesh.check_nested()?;
        Ok(mesh)
    }

    /// Every rank has one coordinate: sorted by stride, each factor steps over all smaller ones.
    fn check_nested(&self) -> Result<()> {
        let mut factors: Vec<Factor> =
            self.axes().iter().flat_map(|axis| axis.factors.clone()).collect();
        factors.retain(|factor| factor.size > 1);
        factors.sort_by_key(|factor| factor.stride);
        let mut reached = 0;
        for factor in factors {
            if factor.stride <= reached {
                return Err(LayoutError::MeshesDoNotCombine {
                    left: self.to_string(),
                    right: self.to_string(),
                    why: "two coordinates would be the same rank; use axes of one mesh that do not overlap",
                });
            }
            reached += (factor.size - 1) * factor.stride;
        }
        Ok(())
    }
}

impl MeshAxis {
    fn new(name: &str, factors: Vec<Factor>) -> MeshAxis {
        MeshAxis {
            name: name.to_string(),
            size: factors.iter().map(|factor| factor.size).product(),
            factors,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of ranks on it.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Its sizes and strides, major first.
    pub fn factors(&self) -> &[Factor] {
        &self.factors
    }

    /// Distance of the rank at `index` from the rank at 0.
    pub fn offset(&self, mut index: usize) -> usize {
        let mut offset = 0;
        for factor in self.factors.iter().rev() {
            offset += index % factor.size * factor.stride;
            index /= factor.size;
        }
        offset
    }
}

/// The product of sizes, of which a zero makes it zero whatever the others are.
pub(crate) fn checked_product(what: &'static str, sizes: &[usize]) -> Result<usize> {
    if sizes.contains(&0) {
        return Ok(0);
    }
    let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    product.ok_or_else(|| LayoutError::Overflow { what, sizes: sizes.to_vec() })
}
