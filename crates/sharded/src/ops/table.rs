//! The operations that are there.

use dtensor::Scalar;

use super::{
    OpCall, OpValue,
    elementwise::{binary, unary},
    in_place::in_place,
    nn::{as_operand, bmm, dropout, layer_norm, linear_op, softmax},
    shape::{chunk, transpose, view},
};
use crate::{Error, Fan, Nonlinearity, Result, ShardedTensor, embedding};

/// An operation of the table.
pub struct OpRecord {
    /// Its name: that of PyTorch.
    pub name: &'static str,
    pub(super) run: fn(&OpCall<'_>) -> Result<OpValue>,
}

/// All operations: first those of PyTorch's table, then those that it once had, then those for tables of
/// vectors. What ends in `_` gives the changed tensor, because operands are values.
///
/// All of PyTorch's 35 are there. Three of them mean little here: a tensor does not keep its gradient, so `grad`
/// gives nothing, and a walk is asked for it ([`ShardedTensor::gradient`]); `grad_fn` of what was computed is the
/// distributed tensor that knows the way back; and values are not shallow copies of others.
pub const OPS: &[OpRecord] = &[
    OpRecord { name: "shape", run: |call| Ok(integers(call.sharded(0)?.shape())) },
    OpRecord { name: "size", run: |call| Ok(integers(call.sharded(0)?.size())) },
    OpRecord { name: "dim", run: |call| Ok((call.sharded(0)?.n_dims() as i64).into()) },
    OpRecord { name: "ndim", run: |call| Ok((call.sharded(0)?.n_dims() as i64).into()) },
    OpRecord { name: "dtype", run: |call| Ok(call.sharded(0)?.dtype().into()) },
    OpRecord { name: "layout", run: |call| Ok(OpValue::Layout(call.sharded(0)?.layout())) },
    OpRecord { name: "device", run: |call| Ok(call.sharded(0)?.device().into()) },
    OpRecord { name: "is_meta", run: |call| Ok(call.sharded(0)?.is_meta().into()) },
    OpRecord { name: "is_contiguous", run: |call| Ok(call.sharded(0)?.is_contiguous().into()) },
    OpRecord {
        name: "is_floating_point",
        run: |call| Ok(call.sharded(0)?.is_floating_point().into()),
    },
    OpRecord { name: "is_leaf", run: |call| Ok(call.sharded(0)?.is_leaf().into()) },
    OpRecord { name: "requires_grad", run: |call| Ok(call.sharded(0)?.requires_grad().into()) },
    OpRecord { name: "grad", run: |call| call.sharded(0).map(|_| OpValue::Nothing) },
    OpRecord {
        name: "grad_fn",
        run: |call| {
            let x = call.sharded(0)?;
            Ok(if x.is_leaf() { OpValue::Nothing } else { x.value().into() })
        },
    },
    OpRecord {
        name: "_has_compatible_shallow_copy_type",
        run: |call| call.sharded(0).map(|_| false.into()),
    },
    OpRecord { name: "contiguous", run: |call| Ok(call.sharded(0)?.into()) },
    OpRecord { name: "clone", run: |call| Ok(call.sharded(0)?.into()) },
    OpRecord {
        name: "__reduce_ex__",
        run: |call| Ok(OpValue::Bytes(call.sharded(0)?.to_bytes()?)),
    },
    OpRecord { name: "__deepcopy__", run: |call| Ok(call.sharded(0)?.into()) },
    OpRecord { name: "detach", run: |call| Ok(call.sharded(0)?.detach().into()) },
    OpRecord {
        name: "type_as",
        run: |call| Ok(call.sharded(0)?.type_as(call.sharded(1)?)?.into()),
    },
    OpRecord { name: "copy_", run: |call| changed(call, |x| x.copy_from(call.sharded(1)?)) },
    OpRecord {
        name: "requires_grad_",
        run: |call| {
            let wanted = call.number_or(1, true)?.to_f64() != 0.0;
            changed(call, |x| x.set_requires_grad(wanted))
        },
    },
    OpRecord { name: "equal", run: |call| Ok(call.sharded(0)?.equal(call.sharded(1)?)?.into()) },
    OpRecord {
        name: "allclose",
        run: |call| {
            let number = |index, default: f64| Ok(call.number_or(index, default)?.to_f64());
            let equal_nan = call.number_or(4, false)?.to_f64() != 0.0;
            let (relative, absolute): (Result<f64>, Result<f64>) =
                (number(2, 1e-5), number(3, 1e-8));
            Ok(call.sharded(0)?.allclose(call.sharded(1)?, relative?, absolute?, equal_nan)?.into())
        },
    },
    OpRecord {
        name: "uniform_",
        run: |call| {
            let (low, high) = (call.number_or(1, 0.0)?.to_f64(), call.number_or(2, 1.0)?.to_f64());
            changed(call, |x| x.fill_uniform(low, high))
        },
    },
    OpRecord {
        name: "normal_",
        run: |call| {
            let (mean, std) = (call.number_or(1, 0.0)?.to_f64(), call.number_or(2, 1.0)?.to_f64());
            changed(call, |x| x.fill_normal(mean, std))
        },
    },
    OpRecord {
        name: "kaiming_uniform_",
        run: |call| {
            let (fan, nonlinearity) = kaiming_of(call)?;
            changed(call, |x| x.fill_kaiming_uniform_with(fan, nonlinearity))
        },
    },
    OpRecord {
        name: "constant_",
        run: |call| {
            let value = call.number(1)?;
            changed(call, |x| x.fill_constant(value))
        },
    },
    OpRecord { name: "empty_like", run: |call| Ok(call.sharded(0)?.empty_like()?.into()) },
    OpRecord { name: "zeros_like", run: |call| Ok(call.sharded(0)?.zeros_like()?.into()) },
    OpRecord { name: "ones_like", run: |call| Ok(call.sharded(0)?.ones_like()?.into()) },
    OpRecord {
        name: "full_like",
        run: |call| Ok(call.sharded(0)?.full_like(call.number(1)?)?.into()),
    },
    OpRecord { name: "rand_like", run: |call| Ok(call.sharded(0)?.rand_like()?.into()) },
    OpRecord { name: "randn_like", run: |call| Ok(call.sharded(0)?.randn_like()?.into()) },
    OpRecord { name: "relu", run: |call| unary(call, |x| x.relu(), |x| x.relu()) },
    OpRecord { name: "gelu", run: |call| unary(call, |x| x.gelu(), |x| x.gelu()) },
    OpRecord { name: "tanh", run: |call| unary(call, |x| x.tanh(), |x| x.tanh()) },
    OpRecord {
        name: "nan_to_num",
        run: |call| {
            let bound =
                |index| call.optional(index, |call, index| Ok(call.number(index)?.to_f64()));
            let nan = call.number_or(1, 0.0)?.to_f64();
            let (positive, negative) = (bound(2)?, bound(3)?);
            unary(
                call,
                |x| x.nan_to_num(nan, positive, negative),
                |x| x.nan_to_num(nan, positive, negative),
            )
        },
    },
    OpRecord {
        name: "add",
        run: |call| {
            binary(
                call,
                |a, b| a.add(b),
                |a, number| a.add(as_operand(number)),
                |a, b| a.add(b),
                |a, number| a.add_scalar(number),
            )
        },
    },
    OpRecord {
        name: "sub",
        run: |call| {
            binary(
                call,
                |a, b| a.sub(b),
                |a, number| a.sub(as_operand(number)),
                |a, b| a.sub(b),
                |a, number| a.sub_scalar(number),
            )
        },
    },
    OpRecord {
        name: "mul",
        run: |call| {
            binary(
                call,
                |a, b| a.mul(b),
                |a, number| a.mul(as_operand(number)),
                |a, b| a.mul(b),
                |a, number| a.mul_scalar(number),
            )
        },
    },
    OpRecord {
        name: "div",
        run: |call| {
            binary(
                call,
                |a, b| a.div(b),
                |a, number| a.div(as_operand(number)),
                |a, b| a.div(b),
                |a, number| a.div_scalar(number),
            )
        },
    },
    OpRecord { name: "add_", run: |call| in_place(call, "add") },
    OpRecord { name: "sub_", run: |call| in_place(call, "sub") },
    OpRecord { name: "mul_", run: |call| in_place(call, "mul") },
    OpRecord { name: "div_", run: |call| in_place(call, "div") },
    OpRecord { name: "masked_fill", run: masked_fill },
    OpRecord { name: "dropout", run: dropout },
    OpRecord { name: "softmax", run: softmax },
    OpRecord { name: "layer_norm", run: layer_norm },
    OpRecord { name: "linear", run: linear_op },
    OpRecord { name: "bmm", run: bmm },
    OpRecord { name: "transpose", run: transpose },
    OpRecord { name: "view", run: view },
    OpRecord { name: "chunk", run: chunk },
    OpRecord { name: "embedding", run: embedding::embedding_op },
    OpRecord { name: "embedding_bag", run: embedding::embedding_bag_op },
];

/// The operation of this name.
pub(super) fn find(name: &str) -> Option<&'static OpRecord> {
    OPS.iter().find(|record| record.name == name)
}

