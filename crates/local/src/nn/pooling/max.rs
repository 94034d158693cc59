//! The largest element of every window.

use super::spans::{Pooling, Sliding, Span, input_shape};
use crate::{
    DType, LocalError, Result, Tensor,
    disjoint::Disjoint,
    nn::real::{Real, by_real, check_dtype, check_float, check_shape, rounded, widened},
    threads,
};

/// Settings of [`Tensor::max_pool1d`], [`Tensor::max_pool2d`] and [`Tensor::max_pool3d`]: each one number for all spatial
/// dims, or one per dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool<'a> {
    /// Sizes of a window.
    pub kernel: &'a [usize],
    /// From one window to the next; the kernel if empty.
    pub stride: &'a [usize],
    /// On both sides, never the largest; at most half of the kernel.
    pub padding: &'a [usize],
    /// From one element of a window to the next.
    pub dilation: &'a [usize],
    /// Whether a last window may reach beyond the padding. It still begins within the input or the padding before it.
    pub ceil_mode: bool,
}

impl Default for MaxPool<'_> {
    fn default() -> Self {
        MaxPool { kernel: &[1], stride: &[], padding: &[0], dilation: &[1], ceil_mode: false }
    }
}

macro_rules! max_pools {
    ($($(#[$attribute:meta])* $pool:ident, $adaptive:ident, $n:literal, $spatial:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!(
                    "The largest element of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`, and its ",
                    "index within the flattened spatial dims (`i64`); a NaN is larger than all numbers. As ",
                    "`torch.nn.functional.", stringify!($pool), "` with `return_indices`, but that the index of a ",
                    "window without elements, which has the largest `-inf`, is -1. Its gradient: ",
                    "[`Tensor::max_pool_backward`].",
                )]
                $(#[$attribute])*
                pub fn $pool(&self, settings: &MaxPool) -> Result<(Tensor, Tensor)> {
                    let MaxPool { kernel, stride, padding, dilation, ceil_mode } = *settings;
                    let sliding = Sliding { kernel, stride, padding, dilation, ceil_mode };
                    let op = stringify!($pool);
                    max_pool(op, self, &Pooling::sliding(op, $n, self, &sliding)?)
                }

                #[doc = concat!(
                    "The largest elements of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the ",
                    "same size, such that the result has this spatial size (one number for all dims, or one per dim); ",
                    "and their indices. As `torch.nn.functional.", stringify!($adaptive), "` with `return_indices`. ",
                    "Its gradient: [`Tensor::max_pool_backward`].",
                )]
                pub fn $adaptive(&self, output_size: &[usize]) -> Result<(Tensor, Tensor)> {
                    let op = stringify!($adaptive);
                    max_pool(op, self, &Pooling::adaptive(op, $n, self, output_size)?)
                }
            )*
        }
    };
}

max_pools! {
    max_pool1d, adaptive_max_pool1d, 1, "L";
    /// ```
    /// use dtensor_local::{Tensor, nn::MaxPool};
    ///
    /// let x = Tensor::from_vec(vec![1.0_f32, 5.0, 2.0, 3.0, 4.0, 0.0], &[1, 2, 3])?;
    /// let (y, indices) = x.max_pool2d(&MaxPool { kernel: &[2], stride: &[1], ..MaxPool::default() })?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 5.0]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 1]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    max_pool2d, adaptive_max_pool2d, 2, "H, W";
    max_pool3d, adaptive_max_pool3d, 3, "D, H, W";
}

