//! What a checkpoint holds beside tensors.

/// A value that is no tensor. Lists and dicts are flattened: their elements are values with dotted names.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Python's `None`.
    Nothing,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number; infinities and NaN included.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list without elements, which has no dotted names.
    EmptyList,
    /// A dict without elements.
    EmptyDict,
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value.into())
            }
        })*
    };
}

from!(bool => Bool, i64 => Int, i32 => Int, u32 => Int, f64 => Float, f32 => Float, &str => Text, String => Text, Vec<u8> => Bytes);
