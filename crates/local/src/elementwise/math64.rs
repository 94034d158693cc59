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
