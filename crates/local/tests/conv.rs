//! Convolutions against plain loops, their gradients by the identity of adjoints.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Result, Tensor,
    nn::{Conv, ConvTranspose, WantedGrads},
    set_threads,
};
use floats::{FLOATS, as_view, check, dot, noisy, values};
use proptest::prelude::*;

/// One convolution.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    groups: usize,
    /// Per group.
    channels: usize,
    filters: usize,
    /// Per spatial dim: input, kernel, stride, padding, dilation, output padding.
    dims: Vec<[usize; 6]>,
    seed: u64,
}

impl Case {
    fn setting(&self, which: usize) -> Vec<usize> {
        self.dims.iter().map(|dim| dim[which]).collect()
    }

    fn with(&self, batch: [usize; 2], spatial: impl IntoIterator<Item = usize>) -> Vec<usize> {
        batch.into_iter().chain(spatial).collect()
    }

    fn input_shape(&self) -> Vec<usize> {
        self.with([self.batch, self.groups * self.channels], self.setting(0))
    }

    fn weight_shape(&self) -> Vec<usize> {
        self.with([self.groups * self.filters, self.channels], self.setting(1))
    }

    fn output_shape(&self) -> Vec<usize> {
        let size = |[input, kernel, stride, padding, dilation, _]: &[usize; 6]| {
            (input + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1
        };
        self.with([self.batch, self.groups * self.filters], self.dims.iter().map(size))
    }

    /// Every triple of an input, a weight and an output that meet, in plain loops.
    fn each(&self, mut meet: impl FnMut(usize, usize, usize)) {
        let [input, weight, output] =
            [self.input_shape(), self.weight_shape(), self.output_shape()];
        for to in indices(&output) {
            for tap in indices(&weight[1..]) {
                let channel = to[1] / self.filters * self.channels + tap[0];
                let mut from = vec![to[0], channel];
                for (dim, [_, _, stride, padding, dilation, _]) in self.dims.iter().enumerate() {
                    from.push(
                        (to[dim + 2] * stride + tap[dim + 1] * dilation).wrapping_sub(*padding),
                    );
                }
                if from.iter().zip(&input).all(|(index, size)| index < size) {
                    let tap: Vec<usize> = [to[1]].into_iter().chain(tap).collect();
                    meet(flat(&from, &input), flat(&tap, &weight), flat(&to, &output));
                }
            }
        }
    }

    fn conv(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let [stride, padding, dilation] = [2, 3, 4].map(|which| self.setting(which));
        let settings =
            Conv { stride: &stride, padding: &padding, dilation: &dilation, groups: self.groups };
        match self.dims.len() {
            1 => x.conv1d(weight, bias, &settings),
            2 => x.conv2d(weight, bias, &settings),
            _ => x.conv3d(weight, bias, &settings),
        }
    }

    /// From the output to the input.
    fn transposed(&self, y: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let [stride, padding, dilation, more] = [2, 3, 4, 5].map(|which| self.setting(which));
        let conv =
            Conv { stride: &stride, padding: &padding, dilation: &dilation, groups: self.groups };
        let settings = ConvTranspose { conv, output_padding: &more };
        match self.dims.len() {
            1 => y.conv_transpose1d(weight, bias, &settings),
            2 => y.conv_transpose2d(weight, bias, &settings),
            _ => y.conv_transpose3d(weight, bias, &settings),
        }
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, size| {
        all.iter().flat_map(|index| (0..*size).map(|i| [&index[..], &[i]].concat())).collect()
    })
}

fn flat(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (index, size)| flat * size + index)
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn cases() -> impl Strategy<Value = Case> {
    let dim = (1usize..4, 1usize..4, 0usize..3, 1usize..3, 0usize..7).prop_map(
        |(kernel, stride, padding, dilation, room)| {
            let extent = dilation * (kernel - 1) + 1;
            let input = (extent + room).saturating_sub(2 * padding).max(1);
            // What is left over behind the last window is what a transposed convolution must add.
            let more = (input + 2 * padding - extent) % stride;
            [input, kernel, stride, padding, dilation, more]
        },
    );
    let dims = prop::collection::vec(dim, 1..4);
    (0usize..3, 1usize..4, 1usize..4, 1usize..4, dims, any::<u64>()).prop_map(
        |(batch, groups, channels, filters, dims, seed)| Case {
            batch,
            groups,
            channels,
            filters,
            dims,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn convolutions_are_plain_loops(case in cases(), which in 0usize..4, has_bias: bool) {
        let dtype = FLOATS[which];
        let (x, weight) =
            (noisy(&case.input_shape(), case.seed, dtype), noisy(&case.weight_shape(), case.seed ^ 1, dtype));
        let n_filters = case.groups * case.filters;
        let bias = noisy(&[n_filters], case.seed ^ 2, dtype);
        let output = case.output_shape();
        let plane = numel(&output[2..]);
        let (xs, weights, biases) = (values(&x), values(&weight), values(&bias));
        let start = |i: usize| if has_bias { biases[i / plane % n_filters] } else { 0.0 };
        let mut want: Vec<f64> = (0..numel(&output)).map(start).collect();
        case.each(|from, tap, to| want[to] += xs[from] * weights[tap]);
        let y = case.conv(&as_view(&x), &as_view(&weight), has_bias.then_some(&bias)).unwrap();
        prop_assert_eq!(y.shape(), output);
        check("conv", &y, &want, 4.0);
        if case.batch == 1 {
            let y = case.conv(&x.squeeze(0).unwrap(), &weight, has_bias.then_some(&bias)).unwrap();
            prop_assert_eq!(y.shape(), &case.output_shape()[1..]);
            check("without a batch", &y, &want, 4.0);
        }
    }

    #[test]
    fn transposed_convolutions_are_plain_loops(case in cases(), which in 0usize..4, has_bias: bool) {
        let dtype = FLOATS[which];
        let (y, weight) =
            (noisy(&case.output_shape(), case.seed, dtype), noisy(&case.weight_shape(), case.seed ^ 1, dtype));
        let n_channels = case.groups * case.channels;
        let bias = noisy(&[n_channels], case.seed ^ 2, dtype);
        let input = case.input_shape();
        let plane = numel(&input[2..]);
        let (ys, weights, biases) = (values(&y), values(&weight), values(&bias));
        let start = |i: usize| if has_bias { biases[i / plane % n_channels] } else { 0.0 };
        let mut want: Vec<f64> = (0..numel(&input)).map(start).collect();
        case.each(|from, tap, to| want[from] += ys[to] * weights[tap]);
        let x = case.transposed(&as_view(&y), &weight, has_bias.then_some(&bias)).unwrap();
        prop_assert_eq!(x.shape(), input);
        check("conv_transpose", &x, &want, 4.0);
    }

    /// A convolution is linear in its input and in its weights, so its gradients are the adjoints:
    /// `<grad, conv(x, w)> = <grad of x, x> = <grad of w, w>` for any `x` and `w`.
    #[test]
    fn gradients_are_adjoints(case in cases(), which in 0usize..4) {
        let dtype = FLOATS[which];
        let [input, weights, output] = [case.input_shape(), case.weight_shape(), case.output_shape()];
        let [x, w, y] = [(&input, 1), (&weights, 2), (&output, 3)].map(|(shape, i)| noisy(shape, case.seed ^ i, dtype));
        let [xs, ws, ys] = [values(&x), values(&w), values(&y)];
        let mut want = [vec![0.0; xs.len()], vec![0.0; ws.len()], vec![0.0; ys.len()]];
        case.each(|from, tap, to| {
            want[0][from] += ys[to] * ws[tap];
            want[1][tap] += ys[to] * xs[from];
            want[2][to] += xs[from] * ws[tap];
        });
        let sums = |values: &[f64], shape: &[usize]| -> Vec<f64> {
            let plane = numel(&shape[2..]);
            (0..shape[1]).map(|c| (0..shape[0]).map(|n| values[(n * shape[1] + c) * plane..][..plane].iter().sum::<f64>()).sum()).collect()
        };
        let [stride, padding, dilation, more] = [2, 3, 4, 5].map(|which| case.setting(which));
        let conv = Conv { stride: &stride, padding: &padding, dilation: &dilation, groups: case.groups };
        let grads = x.conv_backward(&w, &as_view(&y), &conv, WantedGrads::ALL).unwrap();
        check("input", grads.input.as_ref().unwrap(), &want[0], 4.0);
        check("weight", grads.weight.as_ref().unwrap(), &want[1], 10.0);
        check("bias", grads.bias.as_ref().unwrap(), &sums(&ys, &output), 10.0);
        prop_assert_eq!(grads.weight.as_ref().unwrap().shape(), weights);
        let settings = ConvTranspose { conv, output_padding: &more };
        let grads = y.conv_transpose_backward(&w, &x, &settings, WantedGrads::ALL).unwrap();
        check("transposed input", grads.input.as_ref().unwrap(), &want[2], 4.0);
        check("transposed weight", grads.weight.as_ref().unwrap(), &want[1], 10.0);
        check("transposed bias", grads.bias.as_ref().unwrap(), &sums(&xs, &input), 10.0);
    }
}

/// Sizes at which inputs and weights are divided into several tiles and blocks, unevenly.
fn large() -> Vec<Case> {
    let case = |batch, groups, channels, filters, dims: &[[usize; 6]]| {
        let (dims, seed) = (dims.to_vec(), 7);
        Case { batch, groups, channels, filters, dims, seed }
    };
    vec![
        case(2, 1, 9, 40, &[[25, 3, 1, 1, 1, 0], [29, 3, 1, 1, 1, 0]]),
        case(9, 2, 33, 35, &[[7, 3, 2, 1, 1, 0], [7, 3, 1, 0, 2, 0]]),
        case(3, 40, 1, 2, &[[30, 3, 1, 1, 1, 0], [31, 5, 2, 2, 1, 0]]),
        case(1, 1, 3, 40, &[[3000, 5, 1, 2, 1, 0]]),
    ]
}

#[test]
fn tiles_fit_together() {
    for case in large() {
        let [input, weights, output] =
            [case.input_shape(), case.weight_shape(), case.output_shape()];
        let [x, w, y] = [(&input, 1), (&weights, 2), (&output, 3)]
            .map(|(shape, i)| noisy(shape, i, DType::F64));
        let out = values(&case.conv(&x, &w, None).unwrap());
        let [xs, ws, ys] = [values(&x), values(&w), values(&y)];
        let mut want = vec![0.0; out.len()];
        case.each(|from, tap, to| want[to] += xs[from] * ws[tap]);
        assert!(out.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-9), "{case:?}");
        let [stride, padding, dilation] = [2, 3, 4].map(|which| case.setting(which));
        let conv =
            Conv { stride: &stride, padding: &padding, dilation: &dilation, groups: case.groups };
        let grads = x.conv_backward(&w, &y, &conv, WantedGrads::ALL).unwrap();
        let product = dot(&want, &ys);
        for (grad, operand) in [(grads.input, &xs), (grads.weight, &ws)] {
            let other = dot(&values(&grad.unwrap()), operand);
            assert!(
                (other - product).abs() < 1e-8 * product.abs().max(1.0),
                "{case:?}: {other} {product}"
            );
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for case in large() {
        let [input, weights, output] =
            [case.input_shape(), case.weight_shape(), case.output_shape()];
        let [x, w, y] = [(&input, 1), (&weights, 2), (&output, 3)]
            .map(|(shape, i)| noisy(shape, i, DType::F32));
        let [stride, padding, dilation] = [2, 3, 4].map(|which| case.setting(which));
        let conv =
            Conv { stride: &stride, padding: &padding, dilation: &dilation, groups: case.groups };
        let mut seen: Vec<Vec<f32>> = Vec::new();
        for threads in [1, 3, 2] {
            set_threads(threads);
            let grads = x.conv_backward(&w, &y, &conv, WantedGrads::ALL).unwrap();
            let all = [
                case.conv(&x, &w, None).unwrap(),
                grads.input.unwrap(),
                grads.weight.unwrap(),
                grads.bias.unwrap(),
            ];
            seen.push(all.iter().flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).collect());
        }
        assert!(seen[0] == seen[1] && seen[1] == seen[2], "{case:?}");
    }
}

#[test]
fn only_the_gradients_that_are_wanted_are_computed() {
    let x = noisy(&[1, 2, 5], 1, DType::F32);
    let (w, y) = (noisy(&[3, 2, 2], 2, DType::F32), noisy(&[1, 3, 4], 3, DType::F32));
    let wanted = WantedGrads { input: false, weight: true, bias: false };
    let grads = x.conv_backward(&w, &y, &Conv::default(), wanted).unwrap();
    assert!(grads.input.is_none() && grads.weight.is_some() && grads.bias.is_none());
}

#[test]
fn no_channels_give_the_bias_and_no_filters_nothing() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32).unwrap();
    let bias = Tensor::from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
    let y = zeros(&[1, 0, 3]).conv1d(&zeros(&[2, 0, 2]), Some(&bias), &Conv::default()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0]);
    let y = zeros(&[1, 2, 3]).conv1d(&zeros(&[0, 2, 2]), None, &Conv::default()).unwrap();
    assert_eq!(y.shape(), [1, 0, 2]);
    let grads = zeros(&[0, 2, 3])
        .conv_backward(
            &Tensor::full(&[2, 2, 2], 1.0_f32).unwrap(),
            &zeros(&[0, 2, 2]),
            &Conv::default(),
            WantedGrads::ALL,
        )
        .unwrap();
    assert_eq!(grads.weight.unwrap().to_vec::<f32>().unwrap(), [0.0; 8]);
    assert_eq!(grads.bias.unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
}

#[test]
fn meta_operands_give_shapes_and_misfits_are_errors() {
    let meta = |shape: &[usize]| Tensor::meta(shape, DType::F32).unwrap();
    let (x, w) = (meta(&[1 << 20, 4, 512, 512]), meta(&[6, 2, 3, 3]));
    let settings = Conv { stride: &[2], padding: &[1], groups: 2, ..Conv::default() };
    let y = x.conv2d(&w, Some(&meta(&[6])), &settings).unwrap();
    assert!(y.is_meta());
    assert_eq!(y.shape(), [1 << 20, 6, 256, 256]);
    let grads = x.conv_backward(&w, &y, &settings, WantedGrads::ALL).unwrap();
    assert_eq!(grads.bias.unwrap().shape(), [6]);
    let transposed = ConvTranspose { conv: settings, output_padding: &[1] };
    assert_eq!(y.conv_transpose2d(&w, None, &transposed).unwrap().shape(), x.shape());

    let plain = Conv::default();
    let mismatch =
        |result: Result<Tensor>| assert!(matches!(result, Err(LocalError::ShapeMismatch { .. })));
    mismatch(x.conv2d(&w, None, &plain));
    mismatch(x.conv1d(&w, None, &settings));
    mismatch(x.conv2d(&w, Some(&meta(&[5])), &settings));
    mismatch(meta(&[1, 4, 2, 2]).conv2d(&w, None, &Conv { groups: 2, ..plain }));
    mismatch(meta(&[1, 4, 0, 3]).conv2d(&w, None, &Conv { groups: 2, ..plain }));
    let bad = |settings: Conv| {
        assert!(
            matches!(x.conv2d(&w, None, &settings), Err(LocalError::BadNumber { .. })),
            "{settings:?}"
        );
    };
    bad(Conv { groups: 0, ..plain });
    bad(Conv { groups: 4, ..plain });
    bad(Conv { stride: &[0], groups: 2, ..plain });
    bad(Conv { dilation: &[0, 1], groups: 2, ..plain });
    bad(Conv { padding: &[usize::MAX], groups: 2, ..plain });
    bad(Conv { padding: &[1, 1, 1], groups: 2, ..plain });
    let too_much = ConvTranspose { conv: settings, output_padding: &[2] };
    assert!(matches!(y.conv_transpose2d(&w, None, &too_much), Err(LocalError::BadNumber { .. })));
    let ids = Tensor::zeros(&[1, 4, 5, 5], DType::I64).unwrap();
    assert!(matches!(ids.conv2d(&w, None, &settings), Err(LocalError::NotFloat { .. })));
}
