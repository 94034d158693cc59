use super::matrix::Matrix;
use crate::Element;

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// The factor of the product.
    pub(crate) product: f64,
    /// The factor of what the result held before; `None` where that does not matter, not even if it
    /// is NaN.
    pub(crate) kept: Option<f64>,
}

impl Scale {
    /// The product itself.
    pub(crate) const PLAIN: Scale = Scale { product: 1.0, kept: None };
}

/// An element type whose matrices can be multiplied.
pub(crate) trait Number: Element {
    /// Sets `out`, the consecutive rows of the result, to `scale.product * a b + scale.kept * out`.
    ///
    /// `out` has as many elements as rows of `a` times columns of `b`, and `a` as many columns as `b`
    /// has rows. `parallel` says whether threads may help; the result does not depend on it.
    fn multiply(
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        out: &mut [Self],
        scale: Scale,
        parallel: bool,
    );
}