impl Tensor {
    /// The gradient of the max poolings, plain and adaptive, with respect to their input with these spatial sizes, where
    /// `self` is the gradient of the result and `indices` are what came with it: every element gets the sum of the
    /// gradients of the windows that it was the largest of.
    pub fn max_pool_backward(&self, indices: &Tensor, input_size: &[usize]) -> Result<Tensor> {
        let op = "max_pool_backward";
        check_float(op, self)?;
        check_shape(op, indices, self.shape(), "there is one index per element of the gradient")?;
        check_dtype(op, indices, DType::I64)?;
        let shape = input_shape(op, self, input_size)?;
        if self.is_meta() || indices.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }
        let (grad, indices) = (widened(op, self)?, indices.contiguous());
        let (indices, n_inputs) =
            (indices.as_slice::<i64>()?, input_size.iter().product::<usize>());
        let is_wrong = |index: &&i64| **index < -1 || **index >= n_inputs as i64;
        if let Some(index) = indices.iter().find(is_wrong) {
            let (index, dim) = (*index as isize, shape.len() - input_size.len());
            return Err(LocalError::IndexOutOfRange { op, index, dim, size: n_inputs });
        }
        let n_planes = self.shape()[..shape.len() - input_size.len()].iter().product::<usize>();
        let n_outputs = indices.len() / n_planes.max(1);
        let out = by_real!(grad, R => {
            let grads = grad.as_slice::<R>()?;
            Tensor::write(op, &shape, |out: &mut [R]| {
                let grain = 32 * 1024 / n_inputs.max(1);
                threads::for_pieces_of(out, n_inputs, grain, |planes, out| {
                    out.fill(R::ZERO);
                    for (plane, out) in planes.zip(out.chunks_exact_mut(n_inputs.max(1))) {
                        let range = plane * n_outputs..(plane + 1) * n_outputs;
                        for (index, grad) in indices[range.clone()].iter().zip(&grads[range]) {
                            // There is nothing to add to for a window without elements.
                            if let Ok(index) = usize::try_from(*index) {
                                out[index] += *grad;
                            }
                        }
                    }
                });
            })?
        });
        rounded(op, out, self.dtype())
    }
}

fn max_pool(op: &'static str, x: &Tensor, pooling: &Pooling) -> Result<(Tensor, Tensor)> {
    let shape = &pooling.shape;
    if x.is_meta() {
        return Ok((Tensor::meta(shape, x.dtype())?, Tensor::meta(shape, DType::I64)?));
    }
    let spans = pooling.spans();
    let wide = widened(op, x)?;
    let (n_in, n_out) = (spans.n_inputs(), spans.n_outputs());
    by_real!(wide, R => {
        let x_values = wide.as_slice::<R>()?;
        let mut indices = Tensor::zeros(shape, DType::I64)?;
        let of_indices = Disjoint::new(indices.as_mut_slice::<i64>()?);
        let out = Tensor::write(op, shape, |out: &mut [R]| {
            threads::for_pieces_of(out, n_out, spans.planes_per_piece(), |planes, out| {
                for (plane, out) in planes.zip(out.chunks_exact_mut(n_out.max(1))) {
                    // SAFETY: Every plane is in one piece.
                    let indices = unsafe { of_indices.part(plane * n_out..(plane + 1) * n_out) };
                    let x = &x_values[plane * n_in..][..n_in];
                    spans.each_output(|output, window| {
                        (out[output], indices[output]) = largest(x, spans.input, window);
                    });
                }
            });
        })?;
        Ok((rounded(op, out, x.dtype())?, indices))
    })
}

/// The largest element of a window and its index: the first of equals, but the last of NaNs, as in PyTorch.
#[inline(always)]
fn largest<R: Real>(x: &[R], input: [usize; 3], window: [&Span; 3]) -> (R, i64) {
    let [start_0, start_1, start_2] = window.map(|span| span.elements.start);
    if window.iter().any(|span| span.elements.is_empty()) {
        return (R::NEG_INFINITY, -1);
    }
    let (mut largest, mut at) =
        (R::NEG_INFINITY, (start_0 * input[1] + start_1) * input[2] + start_2);
    for i_0 in window[0].iter() {
        for i_1 in window[1].iter() {
            let row = (i_0 * input[1] + i_1) * input[2];
            for i_2 in window[2].iter() {
                let value = x[row + i_2];
                if value > largest || is_nan(value) {
                    (largest, at) = (value, row + i_2);
                }
            }
        }
    }
    (largest, at as i64)
}

#[allow(clippy::eq_op)] // A NaN is what is not equal to itself.
#[inline(always)]
fn is_nan<R: Real>(value: R) -> bool {
    value != value
}
