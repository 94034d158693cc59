//! How far numbers lie apart.

use crate::{
    StoredType,
    convert::numbers::{self, BLOCK},
};

/// How far apart two numbers may lie and still count as equal: as Python's `math.isclose`, the difference is at most
/// `absolute`, or at most `relative` times the larger of both. NaN is equal to NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// The most that a difference may be.
    pub absolute: f64,
    /// The most that it may be of the larger number.
    pub relative: f64,
}

/// How two tensors of one shape differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// Elements that differ by more than the tolerance. A complex element counts for each of its two parts.
    pub beyond: u64,
    /// Elements that are NaN in one of both only; they are also beyond any tolerance.
    pub nan_in_one: u64,
    /// The largest difference of two numbers; infinite where one of them is.
    pub max_absolute: f64,
    /// The largest difference divided by the larger of both numbers.
    pub max_relative: f64,
}

impl Difference {
    /// What both say together.
    pub(super) fn merge(&mut self, other: &Difference) {
        self.beyond += other.beyond;
        self.nan_in_one += other.nan_in_one;
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_relative = self.max_relative.max(other.max_relative);
    }

    /// For other processes.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let Difference { beyond, nan_in_one, max_absolute, max_relative } = self;
        let mut bytes = [0; 32];
        let numbers = [beyond, nan_in_one, max_absolute.to_bits(), max_relative.to_bits()];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; 32]) -> Difference {
        let number = |index: usize| {
            bytes.as_chunks().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Difference {
            beyond: number(0),
            nan_in_one: number(1),
            max_absolute: f64::from_bits(number(2)),
            max_relative: f64::from_bits(number(3)),
        }
    }

    fn add(&mut self, absolute: f64, larger: f64, tolerance: &Tolerance) {
        // Infinity minus a number, divided by infinity: as far apart as can be.
        let relative = if absolute.is_infinite() { 1.0 } else { absolute / larger };
        self.max_absolute = self.max_absolute.max(absolute);
        self.max_relative = self.max_relative.max(relative);
        // An infinite difference is within no tolerance, though infinity times anything is infinite.
        let within = absolute.is_finite()
            && (absolute <= tolerance.absolute || absolute <= tolerance.relative * larger);
        self.beyond += u64::from(!within);
    }
}

/// The difference of as many elements on both sides.
pub(super) fn compare(
    (a, a_type): (&[u8], StoredType),
    (b, b_type): (&[u8], StoredType),
    tolerance: &Tolerance,
) -> Difference {
    let mut difference = Difference::default();
    // By far the most common case, and as fast as memory.
    if a_type == b_type && a == b {
        return difference;
    }
    let blocks = a.chunks(BLOCK * a_type.size()).zip(b.chunks(BLOCK * b_type.size()));
    for (a, b) in blocks.filter(|(a, b)| a_type != b_type || a != b) {
        match is_integer(a_type) && is_integer(b_type) {
            true => integers((a, a_type), (b, b_type), tolerance, &mut difference),
            false => floats((a, a_type), (b, b_type), tolerance, &mut difference),
        }
    }
    difference
}

fn integers(
    (a, a_type): (&[u8], StoredType),
    (b, b_type): (&[u8], StoredType),
    tolerance: &Tolerance,
    difference: &mut Difference,
) {
    let (mut a_numbers, mut b_numbers) = ([0; BLOCK], [0; BLOCK]);
    let n = a.len() / a_type.size();
    numbers::integers(a_type, a, &mut a_numbers[..n]);
    numbers::integers(b_type, b, &mut b_numbers[..n]);
    for (a, b) in a_numbers[..n].iter().zip(&b_numbers[..n]).filter(|(a, b)| a != b) {
        difference.add((a - b).abs() as f64, a.abs().max(b.abs()) as f64, tolerance);
    }
}

fn floats(
    (a, a_type): (&[u8], StoredType),
    (b, b_type): (&[u8], StoredType),
    tolerance: &Tolerance,
    difference: &mut Difference,
) {
    // A complex number is two.
    let (mut a_numbers, mut b_numbers) = ([0.0; 2 * BLOCK], [0.0; 2 * BLOCK]);
    let a_numbers = as_floats(a_type, a, &mut a_numbers);
    let b_numbers = as_floats(b_type, b, &mut b_numbers);
    // Beside a complex number, a real one has no imaginary part.
    let steps = [a_numbers.len(), b_numbers.len()];
    let n = steps[0].max(steps[1]);
    let at = |numbers: &[f64], index: usize| match (numbers.len() == n, index % 2) {
        (true, _) => numbers[index],
        (false, 0) => numbers[index / 2],
        (false, _) => 0.0,
    };
    for index in 0..n {
        let (a, b) = (at(a_numbers, index), at(b_numbers, index));
        match (a.is_nan(), b.is_nan()) {
            (true, true) => {}
            (false, false) if a == b => {}
            (false, false) => difference.add((a - b).abs(), a.abs().max(b.abs()), tolerance),
            _ => {
                difference.nan_in_one += 1;
                difference.beyond += 1;
            }
        }
    }
}

