//! Stored elements as numbers, and back.

use dtensor::{bf16, f16};

use crate::{
    StoredType,
    convert_type::{from_e4m3, from_e8m0, from_fnuz},
};

/// Elements that are worked on at a time: their numbers stay in the first cache.
pub(crate) const BLOCK: usize = 1024;

/// Whether the elements are floating-point numbers, complex ones aside.
pub(crate) fn is_float(stored: StoredType) -> bool {
    use StoredType::*;
    is_written(stored) || matches!(stored, F8E8M0 | F8E4M3Fnuz | F8E5M2Fnuz)
}

/// Whether floating-point numbers can be made into such elements.
pub(crate) fn is_written(stored: StoredType) -> bool {
    use StoredType::*;
    matches!(stored, F8E4M3 | F8E5M2 | F16 | Bf16 | F32 | F64)
}

/// Floating-point elements of one type as those of another, rounded to the nearest, as PyTorch's `to` rounds: by way of `f32`.
///
/// `into` has room for as many elements as `bytes` holds; both types are floating-point ones.
pub(crate) fn cast(from: StoredType, to: StoredType, bytes: &[u8], into: &mut [u8]) {
    let mut numbers = [0.0_f32; BLOCK];
    let blocks = bytes.chunks(BLOCK * from.size()).zip(into.chunks_mut(BLOCK * to.size()));
    for (bytes, into) in blocks {
        let numbers = &mut numbers[..bytes.len() / from.size()];
        decode(from, bytes, numbers);
        encode(to, numbers, into);
    }
}

/// Floating-point elements as `f64`, which holds every one of them exactly. A complex element is two numbers.
pub(crate) fn floats(from: StoredType, bytes: &[u8], into: &mut [f64]) {
    match from {
        StoredType::F64 | StoredType::C128 => each(bytes, into, f64::from_le_bytes),
        StoredType::C64 => each(bytes, into, |bytes| f32::from_le_bytes(bytes).into()),
        _ => {
            let mut numbers = [0.0_f32; BLOCK];
            for (bytes, into) in bytes.chunks(BLOCK * from.size()).zip(into.chunks_mut(BLOCK)) {
                decode(from, bytes, &mut numbers);
                into.iter_mut().zip(numbers).for_each(|(into, number)| *into = number.into());
            }
        }
    }
}

/// Whole numbers and truth values as `i128`, which holds every one of them.
pub(crate) fn integers(from: StoredType, bytes: &[u8], into: &mut [i128]) {
    match from {
        StoredType::I8 => each(bytes, into, |bytes| i8::from_le_bytes(bytes).into()),
        StoredType::U16 => each(bytes, into, |bytes| u16::from_le_bytes(bytes).into()),
        StoredType::I16 => each(bytes, into, |bytes| i16::from_le_bytes(bytes).into()),
        StoredType::U32 => each(bytes, into, |bytes| u32::from_le_bytes(bytes).into()),
        StoredType::I32 => each(bytes, into, |bytes| i32::from_le_bytes(bytes).into()),
        StoredType::U64 => each(bytes, into, |bytes| u64::from_le_bytes(bytes).into()),
        StoredType::I64 => each(bytes, into, |bytes| i64::from_le_bytes(bytes).into()),
        _ => each(bytes, into, |[byte]| byte.into()),
    }
}

