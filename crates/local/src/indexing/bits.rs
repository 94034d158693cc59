//! Elements as bits. What only moves values needs their size and not their dtype, so it is compiled for
//! four types instead of eight.

use crate::{DType, Result, Scalar, Tensor, by_dtype::by_dtype, threads::for_pieces_of};

/// Elements that are worth a hand-over to another thread.
pub(crate) const GRAIN: usize = 1 << 15;

/// An unsigned integer as large as an element.
pub(crate) trait Bits: bytemuck::Pod + Send + Sync {}
impl Bits for u8 {}
impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

/// Evaluates an expression with a type name standing for the [`Bits`] of a dtype.
macro_rules! by_size {
    ($dtype:expr, $name:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $name = u8;
                $body
            }
            2 => {
                type $name = u16;
                $body
            }
            4 => {
                type $name = u32;
                $body
            }
            _ => {
                type $name = u64;
                $body
            }
        }
    };
}
pub(crate) use by_size;

/// The elements of a tensor whose elements are consecutive. `U` has the size of its dtype.
pub(crate) fn bits<U: Bits>(tensor: &Tensor) -> Result<&[U]> {
    bytes(tensor).map(bytemuck::cast_slice)
}

/// The elements of a tensor, to be changed in place as by [`Tensor::as_mut_slice`].
///
/// # Safety
/// `U` has the size of the dtype, and what is written are bits of values of the dtype.
pub(crate) unsafe fn bits_mut<U: Bits>(tensor: &mut Tensor) -> Result<&mut [U]> {
    let (start, n) = by_dtype!(tensor.dtype(), T => {
        let values = tensor.as_mut_slice::<T>()?;
        (values.as_mut_ptr().cast::<u8>(), values.len())
    });
    // SAFETY: These are the values, borrowed as long as the result lives; every value has bits, and the
    // caller writes only bits that are values.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast::<U>(), n) })
}

/// A new tensor whose elements `fill` writes, all of them, as [`Tensor::write`].
///
/// # Safety
/// `U` has the size of the dtype, and what is written are bits of values of the dtype.
pub(crate) unsafe fn write_bits<U: Bits>(
    op: &'static str,
    shape: &[usize],
    dtype: DType,
    fill: impl FnOnce(&mut [U]),
) -> Result<Tensor> {
    let mut fill = Some(fill);
    Tensor::write_raw(op, shape, dtype, &mut |start, n| {
        // SAFETY: The `n` values of the new tensor; for the rest the caller answers.
        let values = unsafe { std::slice::from_raw_parts_mut(start.cast::<U>(), n) };
        if let Some(fill) = fill.take() {
            fill(values);
        }
    })
}

/// The number as a tensor without dims, cast as by [`Tensor::to_dtype`].
pub(crate) fn scalar_of(value: Scalar, dtype: DType) -> Result<Tensor> {
    match value {
        Scalar::Float(value) => Tensor::scalar(value),
        Scalar::Int(value) => Tensor::scalar(value),
        Scalar::Bool(value) => Tensor::scalar(value),
    }
    .to_dtype(dtype)
}

/// A tensor with the one value of another everywhere.
pub(crate) fn filled(op: &'static str, shape: &[usize], value: &Tensor) -> Result<Tensor> {
    by_size!(value.dtype(), U => {
        let one = bits::<U>(value)?[0];
        // SAFETY: The size fits, and the bits are those of a value of this dtype.
        unsafe {
            write_bits(op, shape, value.dtype(), |out: &mut [U]| {
                for_pieces_of(out, 1, GRAIN, |_, part| part.fill(one));
            })
        }
    })
}

fn bytes(tensor: &Tensor) -> Result<&[u8]> {
    Ok(by_dtype!(tensor.dtype(), T => bytemuck::cast_slice(tensor.as_slice::<T>()?)))
}
