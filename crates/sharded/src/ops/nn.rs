//! What neural networks are made of.

use dtensor::{DTensor, Operand};
use dtensor_local::Tensor;

use super::{OpCall, OpValue, call, copies_beside, sharded_result};
use crate::{Error, Result, ShardedTensor};

/// `input` times the transposed weight `[outputs, inputs]`, plus a bias: as `torch.nn.functional.linear` with a
/// sharded weight.
///
/// Where its outputs (dim 0) are cut, so is the last dim of the result, and nothing is sent. Where its inputs
/// (dim 1) are, every rank has a contribution to the result: a pending sum, which whoever uses it reduces. With
/// [`from_dtensor`](ShardedTensor::from_dtensor) the result is a sharded tensor again, once it is cut.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, full, ops::linear};
///
/// Runner::threads(2).run(|world| {
///     let weight = full(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 4], 2.0, DType::F32, world)?;
///     let input = Tensor::full(&[5, 4], 1.0_f32)?;       // the same on every rank
///     let y = linear(&input, &weight, None::<&Tensor>)?;
///     assert_eq!(y.layout().to_string(), "[S(1)]");
///     assert_eq!(y.to_vec::<f32>()?, [8.0; 15]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn linear(
    input: impl Into<OpValue>,
    weight: &ShardedTensor,
    bias: Option<impl Into<OpValue>>,
) -> Result<DTensor> {
    call("linear", &[input.into(), weight.into(), bias.into()])?.into_distributed("linear")
}

impl ShardedTensor {
    /// `exp(x) / sum(exp(x))` along a dim, also one that is cut.
    pub fn softmax(&self, dim: isize) -> Result<ShardedTensor> {
        call("softmax", &[self.into(), (dim as i64).into()])?.into_sharded("softmax")
    }

    /// Products of the matrices of two batches `[b, n, m]` and `[b, m, p]`.
    pub fn bmm(&self, other: &ShardedTensor) -> Result<ShardedTensor> {
        call("bmm", &[self.into(), other.into()])?.into_sharded("bmm")
    }

    /// The last dims, of this shape, normalised to mean 0 and variance 1, times `weight` and plus `bias`, which
    /// are plain tensors and the same on every rank.
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<ShardedTensor> {
        let shape: Vec<isize> = normalized_shape.iter().map(|size| *size as isize).collect();
        let operands = [self.into(), shape.into(), weight.into(), bias.into(), eps.into()];
        call("layer_norm", &operands)?.into_sharded("layer_norm")
    }

    /// Zeros with probability `p`, and what is left divided by `1 - p`; in evaluation, the same tensor. Which
    /// elements are zeros does not depend on how the tensor is cut.
    pub fn dropout(&self, p: f64, training: bool) -> Result<ShardedTensor> {
        call("dropout", &[self.into(), p.into(), training.into()])?.into_sharded("dropout")
    }
}

pub(super) fn softmax(call: &OpCall<'_>) -> Result<OpValue> {
    let (x, dim) = (call.sharded(0)?, call.integer(1)?);
    Ok(sharded_result(&x.to_dtensor_as(call.name())?.softmax(dim)?, x)?.into())
}

pub(super) fn dropout(call: &OpCall<'_>) -> Result<OpValue> {
    let (x, p) = (call.sharded(0)?, call.number(1)?.to_f64());
    let training = call.number_or(2, true)?.to_f64() != 0.0;
    Ok(sharded_result(&x.to_dtensor_as(call.name())?.dropout(p, training)?, x)?.into())
}

pub(super) fn bmm(call: &OpCall<'_>) -> Result<OpValue> {
    let (a, b) = (call.sharded(0)?, call.sharded(1)?);
    if let Some(other) = [a, b].into_iter().find(|operand| operand.n_dims() != 3) {
        let what = format!("an operand of {} dims", other.n_dims());
        return Err(Error::refused(call.name(), what, "both are batches of matrices: three dims"));
    }
    let (left, right) = (a.to_dtensor_as(call.name())?, b.to_dtensor_as(call.name())?);
    Ok(sharded_result(&left.matmul(&right)?, a)?.into())
}

pub(super) fn layer_norm(call: &OpCall<'_>) -> Result<OpValue> {
    let x = call.sharded(0)?;
    let shape: Vec<usize> =
        call.integers(1)?.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
    let value = x.to_dtensor_as(call.name())?;
    let beside = |index: usize| -> Result<Option<DTensor>> {
        let plain = call.optional(index, OpCall::plain)?;
        plain.map(|plain| copies_beside(plain, value.mesh())).transpose()
    };
    let (weight, bias) = (beside(2)?, beside(3)?);
    let eps = call.number_or(4, 1e-5)?.to_f64();
    Ok(sharded_result(&value.layer_norm(&shape, weight.as_ref(), bias.as_ref(), eps)?, x)?.into())
}

pub(super) fn linear_op(call: &OpCall<'_>) -> Result<OpValue> {
    let weight = call.sharded(1)?.to_dtensor_as(call.name())?;
    let on_mesh = |index: usize| -> Result<DTensor> {
        match call.operand(index) {
            OpValue::Distributed(tensor) => Ok(tensor.clone()),
            OpValue::Plain(plain) => copies_beside(plain, weight.mesh()),
            _ => call.sharded(index)?.to_dtensor_as(call.name()),
        }
    };
    let input = on_mesh(0)?;
    let bias = call.optional(2, |_, index| on_mesh(index))?;
    Ok(input.linear(&weight, bias.as_ref())?.into())
}

/// A number as the operand of a distributed tensor.
pub(super) fn as_operand(number: dtensor::Scalar) -> Operand<'static> {
    Operand::Number(number)
}
