//! Where the windows of convolutions and of pooling lie.

use std::ops::Range;

use crate::{LocalError, Result, Tensor, dims::Dims};

/// Settings of windows may be at most this, so that sums and products of them do not overflow.
const MOST: usize = 1 << 31;

/// Windows over three spatial dims; one or two dims are three with dims of size 1 in front, which cost nothing.
///
/// Output `o` of a dim sees, at tap `t` of the kernel, element `o * stride + t * dilation - padding` of the input, if
/// there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) kernel: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) padding: [usize; 3],
    pub(super) dilation: [usize; 3],
    pub(super) input: [usize; 3],
    pub(super) output: [usize; 3],
}

impl Windows {
    /// Taps of the kernel.
    pub(super) fn n_taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Elements of the input.
    pub(super) fn n_inputs(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of the output.
    pub(super) fn n_outputs(&self) -> usize {
        self.output.iter().product()
    }

    /// The distance from the first to one past the last element of a window.
    pub(super) fn extent(&self, dim: usize) -> usize {
        self.dilation[dim] * (self.kernel[dim] - 1) + 1
    }

    /// The outputs of a dim that see an element of the input at this tap; the others see padding.
    #[inline(always)]
    pub(super) fn seen(&self, dim: usize, tap: usize) -> Range<usize> {
        let (stride, padding) = (self.stride[dim], self.padding[dim]);
        let shift = tap * self.dilation[dim];
        let end = (self.input[dim] + padding).saturating_sub(shift).div_ceil(stride);
        let end = end.min(self.output[dim]);
        padding.saturating_sub(shift).div_ceil(stride).min(end)..end
    }

    /// The element that an output of [`Windows::seen`] sees at the tap.
    #[inline(always)]
    pub(super) fn element(&self, dim: usize, output: usize, tap: usize) -> usize {
        output * self.stride[dim] + tap * self.dilation[dim] - self.padding[dim]
    }
}

/// Refuses a tensor that is not `[N, C, spatial...]` or `[C, spatial...]` with `n` spatial dims. Gives it with a
/// batch, and whether that is new.
pub(super) fn with_batch(op: &'static str, x: &Tensor, n: usize) -> Result<(Tensor, bool)> {
    match x.n_dims() {
        n_dims if n_dims == n + 2 => Ok((x.clone(), false)),
        n_dims if n_dims == n + 1 => Ok((x.unsqueeze(0)?, true)),
        _ => Err(LocalError::ShapeMismatch {
            op,
            from: x.shape().to_vec(),
            to: vec![0; n + 2],
            why: "it has a batch (or none), channels, and the spatial dims",
        }),
    }
}

/// The last three of the sizes `[N, C, spatial...]`, with ones in front.
pub(super) fn spatial(shape: &[usize]) -> [usize; 3] {
    in_three(&shape[2..], 1)
}

/// The sizes `[n, c, spatial...]` with only the spatial dims that there are.
pub(super) fn shape_of(batch: [usize; 2], spatial: [usize; 3], n: usize) -> Dims {
    batch.into_iter().chain(spatial[3 - n..].iter().copied()).collect()
}

/// A setting of `n` spatial dims: one number for all of them, or one each; at least `least`. Dims in front of them
/// get `neutral`.
pub(super) fn setting(
    op: &'static str,
    name: &'static str,
    values: &[usize],
    n: usize,
    least: usize,
    neutral: usize,
) -> Result<[usize; 3]> {
    let bad = |want| Err(LocalError::BadNumber { op, name, got: format!("{values:?}"), want });
    if values.iter().any(|value| *value < least) {
        return bad("at least 1");
    }
    if values.iter().any(|value| *value >= MOST) {
        return bad("less than 2^31");
    }
    match values {
        [value] => Ok(in_three(&[*value; 3][..n], neutral)),
        values if values.len() == n => Ok(in_three(values, neutral)),
        _ => bad("one number, or one per spatial dim"),
    }
}

/// Up to three values, behind as many of `fill` as it takes.
fn in_three(values: &[usize], fill: usize) -> [usize; 3] {
    let mut three = [fill; 3];
    three[3 - values.len()..].copy_from_slice(values);
    three
}
