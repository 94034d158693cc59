//! What a node keeps until its gradient is computed.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{DTensor, Result};

/// Which operands and results the gradient of an operation needs. What it does not need is not kept in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// A bit per operand.
    operands: u32,
    /// A bit per result.
    results: u32,
    /// The gradient with respect to an operand does not need that operand itself.
    only_others: bool,
}

impl Keep {
    /// Neither operands nor results: shapes and dtypes are known anyhow.
    pub const NOTHING: Keep = Keep { operands: 0, results: 0, only_others: false };

    /// All operands.
    pub const OPERANDS: Keep = Keep { operands: u32::MAX, ..Keep::NOTHING };

    /// The operands of something like a product: the gradient with respect to one needs the others. What stands beside
    /// a constant is not kept.
    pub const OTHERS: Keep = Keep { only_others: true, ..Keep::OPERANDS };

    /// As [`OTHERS`](Keep::OTHERS), of these operands alone: the gradients with respect to further ones, such as something
    /// that is added to a product, need none of them.
    pub const fn others_among(numbers: &[usize]) -> Keep {
        Keep { only_others: true, ..Keep::operands(numbers) }
    }

    /// All results.
    pub const RESULTS: Keep = Keep { results: u32::MAX, ..Keep::NOTHING };

    /// These operands.
    pub const fn operands(numbers: &[usize]) -> Keep {
        Keep { operands: bits(numbers), ..Keep::NOTHING }
    }

    /// These results.
    pub const fn results(numbers: &[usize]) -> Keep {
        Keep { results: bits(numbers), ..Keep::NOTHING }
    }

    /// What both keep.
    #[must_use]
    pub const fn and(self, other: Keep) -> Keep {
        Keep {
            operands: self.operands | other.operands,
            results: self.results | other.results,
            only_others: self.only_others && other.only_others,
        }
    }

    /// Whether an operand is kept, given which operands need a gradient.
    fn keeps_operand(self, number: usize, needs: impl Fn(usize) -> bool, n: usize) -> bool {
        has(self.operands, number)
            && (!self.only_others
                || (0..n).any(|other| other != number && has(self.operands, other) && needs(other)))
    }

    /// Whether an operand is kept, of these.
    pub(crate) fn keeps_operand_of(self, number: usize, operands: &[&DTensor]) -> bool {
        self.keeps_operand(number, |other| operands[other].needs_grad(), operands.len())
    }

    pub(super) fn keeps_result(self, number: usize) -> bool {
        has(self.results, number)
    }
}

const fn bits(numbers: &[usize]) -> u32 {
    let (mut bits, mut position) = (0, 0);
    while position < numbers.len() {
        bits |= 1 << numbers[position];
        position += 1;
    }
    bits
}

/// Operands beyond the last bit are as the last.
fn has(bits: u32, number: usize) -> bool {
    bits >> number.min(31) & 1 == 1
}

/// Where a tensor is had from again. A tensor that [has one](DTensor::kept_by) is not kept for the gradient of an
/// operation that uses it: its keeper is, and is asked when the gradient is computed. So a gathered parameter is kept
/// in parts, and gathered once more.
pub trait Keeper: Send + Sync {
    /// The tensor. All ranks ask in the same order.
    fn again(&self) -> Result<DTensor>;

    /// A walk that keeps the graph has computed the gradient of an operation that has this keeper; of such there are
    /// `holders` at most. When that many have passed, what [`again`](Keeper::again) has got need not be held for the rest
    /// of the walk.
    fn passed(&self, holders: usize) {
        let _ = holders;
    }
}

/// A tensor that is kept, or the way to it.
pub(super) enum Saved {
    Tensor(DTensor),
    Again(Arc<dyn Keeper>),
}

/// What a node keeps.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) operands: SmallVec<[Option<Saved>; 2]>,
    /// Without edges: theirs lead to the node itself.
    pub(super) results: SmallVec<[Option<DTensor>; 1]>,
}

impl Kept {
    /// Tells the keepers that a gradient was computed, after which they are there still.
    pub(super) fn passed(&self) {
        for saved in self.operands.iter().flatten() {
            if let Saved::Again(keeper) = saved {
                keeper.passed(Arc::strong_count(keeper));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operands.iter().all(Option::is_none) && self.results.iter().all(Option::is_none)
    }
}

impl Saved {
    pub(super) fn of(tensor: &DTensor) -> Saved {
        match tensor.keeper() {
            Some(keeper) => Saved::Again(keeper.clone()),
            None => Saved::Tensor(tensor.clone()),
        }
    }

    pub(super) fn get(&self) -> Result<DTensor> {
        match self {
            Saved::Tensor(tensor) => Ok(tensor.clone()),
            Saved::Again(keeper) => keeper.again(),
        }
    }
}

impl DTensor {
    /// The same tensor, with a keeper: what is kept of it until a gradient has been computed is not its values.
    #[must_use]
    pub fn kept_by(&self, keeper: Arc<dyn Keeper>) -> DTensor {
        self.clone().with_keeper(keeper)
    }
}
