//! An exponential that vectorises.

use crate::simd::mul_add;

/// Below this the result, which is added to at least one, does not matter.
const LEAST: f32 = -87.0;

/// `exp(x)` for `x <= 0`, to about 1e-7 of the value; at `LEAST` and below `exp(LEAST)`, about 1.6e-38.
/// A NaN stays one.
///
/// With `k` the integer nearest to `x / ln 2`, `exp(x)` is `2^k exp(x - k ln 2)`: the power is put into
/// the exponent's bits, the rest is at most `ln 2 / 2` and a Taylor polynomial has it.
#[inline(always)]
pub(super) fn exp_of_nonpositive<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded to an integer, which stands in
    // its lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, of which the first times `k` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < LEAST { LEAST } else { x };
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let rest = mul_add::<FMA>(k, -LN_2_LOW, mul_add::<FMA>(k, -LN_2_HIGH, x));
    let mut y = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        y = mul_add::<FMA>(y, rest, coefficient);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    y * power
}

#[cfg(test)]
mod tests {
    use super::exp_of_nonpositive;

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            let got = f64::from(exp_of_nonpositive::<false>(x));
            assert!((got - want).abs() <= want * 2.4e-7, "exp({x}) = {want}, not {got}");
        }
        assert!(exp_of_nonpositive::<false>(f32::NEG_INFINITY) < 2e-38);
        assert!(exp_of_nonpositive::<false>(f32::NAN).is_nan());
    }
}
