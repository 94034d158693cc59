//! Convolutions, plain and transposed.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

pub use dtensor_local::nn::{Conv, ConvTranspose};

use super::{
    halo::{Arranged, Window, cropped, fetched, held},
    steps::{cuts, filled, letter, rule},
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// One number per spatial dim.
pub(super) type Sizes = SmallVec<[usize; 3]>;

/// The settings of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Windows {
    /// Number of spatial dims.
    pub(super) n: usize,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: usize,
    /// If it is a transposed one.
    output_padding: Option<Sizes>,
}

/// The convolution of input, weights and bias.
///
/// Batches, filters and groups may be cut; where channels are, the result is a pending sum, to which one rank adds the
/// bias. Where spatial dims are cut, ranks fetch what their outputs see from their neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Convolve {
    windows: Windows,
    bias: bool,
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
    pub(super) fn adds_bias(&self, channels: std::ops::Range<usize>, n_channels: usize) -> bool {
        let per_group = n_channels / self.groups.max(1);
        !channels.is_empty() && channels.start.is_multiple_of(per_group.max(1))
    }

    /// What the outputs of a plain convolution see of its input, in a spatial dim.
    pub(super) fn seen(
        &self,
        outputs: &std::ops::Range<usize>,
        spatial: usize,
        kernel: usize,
    ) -> Window {
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
        inputs: &std::ops::Range<usize>,
        spatial: usize,
        kernel: usize,
        n_outputs: usize,
    ) -> std::ops::Range<usize> {
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

    fn run(
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
}

impl Windows {
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

/// A setting that is one number for all dims, or one per dim.
fn each(values: &[usize], n: usize) -> Sizes {
    match values {
        [one] => SmallVec::from_elem(*one, n),
        // Of a wrong length: for the kernel to say.
        values => values.into(),
    }
}

impl Op for Convolve {
    fn name(&self) -> &'static str {
        match (self.windows.n, self.windows.is_transposed()) {
            (1, false) => "conv1d",
            (2, false) => "conv2d",
            (_, false) => "conv3d",
            (1, true) => "conv_transpose1d",
            (2, true) => "conv_transpose2d",
            (_, true) => "conv_transpose3d",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, weight, bias, out, sizes] = self.windows.letters(&operands[0]);
        match self.bias {
            false => {
                rule(self.name(), &format!("{x}, {weight} -> {out}{sizes}"), &[Law::Multilinear])
            }
            true => {
                let text = format!("{x}, {weight}, {bias} -> {out}{sizes}");
                rule(self.name(), &text, &[Law::Affine])
            }
        }
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let bias = self.bias.then(|| x[2]);
        let (Some(layout), Some(result)) = (context.operand(0), context.result(0)) else {
            return one(self.windows.run(x[0], x[1], bias));
        };
        let channel = self.windows.first(layout.n_dims()) - 1;
        let n_channels = layout.global_shape()[channel];
        let channels = context.operand_range(0, channel, n_channels);
        let shape = result.local_shape(context.coord());
        if shape.contains(&0) || channels.is_empty() {
            return one(filled(x[0], &shape, x[0].dtype(), 0.0));
        }
        let bias = bias.filter(|_| self.windows.adds_bias(channels, n_channels));
        one(self.windows.local(x[0], n_channels, |_| false).run(x[0], x[1], bias))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.windows.is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let n_dims = operands[0].n_dims();
        let others: String = operands[1..].iter().map(|_| " R").collect();
        let rows = (self.windows.first(n_dims)..n_dims)
            .map(|dim| format!("S({dim}){others} -> S({dim})"))
            .collect::<Vec<_>>();
        let arranged = Arranged::new(self, operands, &rows)?;
        arranged.results(|coord| self.with_windows(&arranged, coord))
    }
}

impl Convolve {
    /// What a rank computes after it has fetched what its outputs see.
    fn with_windows(&self, arranged: &Arranged, coord: &[usize]) -> Result<Outputs> {
        let (windows, [x, weight]) =
            (&self.windows, [&arranged.operands[0], &arranged.operands[1]]);
        let (layout, result) = (x.layout(), &arranged.results[0]);
        let (first, cut) = (windows.first(x.n_dims()), windows.cut_dims(layout));
        let n_channels = x.shape()[first - 1];
        let channels = held(layout, first - 1, coord);
        let kernel = |dim: usize| weight.shape()[2 + dim - first];
        // In a plain convolution an output sees a window of the input; in a transposed one it is seen by some.
        let window = |coord: &[usize], dim: usize| {
            let outputs = held(result, dim, coord);
            match windows.is_transposed() {
                false => windows.seen(&outputs, dim - first, kernel(dim)),
                true => {
                    let seen = windows.seen_by(&outputs, dim - first, kernel(dim), x.shape()[dim]);
                    Window { start: seen.start as isize, len: seen.len() }
                }
            }
        };
        let local = fetched(self.name(), x, &cut, &window, 0.0)?;
        let shape = result.local_shape(coord);
        let bias = self.bias.then(|| arranged.operands[2].local());
        let bias = bias.filter(|_| windows.adds_bias(channels.clone(), n_channels));
        let local_windows = windows.local(&local, n_channels, |dim| cut.contains(&dim));
        if shape.contains(&0) || channels.is_empty() {
            return Ok([filled(&local, &shape, x.dtype(), 0.0)?].into());
        }
        if !windows.is_transposed() {
            return Ok([local_windows.run(&local, weight.local(), bias)?].into());
        }
        let mut out = match local.shape().contains(&0) {
            true => filled(&local, &shape, x.dtype(), 0.0)?,
            false => local_windows.run(&local, weight.local(), None)?,
        };
        for dim in cut.into_iter().filter(|_| !local.shape().contains(&0)) {
            let (seen, outputs) = (window(coord, dim), held(result, dim, coord));
            let start = windows.seen(&(seen.start as usize..0), dim - first, kernel(dim)).start;
            let wanted = Window { start: outputs.start as isize, len: outputs.len() };
            out = cropped(&out, dim, start, wanted)?;
        }
        if let Some(bias) = bias {
            let mut beside = vec![1; out.n_dims()];
            beside[first - 1] = bias.numel();
            out = out.add(&bias.reshape(&beside)?)?;
        }
        Ok([out].into())
    }
}

macro_rules! convolutions {
    ($($conv:ident, $transposed:ident, $n:literal, $spatial:literal;)*) => {
        impl DTensor {
            $(
                #[doc = concat!(
                    "The convolution of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` with weights ",
                    "`[O, C / groups, kernel]` and a bias `[O]`. Nothing is sent where batches, filters or channels ",
                    "(which gives a pending sum) are cut; where spatial dims are, one exchange between neighbours. As ",
                    "`torch.nn.functional.", stringify!($conv), "`.",
                )]
                pub fn $conv(
                    &self,
                    weight: &DTensor,
                    bias: Option<&DTensor>,
                    settings: &Conv,
                ) -> Result<DTensor> {
                    convolve(Windows::plain($n, settings), self, weight, bias)
                }

                #[doc = concat!(
                    "The transposed convolution of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` with weights ",
                    "`[C, O / groups, kernel]` and a bias `[O]`, communicating as [`", stringify!($conv), "`](DTensor::",
                    stringify!($conv), "). As `torch.nn.functional.", stringify!($transposed), "`.",
                )]
                pub fn $transposed(
                    &self,
                    weight: &DTensor,
                    bias: Option<&DTensor>,
                    settings: &ConvTranspose,
                ) -> Result<DTensor> {
                    convolve(Windows::transposed($n, settings), self, weight, bias)
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($conv), samples: || samples($n, false) },
            OpRecord { name: stringify!($transposed), samples: || samples($n, true) },
        )*];
    };
}

