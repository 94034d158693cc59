//! Gradients of convolutions.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, nn};

pub use dtensor_local::nn::WantedGrads;

use super::{
    conv::{Conv, ConvTranspose, convolve, sample_cases},
    conv_windows::Windows,
    halo::{Arranged, Window, cropped, fetched, held},
    steps::{filled, rule},
};
use crate::{
    DTensor, Result,
    autograd::plus,
    dispatch::call,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample},
};

/// Gradients of a convolution: those that were asked for, each in the shape of its operand.
#[derive(Clone, Debug)]
pub struct ConvGrads {
    /// Of the input.
    pub input: Option<DTensor>,
    /// Of the weights.
    pub weight: Option<DTensor>,
    /// Of the bias.
    pub bias: Option<DTensor>,
}

/// Gradients of input, weights and bias, as far as they are wanted, from input, weights and gradient.
///
/// What is cut as the convolution may be gives sums that are pending. Where spatial dims are cut, ranks fetch what their
/// outputs see, and the gradients of what sees their inputs: an exchange each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConvolveBackward {
    windows: Windows,
    /// Of input, weights and bias.
    wanted: [bool; 3],
}

impl Op for ConvolveBackward {
    fn name(&self) -> &'static str {
        if self.windows.is_transposed() { "conv_transpose_backward" } else { "conv_backward" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, weight, bias, out, sizes] = self.windows.letters(&operands[0]);
        let results = self.each_wanted([x.clone(), weight.clone(), bias]).join(", ");
        let text = format!("{x}, {weight}, {out} -> {results}{sizes}");
        rule(self.name(), &text, &[Law::LinearIn(2)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let Some(layout) = context.operand(0) else {
            return self.run(&self.windows, [x[0], x[1], x[2]], self.wanted);
        };
        if x.iter().any(|tensor| tensor.shape().contains(&0)) {
            // No sum has anything to add.
            let results = (0..).map_while(|number| context.result(number));
            return results
                .map(|of| filled(x[0], &of.local_shape(context.coord()), x[0].dtype(), 0.0))
                .collect();
        }
        let channel = self.windows.first(layout.n_dims()) - 1;
        let n_channels = layout.global_shape()[channel];
        let local = self.windows.local(x[0], n_channels, |_| false);
        let mut grads = self.run(&local, [x[0], x[1], x[2]], self.wanted)?;
        let channels = context.operand_range(0, channel, n_channels);
        if self.wanted[2]
            && !self.windows.adds_bias(channels, n_channels)
            && let Some(bias) = grads.last_mut()
        {
            *bias = bias.zeros_like()?;
        }
        Ok(grads)
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.windows.is_cut(operands[0]) || self.windows.is_cut(operands[2])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let n_dims = operands[0].n_dims();
        let row = |dim: usize| {
            let results = [format!("S({dim})"), "P(sum)".to_string(), "P(sum)".to_string()];
            format!("S({dim}) R S({dim}) -> {}", self.each_wanted(results).join(" "))
        };
        let rows: Vec<String> = (self.windows.first(n_dims)..n_dims).map(row).collect();
        let arranged = Arranged::new(self, operands, &rows)?;
        arranged.results(|coord| self.with_windows(&arranged, coord))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS)
    }

    /// A convolution is linear in the input and in the weights, and so are the gradients of both.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let [x, weight, grad] = [backward.operand(0)?, backward.operand(1)?, backward.operand(2)?];
        let mut number = 0;
        let of_results = self.wanted.map(|wanted| {
            let has = wanted && backward.has_grad(number);
            let of_result = has.then(|| backward.grad_of(number));
            number += usize::from(wanted);
            of_result.transpose()
        });
        let [of_input, of_weight, of_bias] = of_results;
        let (of_input, of_weight, of_bias) = (of_input?, of_weight?, of_bias?);
        let windows = &self.windows;
        let one = |operands: [&DTensor; 3], wanted: [bool; 2]| {
            let grads = bilinear_grads(windows, operands, wanted)?;
            Ok(grads.into_iter().flatten().next())
        };
        backward.each_or_none(|operand| match operand {
            0 => match &of_weight {
                Some(of_weight) => one([&x, of_weight, &grad], [true, false]),
                None => Ok(None),
            },
            1 => match &of_input {
                Some(of_input) => one([of_input, &weight, &grad], [false, true]),
                None => Ok(None),
            },
            _ => {
                let mut sum = match &of_input {
                    Some(of_input) => Some(convolve(windows.clone(), of_input, &weight, None)?),
                    None => None,
                };
                if let Some(of_weight) = &of_weight {
                    let more = convolve(windows.clone(), &x, of_weight, None)?;
                    sum = Some(plus(sum, more)?);
                }
                if let Some(of_bias) = &of_bias {
                    let mut shape = vec![1; grad.n_dims()];
                    shape[windows.first(grad.n_dims()) - 1] = -1;
                    let more = of_bias.reshape(&shape)?.expand(grad.shape())?;
                    sum = Some(plus(sum, more)?);
                }
                Ok(sum)
            }
        })
    }
}

