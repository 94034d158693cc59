//! Zeros to which a gradient is written.

use dtensor_layout::Placement;

use crate::{DTensor, Result, op::Backward};

/// Zeros of the shape of an operand, to which `grad` is written or added, placed such that neither is moved for it.
///
/// Where the gradient is a copy, they are cut as the operand is; where it is pending, they are, too. Where a dim of the
/// gradient is cut, `place` says what becomes of it; `None` is where the operand lay.
pub(in crate::ops) fn zeros_for(
    backward: &Backward<'_>,
    operand: usize,
    grad: &DTensor,
    place: impl Fn(usize) -> Option<Placement>,
) -> Result<DTensor> {
    let home = |own: &Placement| match own.reduce_op() {
        Some(_) => Placement::Replicate,
        None => *own,
    };
    let own = backward.layout(operand).placements().iter();
    let placements: Vec<Placement> = own
        .zip(grad.placements())
        .map(|(own, grad)| match grad {
            Placement::Partial(_) => *grad,
            Placement::Shard(dim) => place(*dim).unwrap_or_else(|| home(own)),
            Placement::Replicate => home(own),
        })
        .collect();
    grad.new_zeros(backward.shape(operand), &placements)
}

/// A zero that may stand beside a gradient in place of some of its elements: where the gradient is pending, it is, too.
pub(in crate::ops) fn zero_beside(grad: &DTensor) -> Result<DTensor> {
    let beside = |placement: &Placement| match placement.reduce_op() {
        Some(_) => *placement,
        None => Placement::Replicate,
    };
    let placements: Vec<Placement> = grad.placements().iter().map(beside).collect();
    grad.new_zeros(&[], &placements)
}
