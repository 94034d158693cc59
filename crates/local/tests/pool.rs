//! Pooling against plain loops, against PyTorch at its edges, and its gradients.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Result, Tensor,
    nn::{AvgPool, MaxPool},
};
use floats::{FLOATS, as_view, check, noisy, tensor, values};
use proptest::prelude::*;
use serde_json::Value;

fn max_pool(x: &Tensor, n: usize, settings: &MaxPool) -> Result<(Tensor, Tensor)> {
    match n {
        1 => x.max_pool1d(settings),
        2 => x.max_pool2d(settings),
        _ => x.max_pool3d(settings),
    }
}

fn avg_pool(x: &Tensor, n: usize, settings: &AvgPool) -> Result<Tensor> {
    match n {
        1 => x.avg_pool1d(settings),
        2 => x.avg_pool2d(settings),
        _ => x.avg_pool3d(settings),
    }
}

fn adaptive_max_pool(x: &Tensor, n: usize, size: &[usize]) -> Result<(Tensor, Tensor)> {
    match n {
        1 => x.adaptive_max_pool1d(size),
        2 => x.adaptive_max_pool2d(size),
        _ => x.adaptive_max_pool3d(size),
    }
}

fn adaptive_avg_pool(x: &Tensor, n: usize, size: &[usize]) -> Result<Tensor> {
    match n {
        1 => x.adaptive_avg_pool1d(size),
        2 => x.adaptive_avg_pool2d(size),
        _ => x.adaptive_avg_pool3d(size),
    }
}

/// What one output of one dim sees: elements, and how many with the padding.
type Seen = (Vec<usize>, usize);

/// Windows of one dim of `size`, found by trying: `[kernel, stride, padding, dilation]`.
fn sliding(
    size: usize,
    [kernel, stride, padding, dilation]: [usize; 4],
    ceil_mode: bool,
) -> Vec<Seen> {
    let mut outputs = Vec::new();
    for start in (0..).step_by(stride) {
        let end = start + dilation * (kernel - 1) + 1;
        let padded = size + 2 * padding;
        let fits = end <= padded;
        // Rounded up, the last window may reach beyond, if it is the first to do so and begins before the padding
        // behind the input.
        let reaches = ceil_mode && end < padded + stride && start < size + padding;
        if !(fits || reaches) {
            return outputs;
        }
        let taps = (0..kernel).map(|tap| start + tap * dilation);
        let elements =
            taps.filter(|at| (padding..padding + size).contains(at)).map(|at| at - padding);
        outputs.push((elements.collect(), end.min(padded) - start));
    }
    outputs
}

fn adaptive(size: usize, n: usize) -> Vec<Seen> {
    let output = |i: usize| {
        let elements: Vec<usize> =
            (0..size).filter(|e| (e + 1) * n > i * size && e * n < (i + 1) * size).collect();
        let count = elements.len();
        (elements, count)
    };
    (0..n).map(output).collect()
}

/// For every output of a plane, the flat indices that it sees, and how many with padding.
fn windows(input: &[usize], dims: &[Vec<Seen>]) -> Vec<Seen> {
    dims.iter().zip(input).fold(vec![(vec![0], 1)], |all, (dim, size)| {
        let joined = |(outer, n): &Seen, (inner, m): &Seen| {
            let flat = outer.iter().flat_map(|o| inner.iter().map(move |i| o * size + i));
            (flat.collect::<Vec<usize>>(), n * m)
        };
        all.iter().flat_map(|outer| dim.iter().map(move |inner| joined(outer, inner))).collect()
    })
}

#[derive(Clone, Debug)]
struct Case {
    /// Samples and channels.
    planes: [usize; 2],
    input: Vec<usize>,
    /// Per dim: kernel, stride, padding, dilation.
    dims: Vec<[usize; 4]>,
    ceil_mode: bool,
    seed: u64,
}

impl Case {
    fn shape(&self) -> Vec<usize> {
        self.planes.iter().chain(&self.input).copied().collect()
    }

    fn setting(&self, which: usize) -> Vec<usize> {
        self.dims.iter().map(|dim| dim[which]).collect()
    }

