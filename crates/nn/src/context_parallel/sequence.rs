//! How the sequence lies that a module sees.

use dtensor::{DTensor, Result, ops::nn::Positions};

use super::order::{head_tail_order, indices};

/// How a module that knows positions meets a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequence {
    /// From the first position to the last. Where positions are cut, attention gathers keys and values.
    #[default]
    Plain,
    /// From the first position to the last, and cut: keys and values go around.
    Ring,
    /// The same in [`head_tail_order`](crate::head_tail_order) for so many ranks, so that all have equally much to do.
    BalancedRing(usize),
}

impl Sequence {
    /// Which positions its elements have.
    pub fn positions(self) -> Positions {
        match self {
            Sequence::Plain | Sequence::Ring => Positions::InOrder,
            Sequence::BalancedRing(ranks) => Positions::HeadTail(ranks),
        }
    }

    /// Of a table with a row per position, those of a sequence of this length, in its order.
    pub(crate) fn rows(self, table: &DTensor, length: usize) -> Result<DTensor> {
        self.ordered(&table.narrow(0, 0, length)?, 0)
    }

    /// What lies in the order of positions along a dim that is not cut, in that of the sequence. The list of positions is
    /// whole on every rank, so that nothing is sent to agree on it.
    pub(crate) fn ordered(self, x: &DTensor, dim: usize) -> Result<DTensor> {
        match self {
            Sequence::Plain | Sequence::Ring => Ok(x.clone()),
            Sequence::BalancedRing(ranks) => {
                let order = head_tail_order(x.shape()[dim], ranks);
                x.index_select(dim.cast_signed(), &indices(&order, x.mesh())?)
            }
        }
    }
}
