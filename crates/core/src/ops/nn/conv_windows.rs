//! Where the windows of a convolution lie, and what a rank needs to compute some of them.

use std::ops::Range;

use dtensor_layout::Layout;
use dtensor_local::{
    LocalError, Tensor,
    nn::{Conv, ConvTranspose},
};

use super::{
    halo::Window,
    steps::{Sizes, cuts, each, letter},
};
use crate::op::Meta;

/// The settings of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Windows {
    /// Number of spatial dims.
    pub(super) n: usize,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    pub(super) groups: usize,
    /// If it is a transposed one.
    output_padding: Option<Sizes>,
}

impl Windows {
    pub(super) fn plain(n: usize, settings: &Conv) -> Windows {
        Windows {
            n,
            stride: each(settings.stride, n),
            padding: each(settings.padding, n),
            dilation: each(settings.dilation, n),
            groups: settings.groups,
            output_padding: None,
        }
    }

    pub(super) fn transposed(n: usize, settings: &ConvTranspose) -> Windows {
        let output_padding = Some(each(settings.output_padding, n));
        Windows { output_padding, ..Windows::plain(n, &settings.conv) }
    }

    pub(super) fn is_transposed(&self) -> bool {
        self.output_padding.is_some()
    }

    fn conv(&self) -> Conv<'_> {
        Conv {
            stride: &self.stride,
            padding: &self.padding,
            dilation: &self.dilation,
            groups: self.groups,
        }
    }

    /// Runs `plain` or `transposed` with the settings.
    pub(super) fn with<T>(
        &self,
        plain: impl FnOnce(&Conv) -> T,
        transposed: impl FnOnce(&ConvTranspose) -> T,
    ) -> T {
        match &self.output_padding {
            None => plain(&self.conv()),
            Some(output_padding) => {
                transposed(&ConvTranspose { conv: self.conv(), output_padding })
            }
        }
    }

    /// The first spatial dim of an input of so many dims; the channels are before it.
    pub(super) fn first(&self, n_dims: usize) -> usize {
        n_dims.saturating_sub(self.n)
    }

    /// Whether a spatial dim is cut.
    pub(super) fn is_cut(&self, layout: &Layout) -> bool {
        cuts(layout, |dim| dim >= self.first(layout.n_dims()))
    }

    /// The spatial dims that are cut.
    pub(super) fn cut_dims(&self, layout: &Layout) -> Vec<usize> {
        let dims = self.first(layout.n_dims())..layout.n_dims();
        dims.filter(|dim| cuts(layout, |one| one == *dim)).collect()
    }

    /// The letters of input, weights, bias and result, and the sizes of groups. Spatial dims are not cut.
    pub(super) fn letters(&self, x: &Meta) -> [String; 5] {
        let spatial = |from: usize| {
            (from..from + self.n).map(|dim| letter(dim) + "!").collect::<Vec<_>>().join(" ")
        };
        let (g, i, o, n) = (letter(0), letter(1), letter(2), letter(3));
        let batch = if self.first(x.n_dims()) > 1 { n } else { String::new() };
        let grouped = |channel: &str| match self.groups {
            1 => channel.to_string(),
            _ => format!("({g} {channel})"),
        };
        let (inputs, outputs) = (grouped(&i), grouped(&o));
        let (rows, columns) = match self.is_transposed() {
            false => (&outputs, &i),
            true => (&inputs, &o),
        };
        [
            format!("{batch} {inputs} {}", spatial(4)),
            format!("{rows} {columns} {}", spatial(7)),
            outputs.clone(),
            format!("{batch} {outputs} {}", spatial(10)),
            if self.groups == 1 { String::new() } else { format!(" {{{g}={}}}", self.groups) },
        ]
    }

    /// The settings for what a rank holds of input and weights: with the groups that it has, and without padding of
    /// these spatial dims.
    pub(super) fn local(
        &self,
        x: &Tensor,
        n_channels: usize,
        without_padding: impl Fn(usize) -> bool,
    ) -> Windows {
        let (first, mut local) = (self.first(x.n_dims()), self.clone());
        let per_group = n_channels / self.groups.max(1);
        // Channels of one group may be cut, too.
        local.groups = (x.shape()[first - 1] / per_group.max(1)).max(1);
        for spatial in (0..self.n).filter(|spatial| without_padding(first + spatial)) {
            local.padding[spatial] = 0;
            if let Some(output_padding) = &mut local.output_padding {
                output_padding[spatial] = 0;
            }
        }
        local
    }

    /// Whether a rank with these of the channels is the one that adds a bias, or sums its gradient.
    pub(super) fn adds_bias(&self, channels: Range<usize>, n_channels: usize) -> bool {
        let per_group = n_channels / self.groups.max(1);
        !channels.is_empty() && channels.start.is_multiple_of(per_group.max(1))
    }

    /// What the outputs of a plain convolution see of its input, in a spatial dim.
    pub(super) fn seen(&self, outputs: &Range<usize>, spatial: usize, kernel: usize) -> Window {
        let start = (outputs.start * self.stride[spatial]) as isize;
        let start = start.wrapping_sub_unsigned(self.padding[spatial]);
        let len = match outputs.len() {
            0 => 0,
            n => (n - 1) * self.stride[spatial] + self.extent(spatial, kernel),
        };
        Window { start, len }
    }

    /// Which of the `n_outputs` outputs of a plain convolution see some of these inputs.
    pub(super) fn seen_by(
        &self,
        inputs: &Range<usize>,
        spatial: usize,
        kernel: usize,
        n_outputs: usize,
    ) -> Range<usize> {
        let (stride, padding) = (self.stride[spatial], self.padding[spatial]);
        let first = (inputs.start + padding + 1).saturating_sub(self.extent(spatial, kernel));
        let first = first.div_ceil(stride).min(n_outputs);
        let end = match inputs.is_empty() {
            true => first,
            false => ((inputs.end - 1 + padding) / stride + 1).min(n_outputs),
        };
        first..end.max(first)
    }

    /// Length of a window.
    fn extent(&self, spatial: usize, kernel: usize) -> usize {
        self.dilation[spatial] * (kernel - 1) + 1
    }

    /// The convolution of whole operands, or of what a rank holds.
    pub(super) fn run(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, LocalError> {
        self.with(
            |settings| match self.n {
                1 => x.conv1d(weight, bias, settings),
                2 => x.conv2d(weight, bias, settings),
                _ => x.conv3d(weight, bias, settings),
            },
            |settings| match self.n {
                1 => x.conv_transpose1d(weight, bias, settings),
                2 => x.conv_transpose2d(weight, bias, settings),
                _ => x.conv_transpose3d(weight, bias, settings),
            },
        )
    }

    /// The shape of the result for input and weights of these shapes, which fit.
    pub(super) fn result_shape(&self, x: &[usize], weight: &[usize]) -> Vec<usize> {
        let first = self.first(x.len());
        let mut shape = x.to_vec();
        shape[first - 1] = if self.is_transposed() { weight[1] * self.groups } else { weight[0] };
        for (spatial, size) in shape[first..].iter_mut().enumerate() {
            let (stride, padding) = (self.stride[spatial], self.padding[spatial]);
            let extent = self.extent(spatial, weight[2 + spatial]);
            *size = match &self.output_padding {
                None => (*size + 2 * padding - extent) / stride + 1,
                Some(more) => (*size - 1) * stride + extent + more[spatial] - 2 * padding,
            };
        }
        shape
    }
}
