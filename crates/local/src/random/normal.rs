//! Pairs of normal numbers by Box and Muller, and logarithms and tangents of uniform ones.
//!
//! In `f32` the functions are polynomials in operations that round the same on every processor, without
//! branches, so that the compiler can make vectors of them.

use std::f32::consts::{FRAC_PI_2, SQRT_2};

/// Two independent normal numbers out of 64 random bits.
#[inline(always)]
pub(super) fn normal_pair(first: u32, second: u32) -> [f32; 2] {
    /// 2^-24: a `f32` holds 24 bits.
    const UNIT: f32 = 1.0 / 16_777_216.0;
    // Never zero, or its logarithm would be infinite.
    let radius = (-2.0 * ln(((first >> 8) + 1) as f32 * UNIT)).sqrt();
    let [sin, cos] = sin_cos_of_turn((second >> 8) as f32 * UNIT);
    [radius * cos, radius * sin]
}

/// As [`normal_pair`], in `f64` and out of 128 bits.
pub(super) fn normal_pair_f64(first: u64, second: u64) -> [f64; 2] {
    const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
    let radius = (-2.0 * (((first >> 11) + 1) as f64 * UNIT).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * ((second >> 11) as f64 * UNIT)).sin_cos();
    [radius * cos, radius * sin]
}

/// The logarithm of a number evenly between 0 and 1, neither of which it is.
#[inline(always)]
pub(super) fn log_of_unit(bits: u32) -> f32 {
    // The middles of 2^23 equal parts: a `f32` holds them exactly.
    ln(((bits >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0))
}

/// As [`log_of_unit`], in `f64` and out of 64 bits.
pub(super) fn log_of_unit_f64(bits: u64) -> f64 {
    (((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)).ln()
}

/// The tangent of an angle evenly between minus and plus a quarter of a turn, neither of which it is.
#[inline(always)]
pub(super) fn tan_of_half_turn(bits: u32) -> f32 {
    // The middles of 2^23 equal parts of half a turn, from 0 on; the cotangent goes from one pole to the other.
    let [sin, cos] = sin_cos_of_turn(((bits >> 9) as f32 + 0.5) * (0.5 / 8_388_608.0));
    -cos / sin
}

/// As [`tan_of_half_turn`], in `f64` and out of 64 bits.
pub(super) fn tan_of_half_turn_f64(bits: u64) -> f64 {
    let unit = ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
    (std::f64::consts::PI * (unit - 0.5)).tan()
}

/// The logarithm of a normal positive number, to about 2 ulp (the polynomial of Cephes' `logf`).
#[inline(always)]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // x = m 2^e with m from 1 / sqrt(2) to sqrt(2).
    let above = (bits & 0x007f_ffff) | 0x3f80_0000;
    let exponent = (bits >> 23) as i32 - 127;
    let is_large = f32::from_bits(above) > SQRT_2;
    let exponent = exponent + i32::from(is_large);
    let m = if is_large { 0.5 * f32::from_bits(above) } else { f32::from_bits(above) };
    let (f, e) = (m - 1.0, exponent as f32);
    let mut p = 7.037_683_6e-2;
    for coefficient in [
        -1.151_461e-1,
        1.167_699_87e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * f + coefficient;
    }
    let square = f * f;
    // ln 2 in two parts; e times the second is exact.
    let small = p * f * square - 2.121_944_4e-4 * e - 0.5 * square;
    f + small + 0.693_359_4 * e
}

/// Sine and cosine of `turn` (from 0 to 1) times two pi.
#[inline(always)]
fn sin_cos_of_turn(turn: f32) -> [f32; 2] {
    // The nearest quarter of a turn, and what is left: at most an eighth. Both are exact.
    let quarters = (turn * 4.0 + 0.5).floor();
    let x = (turn * 4.0 - quarters) * FRAC_PI_2;
    let square = x * x;
    let sin =
        ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * x + x;
    let cos =
        ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2) * square * square
            - 0.5 * square
            + 1.0;
    let quarter = quarters as i32 & 3;
    let (a, b) = if quarter & 1 == 1 { (cos, -sin) } else { (sin, cos) };
    if quarter & 2 == 2 { [-a, -b] } else { [a, b] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_standard_library_in_f64() {
        for i in (1..=1u32 << 24).step_by(997).chain([1, 2, (1 << 24) - 1, 1 << 24]) {
            let x = i as f32 / (1 << 24) as f32;
            let want = f64::from(x).ln();
            let error = (f64::from(ln(x)) - want).abs();
            assert!(error <= 3e-7 * want.abs(), "ln {x}: {} for {want}", ln(x));
            let turn = f64::from(x) * std::f64::consts::TAU;
            let [sin, cos] = sin_cos_of_turn(x).map(f64::from);
            assert!(
                (sin - turn.sin()).abs() < 2e-7 && (cos - turn.cos()).abs() < 2e-7,
                "{x}: {sin} {cos}"
            );
        }
    }
}
