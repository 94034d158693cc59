//! Frequencies, and their order.

use super::one::complex_shape;
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

/// What the last dim of a tensor holds, where the tensor cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elements {
    /// Values as any other dim.
    Real,
    /// Real and imaginary part: the dim is not counted.
    Complex,
}

/// Moves the frequency zero from the start of these dims (by default, of all) to the middle.
///
/// ```
/// use dtensor_local::{DType, Tensor, fft::{self, Elements}};
///
/// let frequencies = fft::fftfreq(4, 0.25, DType::F32)?;
/// assert_eq!(frequencies.to_vec::<f32>()?, [0.0, 1.0, -2.0, -1.0]);
/// let in_order = fft::fftshift(&frequencies, Elements::Real, None)?;
/// assert_eq!(in_order.to_vec::<f32>()?, [-2.0, -1.0, 0.0, 1.0]);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn fftshift(x: &Tensor, elements: Elements, dims: Option<&[isize]>) -> Result<Tensor> {
    shift("fftshift", x, elements, dims, |size| size / 2)
}

/// The inverse of [`fftshift`]; for odd sizes it is another one.
pub fn ifftshift(x: &Tensor, elements: Elements, dims: Option<&[isize]>) -> Result<Tensor> {
    shift("ifftshift", x, elements, dims, |size| size.div_ceil(2))
}

/// The frequencies of the values of [`fft`](super::fft) over `n` samples that are `spacing` apart: the
/// positive ones, then the negative ones.
pub fn fftfreq(n: usize, spacing: f64, dtype: DType) -> Result<Tensor> {
    let positive = n.div_ceil(2);
    frequencies("fftfreq", n, n, spacing, dtype, |index| {
        if index < positive { index as f64 } else { index as f64 - n as f64 }
    })
}

/// The frequencies of the values of [`rfft`](super::rfft) over `n` samples that are `spacing` apart.
pub fn rfftfreq(n: usize, spacing: f64, dtype: DType) -> Result<Tensor> {
    frequencies("rfftfreq", n, n / 2 + 1, spacing, dtype, |index| index as f64)
}

fn shift(
    op: &'static str,
    x: &Tensor,
    elements: Elements,
    dims: Option<&[isize]>,
    by: impl Fn(usize) -> usize,
) -> Result<Tensor> {
    let shape = match elements {
        Elements::Real => x.shape(),
        Elements::Complex => complex_shape(op, x)?,
    };
    let all = || (0..shape.len()).collect();
    let dims: Dims = dims.map_or_else(
        || Ok(all()),
        |dims| dims.iter().map(|dim| normal_dim(op, *dim, shape)).collect(),
    )?;
    dims.iter().try_fold(x.clone(), |x, dim| x.roll(by(shape[*dim]) as isize, *dim as isize))
}

fn frequencies(
    op: &'static str,
    n: usize,
    count: usize,
    spacing: f64,
    dtype: DType,
    of: impl Fn(usize) -> f64,
) -> Result<Tensor> {
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(LocalError::NotFullPrecision { op, got: dtype });
    }
    let step = 1.0 / (n as f64 * spacing);
    let values = Tensor::write(op, &[count], |out: &mut [f64]| {
        out.iter_mut().enumerate().for_each(|(index, out)| *out = of(index) * step);
    })?;
    values.to_dtype(dtype)
}
