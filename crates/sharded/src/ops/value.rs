//! What operations take and give.

use dtensor::{DTensor, Scalar};
use dtensor_dtype::DType;
use dtensor_local::Tensor;

use crate::{Device, Error, Result, ShardedTensor, TensorLayout};

/// An operand or a result of an operation that is [called](super::call) by name. From a reference to a sharded
/// tensor it is that tensor, to which gradients find back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OpValue {
    /// A sharded tensor.
    Sharded(ShardedTensor),
    /// A distributed tensor.
    Distributed(DTensor),
    /// A plain tensor: the same on every rank, or the part of this rank, as the operation says.
    Plain(Tensor),
    /// A number, or true or false.
    Number(Scalar),
    /// Sizes, or dims.
    Integers(Vec<isize>),
    /// An element type.
    DType(DType),
    /// A device.
    Device(Device),
    /// Whether all elements are stored.
    Layout(TensorLayout),
    /// A name, as of a way of doing something.
    Text(String),
    /// A stored form.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<OpValue>),
    /// An operand that is left out.
    Nothing,
}

impl OpValue {
    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            OpValue::Sharded(_) => "a sharded tensor",
            OpValue::Distributed(_) => "a distributed tensor",
            OpValue::Plain(_) => "a plain tensor",
            OpValue::Number(_) => "a number",
            OpValue::Integers(_) => "a list of integers",
            OpValue::DType(_) => "a dtype",
            OpValue::Device(_) => "a device",
            OpValue::Layout(_) => "a layout",
            OpValue::Text(_) => "a text",
            OpValue::Bytes(_) => "bytes",
            OpValue::List(_) => "a list",
            OpValue::Nothing => "nothing",
        }
    }

    /// The sharded tensor that an operation gave.
    pub fn into_sharded(self, op: &'static str) -> Result<ShardedTensor> {
        match self {
            OpValue::Sharded(tensor) => Ok(tensor),
            other => Err(other.is_not(op, "a sharded tensor")),
        }
    }

    /// The distributed tensor that an operation gave.
    pub fn into_distributed(self, op: &'static str) -> Result<DTensor> {
        match self {
            OpValue::Distributed(tensor) => Ok(tensor),
            other => Err(other.is_not(op, "a distributed tensor")),
        }
    }

    /// The plain tensor that an operation gave.
    pub fn into_plain(self, op: &'static str) -> Result<Tensor> {
        match self {
            OpValue::Plain(tensor) => Ok(tensor),
            other => Err(other.is_not(op, "a plain tensor")),
        }
    }

    /// The list that an operation gave.
    pub fn into_list(self, op: &'static str) -> Result<Vec<OpValue>> {
        match self {
            OpValue::List(list) => Ok(list),
            other => Err(other.is_not(op, "a list")),
        }
    }

    fn is_not(&self, op: &'static str, want: &'static str) -> Error {
        Error::Unsupported {
            op: op.into(),
            what: format!("what is registered for it gave {}", self.kind()).into(),
            way_out: format!("give {want}").into(),
        }
    }
}

macro_rules! from {
    ($($variant:ident $type:ty,)*) => {$(
        impl From<$type> for OpValue {
            fn from(value: $type) -> OpValue {
                OpValue::$variant(value)
            }
        }
    )*};
}

from! {
    Sharded ShardedTensor,
    Distributed DTensor,
    Plain Tensor,
    Number Scalar,
    Integers Vec<isize>,
    DType DType,
    Device Device,
    List Vec<OpValue>,
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl From<$type> for OpValue {
            fn from(number: $type) -> OpValue {
                OpValue::Number(number.into())
            }
        }
    )*};
}

numbers! { f64 i64 bool }

impl From<&str> for OpValue {
    fn from(text: &str) -> OpValue {
        OpValue::Text(text.into())
    }
}

impl From<&ShardedTensor> for OpValue {
    fn from(tensor: &ShardedTensor) -> OpValue {
        OpValue::Sharded(tensor.handle())
    }
}

impl From<&DTensor> for OpValue {
    fn from(tensor: &DTensor) -> OpValue {
        OpValue::Distributed(tensor.clone())
    }
}

impl From<&Tensor> for OpValue {
    fn from(tensor: &Tensor) -> OpValue {
        OpValue::Plain(tensor.clone())
    }
}

impl<T: Into<OpValue>> From<Option<T>> for OpValue {
    fn from(value: Option<T>) -> OpValue {
        value.map_or(OpValue::Nothing, Into::into)
    }
}
