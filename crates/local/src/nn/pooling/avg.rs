//! The mean of every window.

use super::spans::{Pooling, Sliding, Span, input_shape};
use crate::{
    LocalError, Result, Tensor,
    nn::real::{Real, by_real, check_shape, rounded, widened},
    threads,
};

/// Settings of [`Tensor::avg_pool1d`], [`Tensor::avg_pool2d`] and [`Tensor::avg_pool3d`]: each one number for all spatial
/// dims, or one per dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPool<'a> {
    /// Sizes of a window.
    pub kernel: &'a [usize],
    /// From one window to the next; the kernel if empty.
    pub stride: &'a [usize],
    /// Zeros on both sides; at most half of the kernel.
    pub padding: &'a [usize],
    /// Whether a last window may reach beyond the padding. It still begins within the input or the padding before it.
    pub ceil_mode: bool,
    /// Whether the mean counts the padding (but never what a window of `ceil_mode` has beyond it).
    pub count_include_pad: bool,
    /// What to divide the sum of every window by, instead of the number of its elements.
    pub divisor_override: Option<usize>,
}

impl Default for AvgPool<'_> {
    fn default() -> Self {
        AvgPool {
            kernel: &[1],
            stride: &[],
            padding: &[0],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }
}

macro_rules! avg_pools {
    ($($(#[$attribute:meta])* $pool:ident, $adaptive:ident, $n:literal, $spatial:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!(
                    "The mean of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`. As ",
                    "`torch.nn.functional.", stringify!($pool), "`. Its gradient: [`Tensor::avg_pool_backward`].",
                )]
                $(#[$attribute])*
                pub fn $pool(&self, settings: &AvgPool) -> Result<Tensor> {
                    let op = stringify!($pool);
                    avg_pool(op, self, &sliding(op, $n, self, settings)?, Divisor::of(settings))
                }

                #[doc = concat!(
                    "The means of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the same size, ",
                    "such that the result has this spatial size (one number for all dims, or one per dim). As ",
                    "`torch.nn.functional.", stringify!($adaptive),
                    "`. Its gradient: [`Tensor::adaptive_avg_pool_backward`].",
                )]
                pub fn $adaptive(&self, output_size: &[usize]) -> Result<Tensor> {
                    let op = stringify!($adaptive);
                    let pooling = Pooling::adaptive(op, $n, self, output_size)?;
                    avg_pool(op, self, &pooling, Divisor::Elements)
                }
            )*
        }
    };
}

avg_pools! {
    avg_pool1d, adaptive_avg_pool1d, 1, "L";
    /// ```
    /// use dtensor_local::{Tensor, nn::AvgPool};
    ///
    /// let x = Tensor::from_vec(vec![1.0_f32, 5.0, 2.0, 3.0, 3.0, 0.0], &[1, 2, 3])?;
    /// let y = x.avg_pool2d(&AvgPool { kernel: &[2], stride: &[1], ..AvgPool::default() })?;
    /// assert_eq!(y.to_vec::<f32>()?, [3.0, 2.5]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    avg_pool2d, adaptive_avg_pool2d, 2, "H, W";
    avg_pool3d, adaptive_avg_pool3d, 3, "D, H, W";
}

impl Tensor {
    /// The gradient of [`Tensor::avg_pool1d`], [`Tensor::avg_pool2d`] or [`Tensor::avg_pool3d`] with respect to the input
    /// with these spatial sizes, where `self` is the gradient of the result.
    pub fn avg_pool_backward(&self, input_size: &[usize], settings: &AvgPool) -> Result<Tensor> {
        let op = "avg_pool_backward";
        let x = Tensor::meta(&input_shape(op, self, input_size)?, self.dtype())?;
        let pooling = sliding(op, input_size.len(), &x, settings)?;
        backward(op, &x, self, &pooling, Divisor::of(settings))
    }

    /// The gradient of [`Tensor::adaptive_avg_pool1d`], [`Tensor::adaptive_avg_pool2d`] or
    /// [`Tensor::adaptive_avg_pool3d`] with respect to the input with these spatial sizes, where `self` is the gradient
    /// of the result.
    pub fn adaptive_avg_pool_backward(&self, input_size: &[usize]) -> Result<Tensor> {
        let op = "adaptive_avg_pool_backward";
        let x = Tensor::meta(&input_shape(op, self, input_size)?, self.dtype())?;
        let n = input_size.len();
        let output_size = &self.shape()[self.n_dims() - n..];
        backward(op, &x, self, &Pooling::adaptive(op, n, &x, output_size)?, Divisor::Elements)
    }
}

