//! Settings and shapes, checked and turned into sizes.

use bytemuck::Pod;

use super::{Conv, ConvTranspose, kernels::Convolution};
use crate::{
    LocalError, Result, Tensor,
    dims::Dims,
    nn::{
        real::{Real, check_dtype, check_float, check_shape},
        windows::{Windows, setting, shape_of, spatial, with_batch},
    },
};

/// A convolution that fits its operands.
pub(super) struct Plan {
    convolution: Convolution,
    n_spatial: usize,
    has_batch: bool,
}

impl Plan {
    pub(super) fn new(
        op: &'static str,
        n_spatial: usize,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        settings: &Conv,
    ) -> Result<Plan> {
        let (x, is_new) = check_operands(op, n_spatial, x, weight, settings.groups)?;
        let (n_channels, n_filters) = (x.shape()[1], weight.shape()[0]);
        let channels = weight.shape()[1];
        if channels.checked_mul(settings.groups) != Some(n_channels) {
            return Err(LocalError::ShapeMismatch {
                op,
                from: weight.shape().to_vec(),
                to: x.shape().to_vec(),
                why: "weights are [filters, channels / groups, kernel]",
            });
        }
        check_bias(op, &x, bias, n_filters)?;
        let mut windows = windows(op, n_spatial, weight, settings)?;
        windows.input = spatial(x.shape());
        for dim in 0..3 {
            let padded = windows.input[dim] + 2 * windows.padding[dim];
            let Some(room) = padded.checked_sub(windows.extent(dim)) else {
                return Err(LocalError::ShapeMismatch {
                    op,
                    from: x.shape().to_vec(),
                    to: weight.shape().to_vec(),
                    why: "the kernel, dilated, is larger than the padded input",
                });
            };
            windows.output[dim] = room / windows.stride[dim] + 1;
        }
        let (batch, groups, filters) = (x.shape()[0], settings.groups, n_filters / settings.groups);
        let convolution = Convolution { batch, groups, channels, filters, windows };
        Ok(Plan { convolution, n_spatial, has_batch: !is_new })
    }

    /// Of the input of the plain convolution.
    pub(super) fn input_shape(&self) -> Dims {
        let Convolution { batch, groups, channels, windows, .. } = self.convolution;
        self.shape([batch, groups * channels], windows.input)
    }

    /// Of the output of the plain convolution.
    pub(super) fn output_shape(&self) -> Dims {
        let Convolution { batch, groups, filters, windows, .. } = self.convolution;
        self.shape([batch, groups * filters], windows.output)
    }

    fn shape(&self, batch: [usize; 2], spatial: [usize; 3]) -> Dims {
        let mut shape = shape_of(batch, spatial, self.n_spatial);
        if !self.has_batch {
            shape.remove(0);
        }
        shape
    }

    /// The outputs of inputs.
    pub(super) fn gather<R: Real + Pod>(
        &self,
        op: &'static str,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&[R]>,
    ) -> Result<Tensor> {
        let (x, weight) = (x.as_slice::<R>()?, weight.as_slice::<R>()?);
        let convolution = &self.convolution;
        Tensor::write(op, &self.output_shape(), |y| {
            if convolution.is_depthwise() {
                convolution.depthwise_gather(x, weight, bias, y);
            } else {
                convolution.gather(x, weight, bias, y);
            }
        })
    }

    /// The inputs of outputs, by the adjoint.
    pub(super) fn spread<R: Real + Pod>(
        &self,
        op: &'static str,
        y: &Tensor,
        weight: &Tensor,
        bias: Option<&[R]>,
    ) -> Result<Tensor> {
        let (y, weight) = (y.as_slice::<R>()?, weight.as_slice::<R>()?);
        let convolution = &self.convolution;
        Tensor::write(op, &self.input_shape(), |x| {
            if convolution.is_depthwise() {
                convolution.depthwise_spread(y, weight, bias, x);
            } else {
                convolution.spread(y, weight, bias, x);
            }
        })
    }

    /// The gradient of the weights, which have this shape.
    pub(super) fn correlate<R: Real + Pod>(
        &self,
        op: &'static str,
        x: &Tensor,
        y: &Tensor,
        shape: &[usize],
    ) -> Result<Tensor> {
        let (x, y) = (x.as_slice::<R>()?, y.as_slice::<R>()?);
        let convolution = &self.convolution;
        Tensor::write(op, shape, |weight| {
            if convolution.is_depthwise() {
                convolution.depthwise_correlate(x, y, weight);
            } else {
                convolution.correlate(x, y, weight);
            }
        })
    }
}

