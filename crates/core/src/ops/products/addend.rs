//! Who adds what is added to a product.

use dtensor_layout::{Placement, ReduceOp};

use crate::op::LocalContext;

/// Whether this rank adds an operand: of the ranks that hold contributions to the result, and all have the operand,
/// the first.
pub(super) fn adds(context: &LocalContext, operand: usize) -> bool {
    let (Some(added), Some(result)) = (context.operand(operand), context.result(0)) else {
        return true;
    };
    let axes = added.placements().iter().zip(result.placements()).zip(context.coord());
    let mut repeated = axes.filter(|((added, result), _)| {
        **added == Placement::Replicate && **result == Placement::Partial(ReduceOp::Sum)
    });
    repeated.all(|(_, index)| *index == 0)
}
