//! Element by element: with any spec. Nothing is sent, but for integers in shards that are no layout: a divisor
//! may be zero on one rank only, and then all are told.

use dtensor::{DTensor, Scalar, is_grad_enabled};
use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use super::{OpCall, OpValue, call, copies_beside, sharded_result};
use crate::{
    Error, Result, Shard, ShardedTensor,
    exchange::{agree, view},
};

/// The methods, by way of [`call`].
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl ShardedTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Result<ShardedTensor> {
                    call(stringify!($name), &[self.into()])?.into_sharded(stringify!($name))
                }
            )*
        }
    };
    (binary $($(#[$doc:meta])* $name:ident;)*) => {
        impl ShardedTensor {
            $(
                $(#[$doc])*
                ///
                /// The other is a sharded tensor that is cut in the same way, a number, or a plain tensor that
                /// is the same on every rank and is broadcast to the size of this one.
                pub fn $name(&self, other: impl Into<OpValue>) -> Result<ShardedTensor> {
                    call(stringify!($name), &[self.into(), other.into()])?.into_sharded(stringify!($name))
                }
            )*
        }
    };
}

methods! {
    /// The value if it is positive, else 0.
    relu;
    /// `x` times the normal distribution function of `x`.
    gelu;
    /// The hyperbolic tangent.
    tanh;
}

methods! { binary
    /// The sum.
    add;
    /// The difference.
    sub;
    /// The product.
    mul;
    /// The quotient, which is a float.
    div;
}

impl ShardedTensor {
    /// Other numbers for what is none: `nan` for NaN, and these for the infinities, or else the largest and the
    /// smallest finite number of the dtype.
    pub fn nan_to_num(
        &self,
        nan: f64,
        positive: Option<f64>,
        negative: Option<f64>,
    ) -> Result<ShardedTensor> {
        let operands = [self.into(), nan.into(), positive.into(), negative.into()];
        call("nan_to_num", &operands)?.into_sharded("nan_to_num")
    }

    /// A number less this.
    pub fn rsub(&self, number: impl Into<Scalar>) -> Result<ShardedTensor> {
        call("sub", &[OpValue::Number(number.into()), self.into()])?.into_sharded("sub")
    }

    /// A number by this, which is a float.
    pub fn rdiv(&self, number: impl Into<Scalar>) -> Result<ShardedTensor> {
        call("div", &[OpValue::Number(number.into()), self.into()])?.into_sharded("div")
    }

    /// `value` where a mask of `bool` is true: a plain tensor that is the same on every rank, or a sharded one
    /// that is cut in the same way.
    pub fn masked_fill(
        &self,
        mask: impl Into<OpValue>,
        value: impl Into<Scalar>,
    ) -> Result<ShardedTensor> {
        let operands = [self.into(), mask.into(), OpValue::Number(value.into())];
        call("masked_fill", &operands)?.into_sharded("masked_fill")
    }
}

/// With one operand: done by distributed tensors, or shard by shard.
pub(super) fn unary(
    call: &OpCall<'_>,
    whole: impl FnOnce(&DTensor) -> dtensor::Result<DTensor>,
    local: impl Fn(&Tensor) -> Result<Tensor, LocalError>,
) -> Result<OpValue> {
    let x = call.sharded(0)?;
    match x.to_dtensor_as(call.name()) {
        Ok(distributed) => Ok(sharded_result(&whole(&distributed)?, x)?.into()),
        Err(_) => {
            Ok(by_shards(call, x, |shard| Ok(local(shard.tensor())?), &|meta| local(meta))?.into())
        }
    }
}

/// With two operands. `with_number` is the same with a number.
pub(super) fn binary(
    call: &OpCall<'_>,
    whole: impl FnOnce(&DTensor, &DTensor) -> dtensor::Result<DTensor>,
    whole_with_number: impl FnOnce(&DTensor, Scalar) -> dtensor::Result<DTensor>,
    local: impl Fn(&Tensor, &Tensor) -> Result<Tensor, LocalError>,
    with_number: impl Fn(&Tensor, Scalar) -> Result<Tensor, LocalError>,
) -> Result<OpValue> {
    let name = call.name();
    if let (OpValue::Number(number), OpValue::Sharded(x)) = (call.operand(0), call.operand(1)) {
        // As if it stood in every element; an integer tensor becomes one that can hold it.
        let is_wider = matches!(number, Scalar::Float(_)) && !x.dtype().is_float();
        let x = if is_wider { x.to_dtype(DType::F32)? } else { x.handle() };
        let first = x.detach().full_like(*number)?;
        return super::call(name, &[first.into(), (&x).into()]);
    }
    let x = call.sharded(0)?;
    let distributed = x.to_dtensor_as(name).ok();
    match (call.operand(1), distributed) {
        (OpValue::Number(number), Some(x_value)) => {
            Ok(sharded_result(&whole_with_number(&x_value, *number)?, x)?.into())
        }
        (OpValue::Number(number), None) => {
            let made =
                by_shards(call, x, |shard| Ok(with_number(shard.tensor(), *number)?), &|meta| {
                    with_number(meta, *number)
                })?;
            Ok(made.into())
        }
        (OpValue::Sharded(other), value) => {
            check_same_shards(name, x, other)?;
            if let (Some(value), Ok(other)) = (value, other.to_dtensor_as(name)) {
                return Ok(sharded_result(&whole(&value, &other)?, x)?.into());
            }
            let mut others = other.local_shards();
            let whole_meta = Tensor::meta(other.size(), other.dtype())?;
            let made = by_shards(
                call,
                x,
                |shard| match others.next() {
                    Some(other) => Ok(local(shard.tensor(), other.tensor())?),
                    None => Err(Error::DifferentShards { op: name.into() }),
                },
                &|meta| local(meta, &whole_meta),
            )?;
            Ok(made.into())
        }
        (OpValue::Plain(plain), value) => {
            // Smaller ones are broadcast; a larger one would make the result larger than its shards.
            let plain = plain.expand(x.size())?;
            if let Some(value) = value {
                let copies = copies_beside(&plain, value.mesh())?;
                return Ok(sharded_result(&whole(&value, &copies)?, x)?.into());
            }
            let whole_meta = Tensor::meta(x.size(), plain.dtype())?;
            let made = by_shards(
                call,
                x,
                |shard| {
                    let part = view(&plain, &shard.metadata().index_box().0)?;
                    Ok(local(shard.tensor(), &part)?)
                },
                &|meta| local(meta, &whole_meta),
            )?;
            Ok(made.into())
        }
        (other, _) => Err(Error::WrongOperand {
            op: name.into(),
            operand: 1,
            got: other.kind().into(),
            want: "a sharded tensor, a number or a plain tensor".into(),
        }),
    }
}

/// An error if tensors are not cut in the same way, which every rank finds.
fn check_same_shards(op: &'static str, a: &ShardedTensor, b: &ShardedTensor) -> Result<()> {
    let is_same =
        a.size() == b.size() && a.metadata().shards_metadata == b.metadata().shards_metadata;
    if is_same { Ok(()) } else { Err(Error::DifferentShards { op: op.into() }) }
}

/// Shard by shard. `infer` is the same on the whole tensor without values: what it refuses, every rank refuses,
/// also one without shards.
fn by_shards(
    call: &OpCall<'_>,
    x: &ShardedTensor,
    make: impl FnMut(&Shard) -> Result<Tensor>,
    infer: &dyn Fn(&Tensor) -> Result<Tensor, LocalError>,
) -> Result<ShardedTensor> {
    let name = call.name();
    x.check_values(name)?;
    if x.requires_grad() && is_grad_enabled() {
        let what = format!("gradients do not pass through a tensor cut by {:?}", x.sharding_spec());
        let way_out = "detach it, compute within no_grad, or reshard it to a layout";
        return Err(Error::refused(name, what, way_out));
    }
    let inferred = infer(&Tensor::meta(x.size(), x.dtype())?)?;
    let metadata = x.detach().metadata_with_dtype(name, inferred.dtype())?;
    let made = x.detach().with_tensors(metadata, make);
    // Only integers have values that can be refused: zero as a divisor.
    match x.dtype().is_float() || x.process_group().rank().is_none() {
        true => made,
        false => agree(name, x.process_group(), made),
    }
}
