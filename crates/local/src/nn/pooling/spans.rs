//! Which elements of the input every output of a pooling sees, dim by dim.

use std::ops::Range;

use crate::{
    LocalError, Result, Tensor,
    dims::Dims,
    nn::{
        real::check_float,
        windows::{Windows, setting, shape_of, spatial, with_batch},
    },
};

/// The elements `start, start + step, ...` before `end` of one dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) elements: Range<usize>,
    pub(super) step: usize,
    /// Elements and padding within the window.
    pub(super) n_with_padding: usize,
}

impl Span {
    #[inline(always)]
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        self.elements.clone().step_by(self.step)
    }

    /// Elements; without dilation, which averages do not have.
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }
}

/// A pooling that fits its input.
pub(super) struct Pooling {
    kind: Kind,
    input: [usize; 3],
    output: [usize; 3],
    /// Of the result.
    pub(super) shape: Dims,
}

enum Kind {
    /// Windows of one size.
    Sliding(Windows),
    /// Outputs that divide the input.
    Adaptive,
}

/// Settings of windows that slide, as slices of one number or one per dim.
pub(super) struct Sliding<'a> {
    pub(super) kernel: &'a [usize],
    /// The kernel, if there is none.
    pub(super) stride: &'a [usize],
    pub(super) padding: &'a [usize],
    pub(super) dilation: &'a [usize],
    pub(super) ceil_mode: bool,
}

impl Pooling {
    /// Windows that slide.
    pub(super) fn sliding(op: &'static str, n: usize, x: &Tensor, of: &Sliding) -> Result<Pooling> {
        let (x, is_new) = checked_input(op, n, x)?;
        let kernel = setting(op, "kernel", of.kernel, n, 1, 1)?;
        let stride = if of.stride.is_empty() { of.kernel } else { of.stride };
        let mut windows = Windows {
            kernel,
            stride: setting(op, "stride", stride, n, 1, 1)?,
            padding: setting(op, "padding", of.padding, n, 0, 0)?,
            dilation: setting(op, "dilation", of.dilation, n, 1, 1)?,
            input: spatial(x.shape()),
            output: [1; 3],
        };
        for dim in 0..3 {
            if windows.padding[dim] > kernel[dim] / 2 {
                let (got, want) = (format!("{:?}", of.padding), "at most half of the kernel");
                return Err(LocalError::BadNumber { op, name: "padding", got, want });
            }
            windows.output[dim] = output_size(&windows, dim, of.ceil_mode).ok_or_else(|| {
                LocalError::ShapeMismatch {
                    op,
                    from: x.shape().to_vec(),
                    to: kernel[3 - n..].to_vec(),
                    why: "the kernel, dilated, is larger than the padded input",
                }
            })?;
        }
        Ok(Pooling::new(&x, is_new, n, windows.output, Kind::Sliding(windows)))
    }

    /// Outputs that divide the input as evenly as they can: output `o` of `n` has what lies, rounded outwards, from
    /// `o / n` to `(o + 1) / n` of it.
    pub(super) fn adaptive(
        op: &'static str,
        n: usize,
        x: &Tensor,
        size: &[usize],
    ) -> Result<Pooling> {
        let (x, is_new) = checked_input(op, n, x)?;
        let output = setting(op, "output size", size, n, 0, 1)?;
        Ok(Pooling::new(&x, is_new, n, output, Kind::Adaptive))
    }

    fn new(x: &Tensor, is_new: bool, n: usize, output: [usize; 3], kind: Kind) -> Pooling {
        let mut shape = shape_of([x.shape()[0], x.shape()[1]], output, n);
        if is_new {
            shape.remove(0);
        }
        Pooling { kind, input: spatial(x.shape()), output, shape }
    }

    /// The spans of every output. They are worked out here and not before: a meta tensor may have any number of them.
    pub(super) fn spans(&self) -> Spans {
        let of = |dim: usize| {
            let span = |output: usize| match &self.kind {
                Kind::Sliding(windows) => sliding_span(windows, dim, output),
                Kind::Adaptive => adaptive_span(self.input[dim], self.output[dim], output),
            };
            (0..self.output[dim]).map(span).collect()
        };
        Spans { input: self.input, dims: [of(0), of(1), of(2)] }
    }
}

