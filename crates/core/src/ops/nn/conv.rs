//! Convolutions, plain and transposed.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

pub use dtensor_local::nn::{Conv, ConvTranspose};

use super::{
    conv_backward::bilinear_grads,
    conv_windows::Windows,
    halo::{Arranged, Window, cropped, fetched, held},
    steps::{Sizes, filled, rule, stand_in},
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// The convolution of input, weights and bias.
///
/// Batches, filters and groups may be cut; where channels are, the result is a pending sum, to which one rank adds the
/// bias. Where spatial dims are cut, ranks fetch what their outputs see from their neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Convolve {
    windows: Windows,
    bias: bool,
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

    fn keeps(&self) -> Option<Keep> {
        // The gradient of the bias needs neither.
        Some(Keep::others_among(&[0, 1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        // What is not kept is asked for its shape alone.
        let operand = |operand: usize| match backward.needs(1 - operand) {
            true => backward.operand(operand),
            false => stand_in(backward, operand),
        };
        let wanted = [backward.needs(0), backward.needs(1)];
        let grads = bilinear_grads(&self.windows, [&operand(0)?, &operand(1)?, &grad], wanted)?;
        let channel = self.windows.first(grad.n_dims()) - 1;
        backward.each(|operand| match (operand, &grads) {
            (0, [Some(grad), _]) | (1, [_, Some(grad)]) => Ok(grad.clone()),
            _ => {
                let others = (0..grad.n_dims()).filter(|dim| *dim != channel);
                grad.sum(&others.map(usize::cast_signed).collect::<Vec<_>>(), false)
            }
        })
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

/// The convolution, by settings.
pub(super) fn convolve(
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
