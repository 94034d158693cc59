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
