//! Where a tensor lies on one axis.

use dtensor::{DTensor, Error, Placement, ReduceOp, Result};

/// Where the operand or the result of a module is to lie on a mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Cut along a dim, which may count from the end.
    Shard(isize),
    /// A copy on every rank.
    Replicate,
    /// A pending sum.
    Partial,
    /// Wherever it is.
    AsItIs,
}

impl Spot {
    /// Brings a tensor there; on other axes it stays as it is.
    pub fn place(self, x: &DTensor, axis: usize) -> Result<DTensor> {
        let placement = match self {
            Spot::AsItIs => return Ok(x.clone()),
            Spot::Replicate => Placement::Replicate,
            Spot::Partial => Placement::Partial(ReduceOp::Sum),
            Spot::Shard(dim) => Placement::shard(dim, x.n_dims())
                .map_err(|source| Error::Layout { op: "place", source: Box::new(source) })?,
        };
        let mut placements = x.placements().to_vec();
        match placements.get_mut(axis) {
            Some(own) if *own == placement => Ok(x.clone()),
            Some(own) => {
                *own = placement;
                x.redistribute(&placements)
            }
            None => Err(Error::Unsupported {
                op: "place",
                what: format!("axis {axis} of mesh {}", x.mesh()).into(),
                way_out: "give operands on the mesh of the parameters",
            }),
        }
    }
}