    fn windows(&self, dilates: bool) -> Vec<Seen> {
        let dims: Vec<_> = self
            .input
            .iter()
            .zip(&self.dims)
            .map(|(size, [k, s, p, d])| {
                sliding(*size, [*k, *s, *p, if dilates { *d } else { 1 }], self.ceil_mode)
            })
            .collect();
        windows(&self.input, &dims)
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let dim =
        (1usize..4, 1usize..4, 0usize..2, 1usize..3, 0usize..6).prop_map(|(k, s, p, d, room)| {
            let p = p.min(k / 2);
            let input = (d * (k - 1) + 1 + room).saturating_sub(2 * p).max(1);
            (input, [k, s, p, d])
        });
    (0usize..3, 0usize..3, prop::collection::vec(dim, 1..4), any::<bool>(), any::<u64>()).prop_map(
        |(n, c, dims, ceil_mode, seed)| {
            let (input, dims) = dims.into_iter().unzip();
            Case { planes: [n, c], input, dims, ceil_mode, seed }
        },
    )
}

/// The largest of every window and where it is.
fn largest(x: &[f64], plane: usize, windows: &[Seen]) -> (Vec<f64>, Vec<i64>) {
    let of = |x: &[f64], seen: &[usize]| {
        seen.iter().fold((f64::NEG_INFINITY, -1), |(best, at), i| {
            if at < 0 || x[*i] > best { (x[*i], *i as i64) } else { (best, at) }
        })
    };
    x.chunks(plane).flat_map(|x| windows.iter().map(move |(seen, _)| of(x, seen))).unzip()
}

fn means(x: &[f64], plane: usize, windows: &[Seen], divisor: impl Fn(&Seen) -> f64) -> Vec<f64> {
    let mean = |x: &[f64], window: &Seen| {
        let sum: f64 = window.0.iter().map(|i| x[*i]).sum();
        if window.0.is_empty() { 0.0 } else { sum / divisor(window) }
    };
    x.chunks(plane)
        .flat_map(|x| windows.iter().map(|window| mean(x, window)).collect::<Vec<_>>())
        .collect()
}

/// The gradient of a mean, by giving every element its share.
fn shares(
    grad: &[f64],
    plane: usize,
    windows: &[Seen],
    divisor: impl Fn(&Seen) -> f64,
) -> Vec<f64> {
    let mut out = Vec::new();
    for grad in grad.chunks(windows.len().max(1)) {
        let mut x = vec![0.0; plane];
        for (grad, window) in grad.iter().zip(windows) {
            window.0.iter().for_each(|i| x[*i] += grad / divisor(window));
        }
        out.extend(x);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn max_pools_are_plain_loops(case in cases(), which in 0usize..4) {
        let x = noisy(&case.shape(), case.seed, FLOATS[which]);
        let [kernel, stride, padding, dilation] = [0, 1, 2, 3].map(|which| case.setting(which));
        let settings = MaxPool {
            kernel: &kernel, stride: &stride, padding: &padding, dilation: &dilation, ceil_mode: case.ceil_mode,
        };
        let (n, plane) = (case.dims.len(), case.input.iter().product());
        let (y, indices) = max_pool(&as_view(&x), n, &settings).unwrap();
        let windows = case.windows(true);
        let (want, want_indices) = largest(&values(&x), plane, &windows);
        check("values", &y, &want, 0.0);
        prop_assert_eq!(indices.to_vec::<i64>().unwrap(), want_indices.clone());
        if case.planes[0] == 1 {
            let (alone, _) = max_pool(&x.squeeze(0).unwrap(), n, &settings).unwrap();
            prop_assert_eq!(alone.shape(), &y.shape()[1..]);
            check("without a batch", &alone, &want, 0.0);
        }
        let grad = noisy(y.shape(), case.seed ^ 1, FLOATS[which]);
        let got = grad.max_pool_backward(&indices, &case.input).unwrap();
        let mut sums = vec![0.0; x.numel()];
        for (i, (grad, at)) in values(&grad).iter().zip(want_indices).enumerate() {
            if at >= 0 {
                sums[i / windows.len() * plane + at as usize] += grad;
            }
        }
        prop_assert_eq!(got.shape(), x.shape());
        check("gradient", &got, &sums, 1.0);
    }

    #[test]
    fn avg_pools_are_plain_loops(case in cases(), which in 0usize..4, include: bool, constant in prop::option::of(1usize..9)) {
        let x = noisy(&case.shape(), case.seed, FLOATS[which]);
        let [kernel, stride, padding] = [0, 1, 2].map(|which| case.setting(which));
        let settings = AvgPool {
            kernel: &kernel, stride: &stride, padding: &padding, ceil_mode: case.ceil_mode,
            count_include_pad: include, divisor_override: constant,
        };
        let divisor = |(seen, padded): &Seen| {
            constant.unwrap_or(if include { *padded } else { seen.len() }) as f64
        };
        let (n, plane) = (case.dims.len(), case.input.iter().product());
        let windows = case.windows(false);
        let y = avg_pool(&as_view(&x), n, &settings).unwrap();
        check("values", &y, &means(&values(&x), plane, &windows, divisor), 1.0);
        let grad = noisy(y.shape(), case.seed ^ 1, FLOATS[which]);
        let got = grad.avg_pool_backward(&case.input, &settings).unwrap();
        check("gradient", &got, &shares(&values(&grad), plane, &windows, divisor), 1.0);
    }

    #[test]
    fn adaptive_pools_are_plain_loops(case in cases(), which in 0usize..4, outputs in prop::collection::vec(0usize..6, 3)) {
        let x = noisy(&case.shape(), case.seed, FLOATS[which]);
        let n = case.input.len();
        let outputs = &outputs[..n];
        let dims: Vec<_> = case.input.iter().zip(outputs).map(|(size, n)| adaptive(*size, *n)).collect();
        let (windows, plane) = (windows(&case.input, &dims), case.input.iter().product());
        let divisor = |(seen, _): &Seen| seen.len() as f64;
        let y = adaptive_avg_pool(&as_view(&x), n, outputs).unwrap();
        prop_assert_eq!(&y.shape()[2..], outputs);
        check("means", &y, &means(&values(&x), plane, &windows, divisor), 1.0);
        let grad = noisy(y.shape(), case.seed ^ 1, FLOATS[which]);
        let got = grad.adaptive_avg_pool_backward(&case.input).unwrap();
        let want = shares(&values(&grad), plane, &windows, divisor);
        let nothing = vec![0.0; x.numel()];
        check("gradient", &got, if windows.is_empty() { &nothing } else { &want }, 1.0);
        let (y, indices) = adaptive_max_pool(&x, n, outputs).unwrap();
        let (want, want_indices) = largest(&values(&x), plane, &windows);
        check("largest", &y, &want, 0.0);
        prop_assert_eq!(indices.to_vec::<i64>().unwrap(), want_indices);
    }
}

#[test]
fn edges_are_those_of_pytorch() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/pooling.json")).unwrap();
    assert!(cases.len() > 100);
    for case in &cases {
        let sizes = |name: &str| -> Vec<usize> {
            let list = case[name].as_array().into_iter().flatten();
            list.map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let numbers = |name: &str| -> Vec<f64> {
            let number = |n: &Value| n.as_f64().or_else(|| n.as_str()?.parse().ok()).unwrap();
            case[name].as_array().unwrap().iter().map(number).collect()
        };
        let shape = sizes("shape");
        let (x, n) = (tensor(&numbers("x"), &shape, DType::F64), shape.len() - 2);
        let [kernel, stride, padding, dilation] =
            ["kernel", "stride", "padding", "dilation"].map(sizes);
        let ceil_mode = case["ceil_mode"].as_bool().unwrap_or(false);
        let (y, indices) = match case["op"].as_str().unwrap() {
            "max_pool" => {
                let settings = MaxPool {
                    kernel: &kernel,
                    stride: &stride,
                    padding: &padding,
                    dilation: &dilation,
                    ceil_mode,
                };
                max_pool(&x, n, &settings).map(|(y, indices)| (y, Some(indices)))
            }
            "avg_pool" => {
                let settings = AvgPool {
                    kernel: &kernel,
                    stride: &stride,
                    padding: &padding,
                    ceil_mode,
                    count_include_pad: case["count_include_pad"].as_bool().unwrap(),
                    divisor_override: case["divisor_override"].as_u64().map(|n| n as usize),
                };
                avg_pool(&x, n, &settings).map(|y| (y, None))
            }
            "adaptive_max_pool" => {
                adaptive_max_pool(&x, n, &sizes("size")).map(|(y, indices)| (y, Some(indices)))
            }
            _ => adaptive_avg_pool(&x, n, &sizes("size")).map(|y| (y, None)),
        }
        .unwrap();
        assert_eq!(y.shape(), sizes("out"), "{case}");
        check(&case.to_string(), &y, &numbers("y"), 1.0);
        if let Some(indices) = indices {
            let want: Vec<i64> = numbers("indices").iter().map(|i| *i as i64).collect();
            assert_eq!(indices.to_vec::<i64>().unwrap(), want, "{case}");
        }
    }
}

#[test]
fn a_window_of_padding_alone_has_no_index_and_no_gradient() {
    let x = Tensor::full(&[1, 1, 1], 1.0_f32).unwrap();
    let settings =
        MaxPool { kernel: &[2], stride: &[1], padding: &[1], dilation: &[2], ceil_mode: false };
    let (y, indices) = x.max_pool1d(&settings).unwrap();
    assert_eq!((y.item::<f32>().unwrap(), indices.item::<i64>().unwrap()), (f32::NEG_INFINITY, -1));
    let grad = y.max_pool_backward(&indices, &[1]).unwrap();
    assert_eq!(grad.item::<f32>().unwrap(), 0.0);
}

#[test]
fn meta_operands_give_shapes_and_misfits_are_errors() {
    let meta = |shape: &[usize]| Tensor::meta(shape, DType::Bf16).unwrap();
    let x = meta(&[2, 3, 1 << 40]);
    let pool = MaxPool { kernel: &[2], ..MaxPool::default() };
    let (y, indices) = x.max_pool1d(&pool).unwrap();
    assert_eq!((y.shape(), indices.dtype()), (&[2, 3, 1 << 39][..], DType::I64));
    assert_eq!(y.max_pool_backward(&indices, &[1 << 40]).unwrap().shape(), x.shape());
    let pool = AvgPool { kernel: &[3], ..AvgPool::default() };
    let y = x.avg_pool1d(&pool).unwrap();
    assert_eq!(y.avg_pool_backward(&[1 << 40], &pool).unwrap().shape(), x.shape());

    let x = meta(&[2, 3, 5, 5]);
    let bad = |settings: MaxPool| {
        assert!(
            matches!(x.max_pool2d(&settings), Err(LocalError::BadNumber { .. })),
            "{settings:?}"
        );
    };
    let plain = MaxPool { kernel: &[3], ..MaxPool::default() };
    bad(MaxPool { padding: &[2], ..plain });
    bad(MaxPool { kernel: &[0], ..plain });
    bad(MaxPool { kernel: &[1, 2, 3], ..plain });
    bad(MaxPool { stride: &[0], ..plain });
    let mismatch =
        |result: Result<Tensor>| assert!(matches!(result, Err(LocalError::ShapeMismatch { .. })));
    mismatch(x.avg_pool2d(&AvgPool { kernel: &[6], ..AvgPool::default() }));
    mismatch(x.avg_pool3d(&AvgPool::default()).and_then(|_| x.avg_pool1d(&AvgPool::default())));
    mismatch(meta(&[2, 3, 0, 5]).adaptive_avg_pool2d(&[2]));
    mismatch(x.avg_pool_backward(&[9, 9], &AvgPool::default()));
    let ids = Tensor::zeros(&[1, 4, 5], DType::I64).unwrap();
    assert!(matches!(ids.avg_pool1d(&AvgPool::default()), Err(LocalError::NotFloat { .. })));
    let grad = Tensor::zeros(&[1, 1, 2], DType::F32).unwrap();
    let indices = Tensor::from_vec(vec![0_i64, 7], &[1, 1, 2]).unwrap();
    assert!(matches!(
        grad.max_pool_backward(&indices, &[7]),
        Err(LocalError::IndexOutOfRange { .. })
    ));
}
