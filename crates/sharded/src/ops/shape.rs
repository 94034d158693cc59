//! Dims in another order, other shapes, pieces.

use super::{OpCall, OpValue, call, sharded_result};
use crate::{Result, ShardedTensor};

impl ShardedTensor {
    /// Two dims exchanged. What was cut along the one is cut along the other; nothing is sent.
    pub fn transpose(&self, a: isize, b: isize) -> Result<ShardedTensor> {
        call("transpose", &[self.into(), vec![a, b].into()])?.into_sharded("transpose")
    }

    /// Another shape with the same elements in the same order; one size may be -1.
    pub fn view(&self, shape: &[isize]) -> Result<ShardedTensor> {
        call("view", &[self.into(), shape.to_vec().into()])?.into_sharded("view")
    }

    /// `parts` pieces along a dim, as `torch.chunk` cuts, each a sharded tensor.
    pub fn chunk(&self, parts: usize, dim: isize) -> Result<Vec<ShardedTensor>> {
        let operands = [self.into(), (parts as i64).into(), (dim as i64).into()];
        let pieces = call("chunk", &operands)?.into_list("chunk")?;
        pieces.into_iter().map(|piece| piece.into_sharded("chunk")).collect()
    }
}

pub(super) fn transpose(call: &OpCall<'_>) -> Result<OpValue> {
    let x = call.sharded(0)?;
    let [a, b] = *call.integers(1)? else {
        return Err(crate::Error::WrongOperand {
            op: call.name().into(),
            operand: 1,
            got: "a list of another length".into(),
            want: "two dims".into(),
        });
    };
    Ok(sharded_result(&x.to_dtensor_as(call.name())?.transpose(a, b)?, x)?.into())
}

pub(super) fn view(call: &OpCall<'_>) -> Result<OpValue> {
    let x = call.sharded(0)?;
    let shape = call.integers(1)?;
    Ok(sharded_result(&x.to_dtensor_as(call.name())?.view(shape)?, x)?.into())
}

pub(super) fn chunk(call: &OpCall<'_>) -> Result<OpValue> {
    let x = call.sharded(0)?;
    let parts = usize::try_from(call.integer(1)?).unwrap_or(0);
    let dim = call.optional(2, OpCall::integer)?.unwrap_or(0);
    let pieces = x.to_dtensor_as(call.name())?.chunk(parts, dim)?;
    let sharded = pieces.iter().map(|piece| Ok(sharded_result(piece, x)?.into()));
    Ok(OpValue::List(sharded.collect::<Result<Vec<_>>>()?))
}
