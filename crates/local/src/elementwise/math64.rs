//! `f64` functions that the standard library has not.

// The C mathematics library is linked wherever the standard library is, whose own `f64::sin` and its
// like call it.
unsafe extern "C" {
    /// The error function.
    pub(crate) safe fn erf(x: f64) -> f64;
    /// One minus the error function, exact in its tail.
    pub(crate) safe fn erfc(x: f64) -> f64;
}

/// The logistic function.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `log(1 + exp(x))`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `x tanh(log(1 + exp(x)))`.
pub(crate) fn mish(x: f64) -> f64 {
    // With e = exp(x): tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2), which is 1 from 40 on.
    let e = x.exp();
    let n = e * (e + 2.0);
    if x > 40.0 { x } else { x * (n / (n + 2.0)) }
}

/// The logarithm of the sum of two exponentials.
pub(crate) fn log_add_exp(a: f64, b: f64) -> f64 {
    let (high, low) = if a.is_nan() || a > b { (a, b) } else { (b, a) };
    // Of two equal infinities the difference is none.
    if high == low { high + std::f64::consts::LN_2 } else { high + (low - high).exp().ln_1p() }
}

/// The derivative of `x Phi(x)`, where `Phi` is the normal distribution function.
pub(crate) fn gelu_slope(x: f64) -> f64 {
    const FRAC_1_SQRT_TAU: f64 = 0.398_942_280_401_432_7;
    // Beyond, the density is zero; infinity times zero would be none. A NaN passes.
    let x = x.clamp(-40.0, 40.0);
    let distribution = 0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    distribution + x * FRAC_1_SQRT_TAU * (-0.5 * x * x).exp()
}

/// The derivative of `x s(u)`, where `s` is the logistic function and `u = a x (1 + b x^2)`.
pub(crate) fn gelu_tanh_slope(x: f64) -> f64 {
    // Beyond, it is 0 or 1, and the factor may overflow.
    let x = x.clamp(-25.0, 25.0);
    let scaled = 1.595_769_121_605_730_7 * x;
    let factor = scaled * (1.0 + 3.0 * 0.044_715 * x * x);
    logistic_and_slope(scaled * (1.0 + 0.044_715 * x * x), factor)
}

/// The derivative of `x s(x)`, where `s` is the logistic function.
pub(crate) fn silu_slope(x: f64) -> f64 {
    // Beyond, it is 0 or 1; infinity times zero would be none.
    let x = x.clamp(-800.0, 800.0);
    logistic_and_slope(x, x)
}

/// `s(x) + factor s'(x)`, where `s` is the logistic function.
fn logistic_and_slope(x: f64, factor: f64) -> f64 {
    let e = (-x.abs()).exp();
    let quotient = 1.0 / (1.0 + e);
    let value = if x < 0.0 { e * quotient } else { quotient };
    value + factor * (e * quotient * quotient)
}
