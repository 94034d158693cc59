//! Convolutions over one to three spatial dims, plain and transposed, and their gradients.
//!
//! What the windows see is copied into tiles that fit the cache and multiplied with the weights there; the whole matrix,
//! `kernel` times as large as the input, never exists. Convolutions of single channels are computed as they are.

mod backward;
mod columns;
mod depthwise;
mod kernels;
mod plan;
mod product;

pub use backward::{ConvGrads, WantedGrads};
use plan::{Plan, Transposed};

use crate::{
    Result, Tensor,
    nn::real::{by_real, rounded, widened},
};

/// Settings of [`Tensor::conv1d`], [`Tensor::conv2d`] and [`Tensor::conv3d`]: each one number for all spatial dims, or
/// one per dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv<'a> {
    /// From one window to the next.
    pub stride: &'a [usize],
    /// Zeros on both sides of the input.
    pub padding: &'a [usize],
    /// From one element of a window to the next.
    pub dilation: &'a [usize],
    /// Into how many groups channels and filters are divided; a filter sees the channels of its group.
    pub groups: usize,
}

impl Default for Conv<'_> {
    fn default() -> Self {
        Conv { stride: &[1], padding: &[0], dilation: &[1], groups: 1 }
    }
}

/// Settings of [`Tensor::conv_transpose1d`], [`Tensor::conv_transpose2d`] and [`Tensor::conv_transpose3d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose<'a> {
    /// Those of the convolution whose gradient this is.
    pub conv: Conv<'a>,
    /// How much larger the result is than the smallest input of that convolution that gives this output: less than
    /// the stride or the dilation.
    pub output_padding: &'a [usize],
}

impl Default for ConvTranspose<'_> {
    fn default() -> Self {
        ConvTranspose { conv: Conv::default(), output_padding: &[0] }
    }
}

macro_rules! convolutions {
    ($($(#[$attribute:meta])* $conv:ident, $transposed:ident, $n:literal, $spatial:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!(
                    "The convolution (as in PyTorch, without flipping the kernel) of `[N, C, ", $spatial, "]` or `[C, ",
                    $spatial, "]` with weights `[O, C / groups, kernel]` and a bias `[O]`. As `torch.nn.functional.",
                    stringify!($conv), "`. Its gradients: [`Tensor::conv_backward`].",
                )]
                $(#[$attribute])*
                pub fn $conv(
                    &self,
                    weight: &Tensor,
                    bias: Option<&Tensor>,
                    settings: &Conv,
                ) -> Result<Tensor> {
                    conv(stringify!($conv), $n, self, weight, bias, settings)
                }

                #[doc = concat!(
                    "The transposed convolution of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` with weights ",
                    "`[C, O / groups, kernel]` and a bias `[O]`: what the gradient of [`Tensor::", stringify!($conv),
                    "`] with respect to its input is. As `torch.nn.functional.", stringify!($transposed),
                    "`. Its gradients: [`Tensor::conv_transpose_backward`].",
                )]
                pub fn $transposed(
                    &self,
                    weight: &Tensor,
                    bias: Option<&Tensor>,
                    settings: &ConvTranspose,
                ) -> Result<Tensor> {
                    conv_transpose(stringify!($transposed), $n, self, weight, bias, settings)
                }
            )*
        }
    };
}

convolutions! {
    conv1d, conv_transpose1d, 1, "L";
    /// ```
    /// use dtensor_local::{Tensor, nn::Conv};
    ///
    /// let x = Tensor::from_vec((1..=9).map(|i| i as f32).collect(), &[1, 1, 3, 3])?;
    /// let weight = Tensor::full(&[1, 1, 2, 2], 1.0_f32)?;
    /// let y = x.conv2d(&weight, None, &Conv::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [12.0, 16.0, 24.0, 28.0]);
    /// let y = x.conv2d(&weight, None, &Conv { stride: &[2], padding: &[1, 0], ..Conv::default() })?;
    /// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 2, 1][..], vec![3.0, 24.0]));
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    conv2d, conv_transpose2d, 2, "H, W";
    conv3d, conv_transpose3d, 3, "D, H, W";
}

fn conv(
    op: &'static str,
    n_spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: &Conv,
) -> Result<Tensor> {
    let plan = Plan::new(op, n_spatial, x, weight, bias, settings)?;
    if [Some(x), Some(weight), bias].into_iter().flatten().any(Tensor::is_meta) {
        return Tensor::meta(&plan.output_shape(), x.dtype());
    }
    let (wide, weight) = (widened(op, x)?, widened(op, weight)?);
    let bias = bias.map(|bias| widened(op, bias)).transpose()?;
    let out = by_real!(wide, R => {
        let bias = bias.as_ref().map(Tensor::as_slice::<R>).transpose()?;
        plan.gather::<R>(op, &wide, &weight, bias)?
    });
    rounded(op, out, x.dtype())
}

fn conv_transpose(
    op: &'static str,
    n_spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: &ConvTranspose,
) -> Result<Tensor> {
    let Transposed(plan) = Transposed::new(op, n_spatial, x, weight, bias, settings)?;
    if [Some(x), Some(weight), bias].into_iter().flatten().any(Tensor::is_meta) {
        return Tensor::meta(&plan.input_shape(), x.dtype());
    }
    let (wide, weight) = (widened(op, x)?, widened(op, weight)?);
    let bias = bias.map(|bias| widened(op, bias)).transpose()?;
    let out = by_real!(wide, R => {
        let bias = bias.as_ref().map(Tensor::as_slice::<R>).transpose()?;
        plan.spread::<R>(op, &wide, &weight, bias)?
    });
    rounded(op, out, x.dtype())
}