convolutions! {
    conv1d, conv_transpose1d, 1, "L";
    conv2d, conv_transpose2d, 2, "H, W";
    conv3d, conv_transpose3d, 3, "D, H, W";
}

fn convolve(
    windows: Windows,
    x: &DTensor,
    weight: &DTensor,
    bias: Option<&DTensor>,
) -> Result<DTensor> {
    let operands: Vec<&DTensor> = [x, weight].into_iter().chain(bias).collect();
    call_one(&Convolve { windows, bias: bias.is_some() }, &operands)
}

fn samples(n: usize, is_transposed: bool) -> Vec<Sample> {
    let cases = sample_cases(n, is_transposed).into_iter().enumerate();
    let sample = |(number, (windows, x, weight)): (usize, (Windows, Vec<usize>, Vec<usize>))| {
        let n_filters = match is_transposed {
            false => weight[0],
            true => weight[1] * windows.groups,
        };
        let (op, bias) = (Convolve { windows, bias: number > 0 }, [n_filters]);
        match number {
            0 => Sample::new(op, &[&x, &weight]),
            _ => Sample::new(op, &[&x, &weight, &bias]),
        }
    };
    cases.map(sample).collect()
}

/// Settings with shapes of input and weights.
pub(super) fn sample_cases(
    n: usize,
    is_transposed: bool,
) -> Vec<(Windows, Vec<usize>, Vec<usize>)> {
    let windows = |stride: &[usize], padding: &[usize], dilation: &[usize], groups| {
        let conv = Conv { stride, padding, dilation, groups };
        match is_transposed {
            false => Windows::plain(n, &conv),
            true => {
                let output_padding: Sizes = stride.iter().map(|stride| stride - 1).collect();
                Windows::transposed(n, &ConvTranspose { conv, output_padding: &output_padding })
            }
        }
    };
    let weight = |inputs: usize, outputs: usize, kernel: &[usize]| match is_transposed {
        false => [&[outputs, inputs], kernel].concat(),
        true => [&[inputs, outputs], kernel].concat(),
    };
    match n {
        1 => vec![
            (windows(&[1], &[1], &[1], 1), vec![2, 3, 5], weight(3, 2, &[3])),
            (windows(&[2], &[2], &[2], 1), vec![3, 2, 7], weight(2, 3, &[3])),
            (
                windows(&[1], &[0], &[1], 2),
                vec![4, 6],
                if is_transposed { vec![4, 1, 2] } else { vec![2, 2, 2] },
            ),
        ],
        2 => vec![
            (windows(&[1], &[1, 0], &[1], 1), vec![2, 2, 4, 3], weight(2, 2, &[3, 2])),
            (windows(&[2, 1], &[1], &[1], 1), vec![1, 2, 5, 4], weight(2, 3, &[3, 2])),
        ],
        _ => {
            let windows = windows(&[1, 2, 1], &[1, 0, 0], &[1], 1);
            vec![(windows, vec![1, 1, 3, 5, 3], weight(1, 2, &[2, 3, 2]))]
        }
    }
}