fn integers(sizes: &[usize]) -> OpValue {
    OpValue::Integers(sizes.iter().map(|size| *size as isize).collect())
}

/// A copy of the first operand, changed.
fn changed(
    call: &OpCall<'_>,
    change: impl FnOnce(&mut ShardedTensor) -> Result<()>,
) -> Result<OpValue> {
    let mut x = call.sharded(0)?.clone();
    change(&mut x)?;
    Ok(x.into())
}

/// As PyTorch gives it: a slope, and the names of the fan and of what comes after the layer.
fn kaiming_of(call: &OpCall<'_>) -> Result<(Fan, Nonlinearity)> {
    let unknown = |text: &str, way_out| Error::refused(call.name(), format!("`{text}`"), way_out);
    let negative_slope = call.number_or(1, 0.0)?.to_f64();
    let fan = match call.text_or(2, "fan_in")? {
        "fan_in" => Fan::In,
        "fan_out" => Fan::Out,
        other => return Err(unknown(other, "take `fan_in` or `fan_out`")),
    };
    let nonlinearity = match call.text_or(3, "leaky_relu")? {
        "linear" => Nonlinearity::Linear,
        "sigmoid" => Nonlinearity::Sigmoid,
        "tanh" => Nonlinearity::Tanh,
        "relu" => Nonlinearity::Relu,
        "leaky_relu" => Nonlinearity::LeakyRelu { negative_slope },
        "selu" => Nonlinearity::Selu,
        other => {
            let way_out = "take `linear`, `sigmoid`, `tanh`, `relu`, `leaky_relu` or `selu`";
            return Err(unknown(other, way_out));
        }
    };
    Ok((fan, nonlinearity))
}

fn masked_fill(call: &OpCall<'_>) -> Result<OpValue> {
    let value: Scalar = call.number(2)?;
    if !matches!(call.operand(1), OpValue::Sharded(_)) {
        call.plain(1)?;
    }
    // There is no form with a number for a mask: that was refused.
    binary(
        call,
        |a, mask| a.masked_fill(mask, value),
        |a, _| Ok(a.clone()),
        |a, mask| a.masked_fill(mask, value),
        |a, _| Ok(a.clone()),
    )
}
