//! Arithmetic that changes the tensor.

use dtensor::{is_grad_enabled, no_grad};
use dtensor_dtype::DType;

use super::{OpCall, OpValue, call};
use crate::{Error, Result, ShardedTensor};

/// The methods, by way of [`call`].
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident is $op:literal;)*) => {
        impl ShardedTensor {
            $(
                $(#[$doc])*
                ///
                /// The other is as for the form that gives a new tensor. The dtype stays, and must be able to
                /// hold the result: an integer tensor takes no floats. A change of the elements is a new
                /// beginning for gradients; where they would be lost, because this tensor was computed, or the
                /// other wants some, it is an error.
                pub fn $name(&mut self, other: impl Into<OpValue>) -> Result<()> {
                    let changed = call($op, &[(&*self).into(), other.into()])?.into_sharded($op)?;
                    self.take_elements($op, changed)
                }
            )*
        }
    };
}

methods! {
    /// Adds to this tensor.
    add_assign is "add_";
    /// Subtracts from this tensor.
    sub_assign is "sub_";
    /// Multiplies this tensor.
    mul_assign is "mul_";
    /// Divides this tensor.
    div_assign is "div_";
}

impl ShardedTensor {
    /// Has the elements of another tensor that is cut in the same way, without copying them.
    fn take_elements(&mut self, op: &'static str, other: ShardedTensor) -> Result<()> {
        self.process_group().check_same(op, 0, other.process_group())?;
        let is_alike = self.size() == other.size()
            && self.dtype() == other.dtype()
            && self.metadata().shards_metadata == other.metadata().shards_metadata;
        // It may have been registered by somebody else.
        if !is_alike {
            return Err(Error::DifferentShards { op: op.into() });
        }
        let mut from = other.local_shards().map(|shard| shard.tensor().clone());
        self.modify_shards(|_, _, tensor| {
            if let Some(elements) = from.next() {
                *tensor = elements;
            }
            Ok(())
        })
    }
}

/// What the first operand is to be, by the operation that gives a new tensor: with its own dtype.
pub(super) fn in_place(call: &OpCall<'_>, by: &'static str) -> Result<OpValue> {
    let (op, x) = (call.name(), call.sharded(0)?);
    let wants_grad = |value: &OpValue| match value {
        OpValue::Sharded(tensor) => tensor.requires_grad(),
        OpValue::Distributed(tensor) => tensor.needs_grad(),
        _ => false,
    };
    if is_grad_enabled() && (!x.is_leaf() || call.operands()[1..].iter().any(wants_grad)) {
        let what = "gradients would be lost by changing a tensor in place";
        let way_out = "use the operation that gives a new tensor, or detach the operands";
        return Err(Error::refused(op, what, way_out));
    }
    let result = no_grad(|| super::call(by, call.operands()))?.into_sharded(op)?.detach();
    let fits = match x.dtype() {
        dtype if dtype.is_float() => true,
        DType::Bool => result.dtype() == DType::Bool,
        _ => !result.dtype().is_float(),
    };
    if !fits {
        let what = format!("a result of {} in a tensor of {}", result.dtype(), x.dtype());
        return Err(Error::refused(op, what, "convert the tensor with to_dtype first"));
    }
    let mut result = result.to_dtype(x.dtype())?;
    result.set_requires_grad(x.requires_grad())?;
    Ok(result.into())
}
