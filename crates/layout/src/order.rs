use std::fmt;

use crate::{LayoutError, Placement, Result};

/// One mesh axis cutting a tensor dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The mesh axis.
    pub axis: usize,
    /// 1 for a plain cut. Above 1, the dim is first split into this many pieces, of each of which
    /// the axis takes a chunk: PyTorch's `_StridedShard`, kept only where no order of plain cuts
    /// gives the same shards.
    pub split_factor: usize,
}

/// For every tensor dim, the mesh axes that cut it, in the order in which they cut.
///
/// By default from the outermost axis to the innermost. Another order arises for example when
/// tensor parallelism cuts the rows of a weight first and data parallelism cuts what is left,
/// though the data axis is the outer one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShardOrder(Vec<Vec<Cut>>);

impl ShardOrder {
    /// Left to right: the outermost axis cuts first.
    pub fn left_to_right(placements: &[Placement], n_dims: usize) -> ShardOrder {
        let mut cuts = vec![Vec::new(); n_dims];
        for (axis, placement) in placements.iter().enumerate() {
            if let Placement::Shard(dim) = placement {
                cuts[*dim].push(Cut { axis, split_factor: 1 });
            }
        }
        ShardOrder(cuts)
    }

    /// Left to right, but for the dims given with their axes in cutting order.
    pub fn with(
        placements: &[Placement],
        n_dims: usize,
        dims: &[(usize, &[usize])],
    ) -> Result<ShardOrder> {
        let mut order = ShardOrder::left_to_right(placements, n_dims);
        for (dim, axes) in dims {
            let Some(cuts) = order.0.get_mut(*dim) else {
                return Err(LayoutError::DimOutOfRange {
                    dim: isize::try_from(*dim).unwrap_or(isize::MAX),
                    n_dims,
                });
            };
            *cuts = axes.iter().map(|axis| Cut { axis: *axis, split_factor: 1 }).collect();
        }
        order.check(placements)?;
        Ok(order)
    }

    pub(crate) fn from_cuts(cuts: Vec<Vec<Cut>>) -> ShardOrder {
        ShardOrder(cuts)
    }

    /// The cuts of one dim, first cut first.
    pub fn cuts(&self, dim: usize) -> &[Cut] {
        &self.0[dim]
    }

    /// The cuts of every dim.
    pub fn dims(&self) -> impl Iterator<Item = &[Cut]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Whether every dim is cut by plain cuts from left to right.
    pub fn is_left_to_right(&self) -> bool {
        self.dims().all(|cuts| {
            cuts.is_sorted_by_key(|cut| cut.axis) && cuts.iter().all(|cut| cut.split_factor == 1)
        })
    }

    /// Every axis that shards a dim is in that dim's order, once, and no other axis is.
    pub(crate) fn check(&self, placements: &[Placement]) -> Result<()> {
        let bad = |why| LayoutError::BadShardOrder {
            order: format!("{self:?}"),
            placements: crate::layout::placements_text(placements),
            why,
        };
        for (dim, cuts) in self.0.iter().enumerate() {
            for (position, cut) in cuts.iter().enumerate() {
                if cuts[..position].iter().any(|other| other.axis == cut.axis) {
                    return Err(bad("an axis is named twice"));
                }
                if placements.get(cut.axis) != Some(&Placement::Shard(dim)) {
                    return Err(bad("an axis is named that does not shard the dim"));
                }
            }
        }
        let named: usize = self.0.iter().map(Vec::len).sum();
        let sharding =
            placements.iter().filter(|placement| placement.shard_dim().is_some()).count();
        if named != sharding {
            return Err(bad("an axis that shards the dim is not named"));
        }
        Ok(())
    }
}

impl fmt::Debug for ShardOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut_dims = self.0.iter().enumerate().filter(|(_, cuts)| !cuts.is_empty());
        let axes =
            cut_dims.map(|(dim, cuts)| (dim, cuts.iter().map(|cut| cut.axis).collect::<Vec<_>>()));
        f.debug_map().entries(axes).finish()
    }
}