/// What the outputs of a plane see.
pub(super) struct Spans {
    pub(super) input: [usize; 3],
    /// Per dim and output.
    dims: [Vec<Span>; 3],
}

impl Spans {
    pub(super) fn n_inputs(&self) -> usize {
        self.input.iter().product()
    }

    pub(super) fn n_outputs(&self) -> usize {
        self.dims.iter().map(Vec::len).product()
    }

    /// Planes that are worth a hand-over to another thread.
    pub(super) fn planes_per_piece(&self) -> usize {
        (32 * 1024 / self.n_inputs().max(self.n_outputs()).max(1)).max(1)
    }

    /// Calls `output` with the spans of every output of a plane, in order.
    #[inline(always)]
    pub(super) fn each_output(&self, mut output: impl FnMut(usize, [&Span; 3])) {
        let mut index = 0;
        for span_0 in &self.dims[0] {
            for span_1 in &self.dims[1] {
                for span_2 in &self.dims[2] {
                    output(index, [span_0, span_1, span_2]);
                    index += 1;
                }
            }
        }
    }
}

/// The shape of an input with these spatial sizes, given the gradient of its result.
pub(super) fn input_shape(op: &'static str, grad: &Tensor, input_size: &[usize]) -> Result<Dims> {
    let n = input_size.len();
    if !(1..=3).contains(&n) || (grad.n_dims() != n + 1 && grad.n_dims() != n + 2) {
        return Err(LocalError::ShapeMismatch {
            op,
            from: grad.shape().to_vec(),
            to: input_size.to_vec(),
            why: "give the one to three spatial sizes of the input",
        });
    }
    Ok(grad.shape()[..grad.n_dims() - n].iter().chain(input_size).copied().collect())
}

/// Refuses a tensor that is not floating point, has other dims, or a plane or channels of nothing, as PyTorch does.
fn checked_input(op: &'static str, n: usize, x: &Tensor) -> Result<(Tensor, bool)> {
    check_float(op, x)?;
    let (x, is_new) = with_batch(op, x, n)?;
    if x.shape()[2..].contains(&0) {
        return Err(LocalError::ShapeMismatch {
            op,
            from: x.shape().to_vec(),
            to: vec![1; n + 2],
            why: "only the batch and the channels may be empty",
        });
    }
    Ok((x, is_new))
}

/// How many windows there are; rounded up, a window must still begin within the input or the padding before it.
fn output_size(windows: &Windows, dim: usize, ceil_mode: bool) -> Option<usize> {
    let (input, stride, padding) = (windows.input[dim], windows.stride[dim], windows.padding[dim]);
    let room = (input + 2 * padding).checked_sub(windows.extent(dim));
    if !ceil_mode {
        return room.map(|room| room / stride + 1);
    }
    // Rounded up, one window may be larger than what there is.
    let size = match room {
        Some(room) => room.div_ceil(stride) + 1,
        None if windows.extent(dim) - (input + 2 * padding) < stride => 1,
        None => return None,
    };
    let begins_behind = (size - 1) * stride >= input + padding;
    Some(size - usize::from(begins_behind))
}

fn adaptive_span(input: usize, n_outputs: usize, output: usize) -> Span {
    // Products of two sizes may be too large for `usize`.
    let (input, n_outputs, output) = (input as u128, n_outputs as u128, output as u128);
    let start = (output * input / n_outputs) as usize;
    let end = ((output + 1) * input).div_ceil(n_outputs) as usize;
    Span { elements: start..end, step: 1, n_with_padding: end - start }
}

fn sliding_span(windows: &Windows, dim: usize, output: usize) -> Span {
    let (input, padding, step) = (windows.input[dim], windows.padding[dim], windows.dilation[dim]);
    // Counted from the first element of the padding.
    let first = output * windows.stride[dim];
    let last = first + windows.extent(dim);
    // The first tap that is not in the padding before the input.
    let skipped = padding.saturating_sub(first).div_ceil(step) * step;
    let start = (first + skipped - padding).min(input);
    let end = last.saturating_sub(padding).clamp(start, input);
    let n_with_padding = last.min(input + 2 * padding) - first;
    Span { elements: start..end, step, n_with_padding }
}