fn decode(from: StoredType, bytes: &[u8], into: &mut [f32]) {
    match from {
        StoredType::F8E4M3 => each(bytes, into, |[byte]| from_e4m3(byte)),
        // Half precision with the lower byte cut off.
        StoredType::F8E5M2 => each(bytes, into, |[byte]| f16::from_le_bytes([0, byte]).to_f32()),
        StoredType::F8E8M0 => each(bytes, into, |[byte]| from_e8m0(byte)),
        StoredType::F8E4M3Fnuz => each(bytes, into, |[byte]| from_fnuz(byte, 3)),
        StoredType::F8E5M2Fnuz => each(bytes, into, |[byte]| from_fnuz(byte, 2)),
        StoredType::F16 => each(bytes, into, |bytes| f16::from_le_bytes(bytes).to_f32()),
        StoredType::Bf16 => each(bytes, into, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        StoredType::F64 => each(bytes, into, |bytes| f64::from_le_bytes(bytes) as f32),
        _ => each(bytes, into, f32::from_le_bytes),
    }
}

fn encode(to: StoredType, numbers: &[f32], into: &mut [u8]) {
    match to {
        StoredType::F8E4M3 => put(numbers, into, |number| [small_float(number, &E4M3)]),
        StoredType::F8E5M2 => put(numbers, into, |number| [small_float(number, &E5M2)]),
        StoredType::F16 => put(numbers, into, |number| f16::from_f32(number).to_le_bytes()),
        StoredType::Bf16 => put(numbers, into, |number| bf16::from_f32(number).to_le_bytes()),
        StoredType::F64 => put(numbers, into, |number| f64::from(number).to_le_bytes()),
        _ => put(numbers, into, f32::to_le_bytes),
    }
}

fn each<T, const N: usize>(bytes: &[u8], into: &mut [T], read: impl Fn([u8; N]) -> T) {
    into.iter_mut().zip(bytes.as_chunks().0).for_each(|(into, bytes)| *into = read(*bytes));
}

fn put<const N: usize>(numbers: &[f32], into: &mut [u8], write: impl Fn(f32) -> [u8; N]) {
    into.as_chunks_mut()
        .0
        .iter_mut()
        .zip(numbers)
        .for_each(|(into, number)| *into = write(*number));
}

/// A float of eight bits.
struct SmallFloat {
    mantissa_bits: u32,
    /// Exponent of the smallest normal number.
    least_exponent: i32,
    /// The largest number.
    largest: u8,
    /// What is larger.
    overflow: u8,
    nan: u8,
}

const E4M3: SmallFloat =
    SmallFloat { mantissa_bits: 3, least_exponent: -6, largest: 0x7e, overflow: 0x7f, nan: 0x7f };
const E5M2: SmallFloat =
    SmallFloat { mantissa_bits: 2, least_exponent: -14, largest: 0x7b, overflow: 0x7c, nan: 0x7f };

fn small_float(number: f32, format: &SmallFloat) -> u8 {
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    if number.is_nan() {
        return sign | format.nan;
    }
    // As f64 no f32 is subnormal, so that the exponent stands in the bits, and scaling by powers of two is exact.
    let size = f64::from(number.abs());
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(format.least_exponent);
    let step = (f64::from(exponent) - f64::from(format.mantissa_bits)).exp2();
    let mantissa = (size / step).round_ties_even();
    let binade = f64::from((exponent - format.least_exponent) << format.mantissa_bits);
    // A mantissa that was rounded up to the next power of two carries into the exponent by this addition.
    let code = binade + mantissa;
    sign | if code > f64::from(format.largest) { format.overflow } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(from: StoredType, to: StoredType, bytes: &[u8]) -> Vec<u8> {
        let mut into = vec![0; bytes.len() / from.size() * to.size()];
        cast(from, to, bytes, &mut into);
        into
    }

    #[test]
    fn every_small_float_survives_the_way_through_f32() {
        for small in [StoredType::F8E4M3, StoredType::F8E5M2, StoredType::F16, StoredType::Bf16] {
            let all: Vec<u8> = match small.size() {
                1 => (0..=255).collect(),
                _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
            };
            let wide = one(small, StoredType::F32, &all);
            let back = one(StoredType::F32, small, &wide);
            for (code, (bytes, again)) in
                all.chunks(small.size()).zip(back.chunks(small.size())).enumerate()
            {
                let number = f32::from_le_bytes(wide[code * 4..][..4].try_into().unwrap());
                // Which of the many NaNs it is does not matter.
                assert!(bytes == again || number.is_nan(), "{small} {code:#x}: {number}");
            }
        }
    }

    #[test]
    fn numbers_round_to_the_nearest_and_ties_to_even() {
        let to = |stored, number: f32| one(StoredType::F32, stored, &number.to_le_bytes());
        for (number, want) in [
            (0.0, 0x00),
            (-0.0, 0x80),
            (1.0, 0x38),
            (1.0625, 0x38),
            (1.1875, 0x3a),
            (448.0, 0x7e),
            (463.9, 0x7e),
            (465.0, 0x7f),
            (f32::INFINITY, 0x7f),
            (0.001953125, 0x01),
            (0.0009765625, 0x00),
            (1.0e-30, 0x00),
        ] {
            assert_eq!(to(StoredType::F8E4M3, number), [want], "{number}");
        }
        for (number, want) in [(1.0, 0x3c), (57344.0, 0x7b), (61440.0, 0x7c), (-1e9, 0xfc)] {
            assert_eq!(to(StoredType::F8E5M2, number), [want], "{number}");
        }
        assert_eq!(to(StoredType::Bf16, 257.0 / 256.0), [0x80, 0x3f]);
        assert_eq!(to(StoredType::Bf16, f32::MAX), [0x80, 0x7f]);
    }

    #[test]
    fn integers_of_every_type_are_themselves() {
        let read = |stored, bytes: &[u8]| {
            let mut number = [0];
            integers(stored, bytes, &mut number);
            number[0]
        };
        assert_eq!(read(StoredType::U64, &u64::MAX.to_le_bytes()), u64::MAX.into());
        assert_eq!(read(StoredType::I64, &i64::MIN.to_le_bytes()), i64::MIN.into());
        assert_eq!(read(StoredType::I8, &[0xff]), -1);
        assert_eq!(read(StoredType::U8, &[0xff]), 255);
        assert_eq!(read(StoredType::Bool, &[1]), 1);
    }
}