/// What the sum of a window is divided by.
#[derive(Clone, Copy)]
enum Divisor {
    /// Its elements.
    Elements,
    /// Its elements and its padding.
    WithPadding,
    /// Always the same.
    Constant(usize),
}

impl Divisor {
    fn of(settings: &AvgPool) -> Divisor {
        match settings.divisor_override {
            Some(divisor) => Divisor::Constant(divisor),
            None if settings.count_include_pad => Divisor::WithPadding,
            None => Divisor::Elements,
        }
    }

    #[inline(always)]
    fn of_window<R: Real>(self, window: [&Span; 3]) -> R {
        let divisor = match self {
            Divisor::Elements => window.iter().map(|span| span.len()).product(),
            Divisor::WithPadding => window.iter().map(|span| span.n_with_padding).product(),
            Divisor::Constant(divisor) => divisor,
        };
        R::of(divisor as f64)
    }
}

fn sliding(op: &'static str, n: usize, x: &Tensor, settings: &AvgPool) -> Result<Pooling> {
    let AvgPool { kernel, stride, padding, ceil_mode, divisor_override, .. } = *settings;
    if divisor_override == Some(0) {
        let (name, got, want) = ("divisor_override", "0".to_string(), "at least 1");
        return Err(LocalError::BadNumber { op, name, got, want });
    }
    Pooling::sliding(op, n, x, &Sliding { kernel, stride, padding, dilation: &[1], ceil_mode })
}

fn avg_pool(op: &'static str, x: &Tensor, pooling: &Pooling, divisor: Divisor) -> Result<Tensor> {
    if x.is_meta() {
        return Tensor::meta(&pooling.shape, x.dtype());
    }
    let spans = pooling.spans();
    let wide = widened(op, x)?;
    let (n_in, n_out) = (spans.n_inputs(), spans.n_outputs());
    let out = by_real!(wide, R => {
        let x = wide.as_slice::<R>()?;
        Tensor::write(op, &pooling.shape, |out: &mut [R]| {
            threads::for_pieces_of(out, n_out, spans.planes_per_piece(), |planes, out| {
                for (plane, out) in planes.zip(out.chunks_exact_mut(n_out.max(1))) {
                    let x = &x[plane * n_in..][..n_in];
                    spans.each_output(|output, window| {
                        let mut sum = R::ZERO;
                        each_row(spans.input, window, |row| {
                            x[row].iter().for_each(|x| sum += *x);
                        });
                        // A window of nothing but padding, whose divisor may be zero, has the mean zero.
                        let is_empty = window.iter().any(|span| span.len() == 0);
                        let of_window = divisor.of_window::<R>(window);
                        out[output] = if is_empty { R::ZERO } else { sum / of_window };
                    });
                }
            });
        })?
    });
    rounded(op, out, x.dtype())
}

fn backward(
    op: &'static str,
    x: &Tensor,
    grad: &Tensor,
    pooling: &Pooling,
    divisor: Divisor,
) -> Result<Tensor> {
    check_shape(op, grad, &pooling.shape, "a gradient has the shape of the result")?;
    if grad.is_meta() {
        return Ok(x.clone());
    }
    let spans = pooling.spans();
    let wide = widened(op, grad)?;
    let (n_in, n_out) = (spans.n_inputs(), spans.n_outputs());
    let out = by_real!(wide, R => {
        let grads = wide.as_slice::<R>()?;
        Tensor::write(op, x.shape(), |out: &mut [R]| {
            threads::for_pieces_of(out, n_in, spans.planes_per_piece(), |planes, out| {
                out.fill(R::ZERO);
                for (plane, out) in planes.zip(out.chunks_exact_mut(n_in.max(1))) {
                    let grads = &grads[plane * n_out..][..n_out];
                    spans.each_output(|output, window| {
                        let share = grads[output] / divisor.of_window::<R>(window);
                        each_row(spans.input, window, |row| {
                            out[row].iter_mut().for_each(|out| *out += share);
                        });
                    });
                }
            });
        })?
    });
    rounded(op, out, grad.dtype())
}

/// Calls `run` with the elements of every row of a window without dilation.
#[inline(always)]
fn each_row(input: [usize; 3], window: [&Span; 3], mut run: impl FnMut(std::ops::Range<usize>)) {
    for i_0 in window[0].elements.clone() {
        for i_1 in window[1].elements.clone() {
            let row = (i_0 * input[1] + i_1) * input[2];
            run(row + window[2].elements.start..row + window[2].elements.end);
        }
    }
}
