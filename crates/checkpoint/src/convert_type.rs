//! Stored elements as those of a tensor's type.

use std::borrow::Cow;

use dtensor::{DType, Tensor};

use crate::{Error, Result, StoredType};

/// Whether elements of this stored type can become those of a tensor; `name` is for the error.
pub(crate) fn check_convertible(name: &str, stored: StoredType) -> Result<()> {
    match stored {
        StoredType::C64 | StoredType::C128 => Err(Error::Unsupported {
            what: format!("dtype {stored}"),
            place: name.to_owned(),
            way_out: "tensors have no complex elements: leave it out of the state",
        }),
        _ => Ok(()),
    }
}

/// Whether the bytes of the one type are those of the other. Those of `bool` are not: a file may hold others than 0 and 1.
pub(crate) fn is_same(stored: StoredType, dtype: DType) -> bool {
    stored.dtype() == Some(dtype) && dtype != DType::Bool
}

/// Puts elements of a stored type into memory of a tensor's type, converted as [`Tensor::to_dtype`] does. A type that no
/// tensor has is first made one that holds all of its values.
pub(crate) fn convert(
    stored: StoredType,
    bytes: &[u8],
    dtype: DType,
    into: &mut [u8],
) -> Result<()> {
    check_convertible("", stored)?;
    let (held, bytes) = widened(stored, bytes, dtype);
    let n = bytes.len() / held.size();
    let values = Tensor::from_bytes_with(&[n], held, |into| {
        into.copy_from_slice(&bytes);
        Ok::<(), Error>(())
    })?;
    let converted = values.to_dtype(dtype)?;
    into.copy_from_slice(converted.as_bytes()?);
    Ok(())
}

/// The same values in a type that tensors have.
fn widened(stored: StoredType, bytes: &[u8], wanted: DType) -> (DType, Cow<'_, [u8]>) {
    use StoredType::{F8E4M3, F8E4M3Fnuz, F8E5M2, F8E5M2Fnuz, F8E8M0, I8, I16, U16, U32, U64};
    let (dtype, made) = match stored {
        I8 => (DType::I32, each(bytes, |[byte]| i32::from(byte as i8).to_le_bytes())),
        I16 => {
            (DType::I32, each(bytes, |bytes| i32::from(i16::from_le_bytes(bytes)).to_le_bytes()))
        }
        U16 => {
            (DType::I32, each(bytes, |bytes| i32::from(u16::from_le_bytes(bytes)).to_le_bytes()))
        }
        U32 => {
            (DType::I64, each(bytes, |bytes| i64::from(u32::from_le_bytes(bytes)).to_le_bytes()))
        }
        // The low bits are those of an i64, which is what integers keep; floats have the value.
        U64 if wanted.is_float() => {
            (DType::F64, each(bytes, |bytes| (u64::from_le_bytes(bytes) as f64).to_le_bytes()))
        }
        // Half precision with the lower byte cut off.
        F8E5M2 => (DType::F16, each(bytes, |[byte]| [0, byte])),
        F8E4M3 => (DType::F32, each(bytes, |[byte]| from_e4m3(byte).to_le_bytes())),
        F8E8M0 => (DType::F32, each(bytes, |[byte]| from_e8m0(byte).to_le_bytes())),
        F8E4M3Fnuz => (DType::F32, each(bytes, |[byte]| from_fnuz(byte, 3).to_le_bytes())),
        F8E5M2Fnuz => (DType::F32, each(bytes, |[byte]| from_fnuz(byte, 2).to_le_bytes())),
        _ => return (stored.dtype().unwrap_or(DType::I64), Cow::Borrowed(bytes)),
    };
    (dtype, Cow::Owned(made))
}