fn as_floats<'n>(stored: StoredType, bytes: &[u8], numbers: &'n mut [f64]) -> &'n [f64] {
    let n = bytes.len() / stored.size() * if is_complex(stored) { 2 } else { 1 };
    let numbers = &mut numbers[..n];
    match is_integer(stored) {
        false => numbers::floats(stored, bytes, numbers),
        true => {
            let mut whole = [0; BLOCK];
            numbers::integers(stored, bytes, &mut whole[..n]);
            numbers.iter_mut().zip(whole).for_each(|(number, whole)| *number = whole as f64);
        }
    }
    numbers
}

fn is_complex(stored: StoredType) -> bool {
    matches!(stored, StoredType::C64 | StoredType::C128)
}

fn is_integer(stored: StoredType) -> bool {
    !is_complex(stored) && !numbers::is_float(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn of(a: &[f32], b: &[f32], tolerance: Tolerance) -> Difference {
        let f32 = StoredType::F32;
        compare((&f32s(a), f32), (&f32s(b), f32), &tolerance)
    }

    #[test]
    fn nan_is_equal_to_nan_and_to_nothing_else() {
        let nan = f32::NAN;
        let same = of(&[nan, 1.0], &[-nan, 1.0], Tolerance::default());
        assert_eq!(same, Difference::default());
        let loose = Tolerance { absolute: f64::INFINITY, relative: 1.0 };
        let other = of(&[nan, 1.0], &[1.0, 1.0], loose);
        assert_eq!((other.nan_in_one, other.beyond, other.max_absolute), (1, 1, 0.0));
    }

    #[test]
    fn infinities_are_equal_to_themselves_only() {
        let inf = f32::INFINITY;
        assert_eq!(of(&[inf, 0.0], &[inf, -0.0], Tolerance::default()), Difference::default());
        let loose = Tolerance { absolute: 1e300, relative: 1.0 };
        let other = of(&[inf, 1.0], &[-inf, 1.0], loose);
        assert_eq!((other.beyond, other.max_absolute, other.max_relative), (1, f64::INFINITY, 1.0));
    }

    #[test]
    fn a_difference_within_either_tolerance_is_none() {
        let (a, b) = ([100.0, 0.0], [101.0, 0.001]);
        let beyond = |absolute, relative| of(&a, &b, Tolerance { absolute, relative }).beyond;
        assert_eq!(beyond(0.0, 0.0), 2);
        assert_eq!(beyond(0.0, 0.01), 1);
        assert_eq!(beyond(0.0, 1.0), 0);
        assert_eq!(beyond(0.01, 0.01), 0);
    }

    #[test]
    fn large_integers_differ_by_what_they_differ() {
        let bytes = |number: i64| number.to_le_bytes();
        let (a, b) = (bytes(i64::MAX), bytes(i64::MAX - 1));
        let i64 = StoredType::I64;
        assert_eq!(compare((&a, i64), (&b, i64), &Tolerance::default()).max_absolute, 1.0);
        let far = compare((&bytes(i64::MIN), i64), (&bytes(i64::MAX), i64), &Tolerance::default());
        assert_eq!(far.max_absolute, 2.0_f64.powi(64));
    }

    #[test]
    fn numbers_of_different_types_are_compared_as_numbers() {
        let bytes = 2.0_f64.to_le_bytes();
        let two = (&bytes[..], StoredType::F64);
        let equal =
            |bytes: &[u8], stored| compare(two, (bytes, stored), &Tolerance::default()).beyond == 0;
        assert!(equal(&[2], StoredType::U8));
        assert!(equal(&[0x40], StoredType::F8E5M2));
        assert!(equal(&2_i64.to_le_bytes(), StoredType::I64));
        assert!(equal(&f32s(&[2.0, 0.0]), StoredType::C64));
        assert!(!equal(&f32s(&[2.0, 1.0]), StoredType::C64));
        assert!(!equal(&[3], StoredType::U8));
    }
}
