//! The dtype of a result.

use crate::{DType, Tensor};

/// A number that is no tensor: the second operand of [`Tensor::add_scalar`] and its like.
///
/// Its kind matters, its width does not: as in PyTorch, a float turns an integer tensor into `f32`,
/// an integer leaves every tensor but a `bool` one as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// True or false.
    Bool(bool),
}

impl Scalar {
    /// The nearest `f64`.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f64,
            Scalar::Bool(value) => f64::from(u8::from(value)),
        }
    }

    /// What it weighs in a promotion if no tensor is of its kind.
    fn dtype(self) -> DType {
        match self {
            Scalar::Float(_) => DType::F32,
            Scalar::Int(_) => DType::I64,
            Scalar::Bool(_) => DType::Bool,
        }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::Float(value)
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Scalar {
        Scalar::Float(f64::from(value))
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Scalar {
        Scalar::Int(value)
    }
}

impl From<i32> for Scalar {
    fn from(value: i32) -> Scalar {
        Scalar::Int(i64::from(value))
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Scalar {
        Scalar::Bool(value)
    }
}

/// The smallest dtype of PyTorch's lattice that two tensors with dims have in common:
///
/// |        | bool | u8   | i32  | i64  | f16  | bf16 | f32  | f64  |
/// |--------|------|------|------|------|------|------|------|------|
/// | bool   | bool | u8   | i32  | i64  | f16  | bf16 | f32  | f64  |
/// | u8     | u8   | u8   | i32  | i64  | f16  | bf16 | f32  | f64  |
/// | i32    | i32  | i32  | i32  | i64  | f16  | bf16 | f32  | f64  |
/// | i64    | i64  | i64  | i64  | i64  | f16  | bf16 | f32  | f64  |
/// | f16    | f16  | f16  | f16  | f16  | f16  | f32  | f32  | f64  |
/// | bf16   | bf16 | bf16 | bf16 | bf16 | f32  | bf16 | f32  | f64  |
/// | f32    | f32  | f32  | f32  | f32  | f32  | f32  | f32  | f64  |
/// | f64    | f64  | f64  | f64  | f64  | f64  | f64  | f64  | f64  |
///
/// A tensor without dims, and after it a [`Scalar`], counts only by its kind (bool, integer, float):
/// it changes the dtype if no operand that ranks before it has its kind or a higher one.
///
/// ```
/// use dtensor_local::{DType, Tensor, promote};
///
/// assert_eq!(promote(DType::Bf16, DType::F16), DType::F32);
/// let ints = Tensor::from_vec(vec![1_i32, 2], &[2])?;
/// assert_eq!(ints.add(&Tensor::scalar(1_i64))?.dtype(), DType::I32);
/// assert_eq!(ints.add_scalar(0.5)?.dtype(), DType::F32);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub const fn promote(a: DType, b: DType) -> DType {
    use DType::{Bf16, Bool, F16, F32, F64, I32, I64, U8};
    match (a, b) {
        (F64, _) | (_, F64) => F64,
        (F32, _) | (_, F32) | (Bf16, F16) | (F16, Bf16) => F32,
        (Bf16, _) | (_, Bf16) => Bf16,
        (F16, _) | (_, F16) => F16,
        (I64, _) | (_, I64) => I64,
        (I32, _) | (_, I32) => I32,
        (U8, _) | (_, U8) => U8,
        (Bool, Bool) => Bool,
    }
}

/// An operand of an elementwise operation.
#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    /// Broadcast to the shape of the result.
    Tensor(&'a Tensor),
    /// The same value everywhere.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Arg<'a> {
        Arg::Tensor(tensor)
    }
}

impl From<Scalar> for Arg<'_> {
    fn from(scalar: Scalar) -> Self {
        Arg::Scalar(scalar)
    }
}

/// The dtype in which the operands meet: [`promote`] and its rule for what has no dims.
pub(super) fn common_dtype(args: &[Arg]) -> DType {
    // Nearly always, and worth a few nanoseconds for small tensors.
    if let [Arg::Tensor(first), rest @ ..] = args
        && rest
            .iter()
            .all(|arg| matches!(arg, Arg::Tensor(other) if other.dtype() == first.dtype()))
    {
        return first.dtype();
    }
    let (mut with_dims, mut without_dims, mut scalars) = (None, None, None);
    for arg in args {
        let (rank, dtype) = match arg {
            Arg::Tensor(tensor) if tensor.n_dims() > 0 => (&mut with_dims, tensor.dtype()),
            Arg::Tensor(tensor) => (&mut without_dims, tensor.dtype()),
            Arg::Scalar(scalar) => (&mut scalars, scalar.dtype()),
        };
        *rank = Some(rank.map_or(dtype, |so_far| promote(so_far, dtype)));
    }
    [with_dims, without_dims, scalars].into_iter().flatten().reduce(defer).unwrap_or(DType::F32)
}

/// The dtype of an operand that ranks first, unless the other is of a higher kind.
fn defer(first: DType, second: DType) -> DType {
    if kind(second) > kind(first) { promote(first, second) } else { first }
}

fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::U8 | DType::I32 | DType::I64 => 1,
        _ => 2,
    }
}