/// The plain convolution whose output a transposed one takes and whose input it gives.
pub(super) struct Transposed(pub(super) Plan);

impl Transposed {
    pub(super) fn new(
        op: &'static str,
        n_spatial: usize,
        y: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        settings: &ConvTranspose,
    ) -> Result<Transposed> {
        let Conv { groups, .. } = settings.conv;
        let (y, is_new) = check_operands(op, n_spatial, y, weight, groups)?;
        let (n_filters, channels) = (weight.shape()[0], weight.shape()[1]);
        if y.shape()[1] != n_filters {
            return Err(LocalError::ShapeMismatch {
                op,
                from: weight.shape().to_vec(),
                to: y.shape().to_vec(),
                why: "weights are [channels, filters / groups, kernel]",
            });
        }
        let mut windows = windows(op, n_spatial, weight, &settings.conv)?;
        let more = setting(op, "output_padding", settings.output_padding, n_spatial, 0, 0)?;
        windows.output = spatial(y.shape());
        for (dim, more) in more.into_iter().enumerate() {
            if more >= windows.stride[dim].max(windows.dilation[dim]) {
                return Err(LocalError::BadNumber {
                    op,
                    name: "output_padding",
                    got: format!("{:?}", settings.output_padding),
                    want: "less than the stride or the dilation",
                });
            }
            let size = windows.output[dim].checked_sub(1).and_then(|last| {
                let reach = last.checked_mul(windows.stride[dim])?;
                let reach = reach.checked_add(windows.extent(dim) + more)?;
                reach.checked_sub(2 * windows.padding[dim])
            });
            let Some(size) = size else {
                return Err(LocalError::ShapeMismatch {
                    op,
                    from: y.shape().to_vec(),
                    to: weight.shape().to_vec(),
                    why: "less than nothing, or too much, is left of the result without its padding",
                });
            };
            windows.input[dim] = size;
        }
        let n_channels = channels.checked_mul(groups).ok_or_else(|| LocalError::BadNumber {
            op,
            name: "groups",
            got: groups.to_string(),
            want: "a divisor of the number of channels",
        })?;
        check_bias(op, &y, bias, n_channels)?;
        let (batch, filters) = (y.shape()[0], n_filters / groups);
        let convolution = Convolution { batch, groups, channels, filters, windows };
        Ok(Transposed(Plan { convolution, n_spatial, has_batch: !is_new }))
    }
}

/// Refuses dtypes and numbers of dims that do not fit. Gives the first operand with a batch, and whether that is new.
fn check_operands(
    op: &'static str,
    n_spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    groups: usize,
) -> Result<(Tensor, bool)> {
    check_float(op, x)?;
    check_dtype(op, weight, x.dtype())?;
    if weight.n_dims() != n_spatial + 2 {
        return Err(LocalError::ShapeMismatch {
            op,
            from: weight.shape().to_vec(),
            to: vec![0; n_spatial + 2],
            why: "weights have two dims for channels and the kernel's",
        });
    }
    if groups == 0 || !weight.shape()[0].is_multiple_of(groups) {
        return Err(LocalError::BadNumber {
            op,
            name: "groups",
            got: groups.to_string(),
            want: "a divisor of the number of channels and of filters",
        });
    }
    with_batch(op, x, n_spatial)
}

fn check_bias(op: &'static str, x: &Tensor, bias: Option<&Tensor>, n: usize) -> Result<()> {
    let Some(bias) = bias else { return Ok(()) };
    check_dtype(op, bias, x.dtype())?;
    check_shape(op, bias, &[n], "there is one bias per channel of the result")
}

/// The settings; the sizes of input and output are still to come.
fn windows(op: &'static str, n: usize, weight: &Tensor, settings: &Conv) -> Result<Windows> {
    Ok(Windows {
        kernel: setting(op, "kernel size", &weight.shape()[2..], n, 1, 1)?,
        stride: setting(op, "stride", settings.stride, n, 1, 1)?,
        padding: setting(op, "padding", settings.padding, n, 0, 0)?,
        dilation: setting(op, "dilation", settings.dilation, n, 1, 1)?,
        input: [1; 3],
        output: [1; 3],
    })
}
