//! Transforms over several dims: one after the other.

use super::{
    Direction, Norm,
    one::{complex, complex_shape, complex_to_real, real_to_complex},
};
use crate::{LocalError, Result, Tensor, dims::normal_dim};

/// [`fft`](super::fft) over several dims of a complex tensor.
///
/// By default all dims; if `sizes` are given, the last of them. Sizes crop dims or fill them up with
/// zeros; without them each dim is as long as it is.
///
/// ```
/// use dtensor_local::{Tensor, fft::{self, Norm}};
///
/// // A point at the origin has all frequencies.
/// let point = Tensor::from_vec(vec![1.0_f32, 0.0], &[1, 1, 2])?;
/// let spectrum = fft::fftn(&point, Some(&[2, 3]), None, Norm::Backward)?;
/// assert_eq!(spectrum.shape(), [2, 3, 2]);
/// assert_eq!(spectrum.select(-1, 0)?.to_vec::<f32>()?, [1.0; 6]);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn fftn(
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    all_complex("fftn", x, sizes, dims, norm, Direction::Forward)
}

/// The inverse of [`fftn`].
pub fn ifftn(
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    all_complex("ifftn", x, sizes, dims, norm, Direction::Inverse)
}

/// As [`fftn`], of a real tensor: half of the spectrum in the last of the dims.
pub fn rfftn(
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    real("rfftn", x, sizes, dims, norm)
}

/// The inverse of [`rfftn`]. The size of the last of the dims is that of the real values; by default it
/// is even, as for [`irfft`](super::irfft).
pub fn irfftn(
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    inverse_real("irfftn", x, sizes, dims, norm)
}

/// [`fftn`] over two dims, mostly `[-2, -1]`.
pub fn fft2(x: &Tensor, sizes: Option<[usize; 2]>, dims: [isize; 2], norm: Norm) -> Result<Tensor> {
    let sizes = sizes.as_ref().map(<[usize; 2]>::as_slice);
    all_complex("fft2", x, sizes, Some(&dims), norm, Direction::Forward)
}

/// [`ifftn`] over two dims, mostly `[-2, -1]`.
pub fn ifft2(
    x: &Tensor,
    sizes: Option<[usize; 2]>,
    dims: [isize; 2],
    norm: Norm,
) -> Result<Tensor> {
    let sizes = sizes.as_ref().map(<[usize; 2]>::as_slice);
    all_complex("ifft2", x, sizes, Some(&dims), norm, Direction::Inverse)
}

/// [`rfftn`] over two dims, mostly `[-2, -1]`.
pub fn rfft2(
    x: &Tensor,
    sizes: Option<[usize; 2]>,
    dims: [isize; 2],
    norm: Norm,
) -> Result<Tensor> {
    real("rfft2", x, sizes.as_ref().map(<[usize; 2]>::as_slice), Some(&dims), norm)
}

/// [`irfftn`] over two dims, mostly `[-2, -1]`.
pub fn irfft2(
    x: &Tensor,
    sizes: Option<[usize; 2]>,
    dims: [isize; 2],
    norm: Norm,
) -> Result<Tensor> {
    inverse_real("irfft2", x, sizes.as_ref().map(<[usize; 2]>::as_slice), Some(&dims), norm)
}

fn all_complex(
    op: &'static str,
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
    direction: Direction,
) -> Result<Tensor> {
    let steps = steps(op, complex_shape(op, x)?, sizes, dims)?;
    each_complex(op, x.clone(), &steps, norm, direction).map(|y| y.contiguous())
}

fn real(
    op: &'static str,
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    let steps = steps(op, x.shape(), sizes, dims)?;
    let Some((last, others)) = steps.split_last() else { return Err(no_dims(op, x)) };
    let half = real_to_complex(op, x, last.size, last.dim, norm)?;
    each_complex(op, half, others, norm, Direction::Forward).map(|y| y.contiguous())
}

fn inverse_real(
    op: &'static str,
    x: &Tensor,
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
    norm: Norm,
) -> Result<Tensor> {
    let steps = steps(op, complex_shape(op, x)?, sizes, dims)?;
    let Some((last, others)) = steps.split_last() else { return Err(no_dims(op, x)) };
    let half = each_complex(op, x.clone(), others, norm, Direction::Inverse)?;
    complex_to_real(op, &half, last.size, last.dim, norm).map(|y| y.contiguous())
}

fn each_complex(
    op: &'static str,
    x: Tensor,
    steps: &[Step],
    norm: Norm,
    direction: Direction,
) -> Result<Tensor> {
    // The last dim first: no dim has to be moved for it.
    steps.iter().rev().try_fold(x, |x, step| complex(op, &x, step.size, step.dim, norm, direction))
}

/// One dim to transform over.
struct Step {
    dim: isize,
    size: Option<usize>,
}

/// The dims and sizes that a caller means.
fn steps(
    op: &'static str,
    shape: &[usize],
    sizes: Option<&[usize]>,
    dims: Option<&[isize]>,
) -> Result<Vec<Step>> {
    let mismatch = |why| LocalError::ShapeMismatch {
        op,
        from: shape.to_vec(),
        to: sizes.unwrap_or_default().to_vec(),
        why,
    };
    let n_dims = match (dims, sizes) {
        (Some(dims), Some(sizes)) if dims.len() != sizes.len() => {
            return Err(mismatch("give a size for every dim, or none"));
        }
        (Some(dims), _) => dims.len(),
        (None, Some(sizes)) if sizes.len() > shape.len() => {
            return Err(mismatch("there are more sizes than dims"));
        }
        (None, Some(sizes)) => sizes.len(),
        (None, None) => shape.len(),
    };
    let mut steps: Vec<Step> = Vec::with_capacity(n_dims);
    for index in 0..n_dims {
        let given = dims.map_or((shape.len() - n_dims + index) as isize, |dims| dims[index]);
        let dim = normal_dim(op, given, shape)? as isize;
        if steps.iter().any(|step| step.dim == dim) {
            let dims = dims.unwrap_or_default().to_vec();
            return Err(LocalError::RepeatedDim { op, dim: given, dims });
        }
        steps.push(Step { dim, size: sizes.map(|sizes| sizes[index]) });
    }
    Ok(steps)
}

fn no_dims(op: &'static str, x: &Tensor) -> LocalError {
    let why = "half of a spectrum needs at least one dim";
    LocalError::BadShape { op, shape: x.shape().to_vec(), why }
}