fn each<const N: usize, const M: usize>(
    bytes: &[u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) -> Vec<u8> {
    bytes.as_chunks::<N>().0.iter().flat_map(|bytes| convert(*bytes)).collect()
}

/// A float of four bits of exponent and three of fraction, which has no infinities.
pub(crate) fn from_e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * (-9.0_f32).exp2(),
        _ => (8.0 + fraction) * ((exponent - 10) as f32).exp2(),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// A power of two from -127 on; the largest code is NaN.
pub(crate) fn from_e8m0(byte: u8) -> f32 {
    match byte {
        0xff => f32::NAN,
        _ => (f32::from(byte) - 127.0).exp2(),
    }
}

/// A float of eight bits with so many of fraction, without infinities and without a negative zero, whose code is NaN. Exponents are
/// one less than those of the types with both.
pub(crate) fn from_fnuz(byte: u8, fraction_bits: u32) -> f32 {
    if byte == 0x80 {
        return f32::NAN;
    }
    let (one, bias) = (1_u8 << fraction_bits, 1_i32 << (6 - fraction_bits));
    let (exponent, fraction) = (i32::from((byte & 0x7f) >> fraction_bits), byte & (one - 1));
    let fraction = f32::from(if exponent == 0 { fraction } else { one + fraction });
    let size = fraction * ((exponent.max(1) - bias - fraction_bits as i32) as f32).exp2();
    if byte & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted<T: dtensor::Element + Copy>(stored: StoredType, bytes: &[u8]) -> Vec<T> {
        let mut values = Tensor::zeros(&[bytes.len() / stored.size()], T::DTYPE).unwrap();
        let mut into = vec![0; values.numel() * T::DTYPE.size()];
        convert(stored, bytes, T::DTYPE, &mut into).unwrap();
        values = Tensor::from_bytes_with(values.shape(), T::DTYPE, |bytes| {
            bytes.copy_from_slice(&into);
            Ok::<(), Error>(())
        })
        .unwrap();
        values.to_vec::<T>().unwrap()
    }

    #[test]
    fn types_that_no_tensor_has_keep_their_values() {
        assert_eq!(converted::<f32>(StoredType::I8, &[0, 1, 0x80, 0xff]), [0.0, 1.0, -128.0, -1.0]);
        assert_eq!(converted::<i64>(StoredType::U16, &[0xff, 0xff]), [65535]);
        assert_eq!(converted::<f64>(StoredType::I16, &[0xff, 0xff]), [-1.0]);
        assert_eq!(
            converted::<i64>(StoredType::U32, &u32::MAX.to_le_bytes()),
            [i64::from(u32::MAX)]
        );
        assert_eq!(converted::<f32>(StoredType::U64, &u64::MAX.to_le_bytes()), [u64::MAX as f32]);
        assert_eq!(converted::<i64>(StoredType::U64, &7_u64.to_le_bytes()), [7]);
        let small = [0x00, 0x38, 0xc0, 0x7e, 0x01];
        assert_eq!(
            converted::<f32>(StoredType::F8E4M3, &small),
            [0.0, 1.0, -2.0, 448.0, 0.001953125]
        );
        assert!(converted::<f32>(StoredType::F8E4M3, &[0x7f])[0].is_nan());
        assert_eq!(
            converted::<f32>(StoredType::F8E8M0, &[0, 127, 128, 254]),
            [(-127.0_f32).exp2(), 1.0, 2.0, 127.0_f32.exp2()]
        );
        assert!(converted::<f32>(StoredType::F8E8M0, &[0xff])[0].is_nan());
        assert_eq!(
            converted::<f32>(StoredType::F8E4M3Fnuz, &[0, 0x40, 0xc8, 0x7f, 0x01, 0x08]),
            [0.0, 1.0, -2.0, 240.0, (-10.0_f32).exp2(), (-7.0_f32).exp2()]
        );
        assert_eq!(
            converted::<f32>(StoredType::F8E5M2Fnuz, &[0, 0x40, 0xc4, 0x7f, 0x01, 0x04]),
            [0.0, 1.0, -2.0, 57344.0, (-17.0_f32).exp2(), (-15.0_f32).exp2()]
        );
        for stored in [StoredType::F8E4M3Fnuz, StoredType::F8E5M2Fnuz] {
            assert!(converted::<f32>(stored, &[0x80])[0].is_nan());
        }
        let wide = [0x3c, 0xc0, 0x7b, 0x7c];
        assert_eq!(
            converted::<f32>(StoredType::F8E5M2, &wide),
            [1.0, -2.0, 57344.0, f32::INFINITY]
        );
    }

    #[test]
    fn any_byte_of_a_stored_bool_but_zero_is_true() {
        assert_eq!(converted::<bool>(StoredType::Bool, &[0, 1, 2, 255]), [false, true, true, true]);
        assert_eq!(converted::<u8>(StoredType::Bool, &[0, 1, 7]), [0, 1, 1]);
    }

    #[test]
    fn complex_elements_are_refused() {
        let error = convert(StoredType::C64, &[0; 8], DType::F32, &mut [0; 4]).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}
