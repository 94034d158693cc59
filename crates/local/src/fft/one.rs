//! Transforms over one dim.

use super::{
    Direction, Norm,
    lines::{Kind, Lines},
};
use crate::{
    LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

/// The Fourier transform of a complex tensor over a dim: value `k` of the result is the sum of
/// `x[j] exp(-2πi jk / n)`.
///
/// The dim is cropped to `n` values, or filled up with zeros, if `n` is given. Dims are counted without
/// the last, which holds real and imaginary part (see the [module](super)).
pub fn fft(x: &Tensor, n: Option<usize>, dim: isize, norm: Norm) -> Result<Tensor> {
    complex("fft", x, n, dim, norm, Direction::Forward).map(|y| y.contiguous())
}

/// The inverse of [`fft`]: the sign of the exponent is the other one.
pub fn ifft(x: &Tensor, n: Option<usize>, dim: isize, norm: Norm) -> Result<Tensor> {
    complex("ifft", x, n, dim, norm, Direction::Inverse).map(|y| y.contiguous())
}

/// The Fourier transform of a real tensor over a dim, cropped or filled up to `n` values if given. The
/// result is complex and has the first `n / 2 + 1` values; the others are their mirror.
pub fn rfft(x: &Tensor, n: Option<usize>, dim: isize, norm: Norm) -> Result<Tensor> {
    real_to_complex("rfft", x, n, dim, norm).map(|y| y.contiguous())
}

/// The inverse of [`rfft`]: the real values of which a complex tensor has half of the spectrum.
///
/// `n` is the number of real values; by default it is even, twice one less than there are. Half of a
/// spectrum of an odd number of values must be told so.
pub fn irfft(x: &Tensor, n: Option<usize>, dim: isize, norm: Norm) -> Result<Tensor> {
    complex_to_real("irfft", x, n, dim, norm).map(|y| y.contiguous())
}

/// As [`fft`] or [`ifft`]; the result may be strided.
pub(super) fn complex(
    op: &'static str,
    x: &Tensor,
    n: Option<usize>,
    dim: isize,
    norm: Norm,
    direction: Direction,
) -> Result<Tensor> {
    let shape = complex_shape(op, x)?;
    let dim = normal_dim(op, dim, shape)?;
    let length = checked_length(op, n.unwrap_or(shape[dim]))?;
    let factor = norm.factor(direction, length);
    let lines = Lines { op, kind: Kind::Complex(direction), length, factor };
    // The dim of the lines is the last but for that of the parts.
    let last = shape.len() - 1;
    let moved = x.transpose(dim as isize, last as isize)?;
    let mut result = Dims::from(moved.shape());
    result[last] = length;
    lines.transform(&moved, &result)?.transpose(dim as isize, last as isize)
}

/// As [`rfft`]; the result may be strided.
pub(super) fn real_to_complex(
    op: &'static str,
    x: &Tensor,
    n: Option<usize>,
    dim: isize,
    norm: Norm,
) -> Result<Tensor> {
    let dim = normal_dim(op, dim, x.shape())?;
    let length = checked_length(op, n.unwrap_or(x.shape()[dim]))?;
    let factor = norm.factor(Direction::Forward, length);
    let lines = Lines { op, kind: Kind::RealToComplex, length, factor };
    let last = x.n_dims() - 1;
    let moved = x.transpose(dim as isize, last as isize)?;
    let mut result = Dims::from(moved.shape());
    result[last] = length / 2 + 1;
    result.push(2);
    lines.transform(&moved, &result)?.transpose(dim as isize, last as isize)
}

/// As [`irfft`]; the result may be strided.
pub(super) fn complex_to_real(
    op: &'static str,
    x: &Tensor,
    n: Option<usize>,
    dim: isize,
    norm: Norm,
) -> Result<Tensor> {
    let shape = complex_shape(op, x)?;
    let dim = normal_dim(op, dim, shape)?;
    let length = checked_length(op, n.unwrap_or(shape[dim].saturating_sub(1) * 2))?;
    let factor = norm.factor(Direction::Inverse, length);
    let lines = Lines { op, kind: Kind::ComplexToReal, length, factor };
    let last = shape.len() - 1;
    let moved = x.transpose(dim as isize, last as isize)?;
    let mut result = Dims::from(moved.shape());
    result.pop();
    result[last] = length;
    lines.transform(&moved, &result)?.transpose(dim as isize, last as isize)
}

/// The dims but for that of real and imaginary part.
pub(super) fn complex_shape<'a>(op: &'static str, x: &'a Tensor) -> Result<&'a [usize]> {
    match x.shape() {
        [shape @ .., 2] => Ok(shape),
        shape => Err(LocalError::BadShape {
            op,
            shape: shape.to_vec(),
            why: "a complex tensor has a last dim of 2, for real and imaginary part",
        }),
    }
}

fn checked_length(op: &'static str, n: usize) -> Result<usize> {
    if n > 0 {
        return Ok(n);
    }
    let want = "at least one value to transform";
    Err(LocalError::BadNumber { op, name: "n", got: n.to_string(), want })
}