/// Those gradients of input and weights that are wanted, from input, weights and gradient.
pub(super) fn bilinear_grads(
    windows: &Windows,
    operands: [&DTensor; 3],
    [input, weight]: [bool; 2],
) -> Result<[Option<DTensor>; 2]> {
    let wanted = WantedGrads { input, weight, bias: false };
    let ConvGrads { input, weight, .. } = backward(windows.clone(), operands, wanted)?;
    Ok([input, weight])
}

impl ConvolveBackward {
    fn each_wanted<T>(&self, all: [T; 3]) -> Vec<T> {
        let wanted = all.into_iter().zip(self.wanted).filter(|(_, wanted)| *wanted);
        wanted.map(|(one, _)| one).collect()
    }

    fn run(
        &self,
        windows: &Windows,
        [x, weight, grad]: [&Tensor; 3],
        [input, of_weight, bias]: [bool; 3],
    ) -> Result<Outputs, LocalError> {
        let wanted = WantedGrads { input, weight: of_weight, bias };
        let nn::ConvGrads { input, weight, bias } = windows.with(
            |settings| x.conv_backward(weight, grad, settings, wanted),
            |settings| x.conv_transpose_backward(weight, grad, settings, wanted),
        )?;
        Ok([input, weight, bias].into_iter().flatten().collect())
    }

    /// What a rank computes after it has fetched what it lacks.
    fn with_windows(&self, arranged: &Arranged, coord: &[usize]) -> Result<Outputs> {
        let [x, weight, grad] = &arranged.operands[..] else { return Ok(Outputs::new()) };
        let windows = &self.windows;
        let (first, cut) = (windows.first(x.n_dims()), windows.cut_dims(x.layout()));
        let n_channels = x.shape()[first - 1];
        let kernel = |dim: usize| weight.shape()[2 + dim - first];
        let local = windows.local(x.local(), n_channels, |dim| cut.contains(&dim));
        let seen_by = |of: &DTensor, coord: &[usize], dim: usize| {
            windows.seen(&held(of.layout(), dim, coord), dim - first, kernel(dim))
        };
        let nothing = |of: &DTensor| filled(of.local(), of.local().shape(), of.dtype(), 0.0);
        let [of_input, of_weight, of_bias] = self.wanted;
        let mut grads = Outputs::new();
        match windows.is_transposed() {
            true => {
                // An input is spread over a window of the result, whose gradient it sees.
                let window = |coord: &[usize], dim: usize| seen_by(x, coord, dim);
                let fetched = fetched(self.name(), grad, &cut, &window, 0.0)?;
                let operands = [x.local(), weight.local(), &fetched];
                if operands.iter().any(|operand| operand.shape().contains(&0)) {
                    let none = [(x, of_input), (weight, of_weight)].into_iter();
                    let none = none.filter(|(_, wanted)| *wanted).map(|(of, _)| nothing(of));
                    grads = none.collect::<Result<_, _>>()?;
                } else if of_input || of_weight {
                    grads = self.run(&local, operands, [of_input, of_weight, false])?;
                }
            }
            false => {
                if of_input {
                    grads.push(self.input_grad(arranged, &local, &cut, coord)?);
                }
                if of_weight {
                    let window = |coord: &[usize], dim: usize| seen_by(grad, coord, dim);
                    let fetched = fetched(self.name(), x, &cut, &window, 0.0)?;
                    let operands = [&fetched, weight.local(), grad.local()];
                    match operands.iter().any(|operand| operand.shape().contains(&0)) {
                        true => grads.push(nothing(weight)?),
                        false => {
                            grads.extend(self.run(&local, operands, [false, true, false])?);
                        }
                    }
                }
            }
        }
        if of_bias {
            let others = (0..grad.n_dims()).filter(|dim| *dim != first - 1);
            let others: Vec<isize> = others.map(|dim| dim as isize).collect();
            let bias = grad.local().sum(&others, false)?;
            let channels = held(x.layout(), first - 1, coord);
            grads.push(match windows.adds_bias(channels, n_channels) {
                true => bias,
                false => bias.zeros_like()?,
            });
        }
        Ok(grads)
    }

