//! PyTorch's way to write a shard order: `_StridedShard(dim, split_factor)`.

use std::fmt;

use crate::{
    Cut, DType, Layout, LayoutError, Mesh, Placement, ReduceOp, Result, ShardOrder, text::bad,
};

/// A placement as PyTorch writes it.
///
/// PyTorch applies placements from the outermost mesh axis to the innermost. That an inner axis
/// cuts *first* it writes as a strided shard on the outer one: the dim is split into
/// `split_factor` pieces, and each rank of the axis takes its chunk of every piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TorchPlacement {
    /// `Shard(dim)`.
    Shard(usize),
    /// `_StridedShard(dim, split_factor)`.
    StridedShard {
        /// The dim.
        dim: usize,
        /// Into how many pieces the dim is split first.
        split_factor: usize,
    },
    /// `Replicate()`.
    Replicate,
    /// `Partial(op)`.
    Partial(ReduceOp),
}

impl Layout {
    /// The layout that PyTorch means by these placements.
    ///
    /// Strided shards become an explicit order of plain cuts where that gives every rank the same
    /// indices, and are kept as they are where it does not: with uneven sizes PyTorch's shards are
    /// not those of any order.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh, TorchPlacement::{Shard, StridedShard}};
    /// let mesh = Mesh::new(&[("dp", 2), ("tp", 2)])?;
    /// let placements = [StridedShard { dim: 0, split_factor: 2 }, Shard(0)];
    /// let even = Layout::from_torch(&[8], DType::F32, &mesh, &placements)?;
    /// assert_eq!(even.to_string(), "[S(0)[1], S(0)[0]]");
    /// assert_eq!(even.to_torch()?, placements);
    /// let uneven = Layout::from_torch(&[9], DType::F32, &mesh, &placements)?;
    /// assert_eq!(uneven.to_string(), "[_S(0, 2), S(0)]");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn from_torch(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        placements: &[TorchPlacement],
    ) -> Result<Layout> {
        let plain: Vec<Placement> = placements.iter().map(|placement| placement.plain()).collect();
        crate::layout::check_placements(shape, dtype, mesh, &plain)?;
        let mut dims: Vec<Vec<Cut>> = vec![Vec::new(); shape.len()];
        for (axis, placement) in placements.iter().enumerate() {
            match *placement {
                TorchPlacement::Shard(dim) => dims[dim].push(Cut { axis, split_factor: 1 }),
                TorchPlacement::StridedShard { dim, split_factor } => {
                    if split_factor == 0 {
                        return Err(bad(
                            &placement.to_string(),
                            "placement",
                            "the split factor is at least 1",
                        ));
                    }
                    dims[dim].push(Cut { axis, split_factor });
                }
                TorchPlacement::Replicate | TorchPlacement::Partial(_) => {}
            }
        }
        let canonical =
            dims.into_iter().zip(shape).map(|(cuts, size)| canonical_cuts(cuts, *size, mesh));
        Layout::intern(shape, dtype, mesh, &plain, ShardOrder::from_cuts(canonical.collect()))
    }

    /// The placements by which PyTorch means this layout; an error where there are none, which is
    /// where an explicit order meets sizes that it does not cut evenly.
    pub fn to_torch(&self) -> Result<Vec<TorchPlacement>> {
        let mut placements: Vec<TorchPlacement> =
            self.placements().iter().map(|placement| (*placement).into()).collect();
        for (dim, cuts) in self.order().dims().enumerate() {
            let strided = cuts.iter().any(|cut| cut.split_factor > 1);
            let left_to_right = cuts.is_sorted_by_key(|cut| cut.axis);
            if !strided
                && !left_to_right
                && !cuts_evenly(cuts, self.global_shape()[dim], self.mesh())
            {
                return Err(LayoutError::NotExpressible {
                    layout: format!("{self:?}"),
                    form: "PyTorch placements",
                    why: format!(
                        "its shard order does not cut the {} indices of dim {dim} evenly, and PyTorch's strided shards then differ; \
                         redistribute to a left-to-right order first",
                        self.global_shape()[dim]
                    ),
                });
            }
            for (position, cut) in cuts.iter().enumerate() {
                let split_factor = match strided {
                    true => cut.split_factor,
                    false => split_factor(cuts, position, self.mesh()),
                };
                if split_factor > 1 {
                    placements[cut.axis] = TorchPlacement::StridedShard { dim, split_factor };
                }
            }
        }
        Ok(placements)
    }
}

impl TorchPlacement {
    fn plain(self) -> Placement {
        match self {
            TorchPlacement::Shard(dim) | TorchPlacement::StridedShard { dim, .. } => {
                Placement::Shard(dim)
            }
            TorchPlacement::Replicate => Placement::Replicate,
            TorchPlacement::Partial(op) => Placement::Partial(op),
        }
    }
}

impl From<Placement> for TorchPlacement {
    fn from(placement: Placement) -> TorchPlacement {
        match placement {
            Placement::Shard(dim) => TorchPlacement::Shard(dim),
            Placement::Replicate => TorchPlacement::Replicate,
            Placement::Partial(op) => TorchPlacement::Partial(op),
        }
    }
}

impl fmt::Display for TorchPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TorchPlacement::StridedShard { dim, split_factor } => {
                write!(f, "_S({dim}, {split_factor})")
            }
            other => other.plain().fmt(f),
        }
    }
}

/// What PyTorch means by these cuts of a dim, which come in mesh order: plain cuts in some order
/// if they give every rank the same indices, else the cuts as they are.
pub(crate) fn canonical_cuts(cuts: Vec<Cut>, size: usize, mesh: &Mesh) -> Vec<Cut> {
    if cuts.iter().all(|cut| cut.split_factor == 1) || !cuts_evenly(&cuts, size, mesh) {
        return cuts;
    }
    plain_order(&cuts, mesh).unwrap_or(cuts)
}

/// The split factor of a cut in an order of plain cuts: the ranks of all axes that cut before it
/// though they come after it in the mesh.
fn split_factor(cuts: &[Cut], position: usize, mesh: &Mesh) -> usize {
    let earlier = cuts[..position].iter().filter(|cut| cut.axis > cuts[position].axis);
    earlier.map(|cut| mesh.axis_size(cut.axis)).product()
}

/// The order of plain cuts whose split factors are those of `cuts` (which come in mesh order).
///
/// The axes are taken from the last to the first. When an axis is placed, all that are already
/// placed come after it in the mesh, so its factor must be the product of those before it: a
/// prefix, found by multiplying along.
fn plain_order(cuts: &[Cut], mesh: &Mesh) -> Option<Vec<Cut>> {
    let mut order: Vec<Cut> = Vec::new();
    for cut in cuts.iter().rev() {
        let mut product = 1usize;
        let mut position = 0;
        while product < cut.split_factor {
            product = product.checked_mul(mesh.axis_size(order.get(position)?.axis))?;
            position += 1;
        }
        if product != cut.split_factor {
            return None;
        }
        order.insert(position, Cut { axis: cut.axis, split_factor: 1 });
    }
    Some(order)
}

/// Whether all cuts together leave equal shards, so that the order of cuts and PyTorch's strided
/// form agree on every index.
fn cuts_evenly(cuts: &[Cut], size: usize, mesh: &Mesh) -> bool {
    let parts =
        cuts.iter().try_fold(1usize, |parts, cut| parts.checked_mul(mesh.axis_size(cut.axis)));
    parts.is_some_and(|parts| size.is_multiple_of(parts))
}