    /// The gradient of the inputs of a plain convolution that the rank holds, from those of the outputs that see them.
    fn input_grad(
        &self,
        arranged: &Arranged,
        local: &Windows,
        cut: &[usize],
        coord: &[usize],
    ) -> Result<Tensor> {
        let [x, weight, grad] = [0, 1, 2].map(|operand| &arranged.operands[operand]);
        let (windows, first) = (&self.windows, self.windows.first(x.n_dims()));
        let kernel = |dim: usize| weight.shape()[2 + dim - first];
        let seeing = |coord: &[usize], dim: usize| {
            let inputs = held(x.layout(), dim, coord);
            windows.seen_by(&inputs, dim - first, kernel(dim), grad.shape()[dim])
        };
        let window = |coord: &[usize], dim: usize| {
            let outputs = seeing(coord, dim);
            Window { start: outputs.start as isize, len: outputs.len() }
        };
        let fetched = fetched(self.name(), grad, cut, &window, 0.0)?;
        let seen = |dim: usize| windows.seen(&seeing(coord, dim), dim - first, kernel(dim));
        let mut shape = x.local().shape().to_vec();
        cut.iter().for_each(|dim| shape[*dim] = seen(*dim).len);
        let is_empty = [&shape[..], fetched.shape(), weight.local().shape(), x.local().shape()]
            .iter()
            .any(|shape| shape.contains(&0));
        if is_empty {
            return Ok(filled(x.local(), x.local().shape(), x.dtype(), 0.0)?);
        }
        // Of the input only the shape matters.
        let inputs = filled(x.local(), &shape, x.dtype(), 0.0)?;
        let operands = [&inputs, weight.local(), &fetched];
        let mut out = inputs.clone();
        if let Some(grad) = self.run(local, operands, [true, false, false])?.pop() {
            out = grad;
        }
        for dim in cut {
            let inputs = held(x.layout(), *dim, coord);
            let wanted = Window { start: inputs.start as isize, len: inputs.len() };
            out = cropped(&out, *dim, seen(*dim).start, wanted)?;
        }
        Ok(out)
    }
}

impl DTensor {
    /// Gradients of [`conv1d`](DTensor::conv1d), [`conv2d`](DTensor::conv2d) or [`conv3d`](DTensor::conv3d) (the weights
    /// say which) of `self`, given that of its result. Those of weights and bias are pending sums where batches or
    /// spatial dims are cut, that of the input where filters are.
    pub fn conv_backward(
        &self,
        weight: &DTensor,
        grad: &DTensor,
        settings: &Conv,
        wanted: WantedGrads,
    ) -> Result<ConvGrads> {
        backward(Windows::plain(n_spatial(weight), settings), [self, weight, grad], wanted)
    }

    /// Gradients of [`conv_transpose1d`](DTensor::conv_transpose1d), [`conv_transpose2d`](DTensor::conv_transpose2d) or
    /// [`conv_transpose3d`](DTensor::conv_transpose3d) (the weights say which) of `self`, given that of its result.
    pub fn conv_transpose_backward(
        &self,
        weight: &DTensor,
        grad: &DTensor,
        settings: &ConvTranspose,
        wanted: WantedGrads,
    ) -> Result<ConvGrads> {
        backward(Windows::transposed(n_spatial(weight), settings), [self, weight, grad], wanted)
    }
}

fn n_spatial(weight: &DTensor) -> usize {
    weight.n_dims().saturating_sub(2)
}

fn backward(windows: Windows, operands: [&DTensor; 3], wanted: WantedGrads) -> Result<ConvGrads> {
    let WantedGrads { input, weight, bias } = wanted;
    let mut grads = match input || weight || bias {
        true => call(&ConvolveBackward { windows, wanted: [input, weight, bias] }, &operands)?,
        false => Outputs::new(),
    }
    .into_iter();
    let mut next = |wanted: bool| if wanted { grads.next() } else { None };
    Ok(ConvGrads { input: next(input), weight: next(weight), bias: next(bias) })
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "conv_backward", samples: || samples(false) },
    OpRecord { name: "conv_transpose_backward", samples: || samples(true) },
];

fn samples(is_transposed: bool) -> Vec<Sample> {
    let cases = [1, 2].into_iter().flat_map(|n| sample_cases(n, is_transposed));
    let sample = |(windows, x, weight): (Windows, Vec<usize>, Vec<usize>)| {
        let grad = windows.result_shape(&x, &weight);
        let op = ConvolveBackward { windows, wanted: [true; 3] };
        Sample::new(op, &[&x, &weight, &grad])
    };
    let mut all: Vec<Sample> = cases.map(sample).collect();
    if let Some((windows, x, weight)) = sample_cases(1, is_transposed).into_iter().next() {
        let grad = windows.result_shape(&x, &weight);
        let op = ConvolveBackward { windows, wanted: [false, true, false] };
        all.push(Sample::new(op, &[&x, &weight, &grad]));
    }
    all
}
