//! Batch, group and instance normalisation against plain loops, gradients against finite differences.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{DType, LocalError, Tensor, set_threads};
use floats::{FLOATS, as_view, check, differences, noise, noisy, tensor, values};
use proptest::prelude::*;

const EPS: f64 = 1e-3;

/// Values of `[n, c, plane]`, weights and biases per channel.
struct Case<'a> {
    shape: [usize; 3],
    weight: &'a [f64],
    bias: &'a [f64],
}

impl Case<'_> {
    /// With the moments that `moments_of` gives for sample and channel.
    fn normalized(&self, x: &[f64], moments_of: impl Fn(usize, usize) -> (f64, f64)) -> Vec<f64> {
        let [_, c, plane] = self.shape;
        let value = |(i, x): (usize, &f64)| {
            let (sample, channel) = (i / plane / c, i / plane % c);
            let (mean, var) = moments_of(sample, channel);
            (x - mean) / (var + EPS).sqrt() * self.weight[channel] + self.bias[channel]
        };
        x.iter().enumerate().map(value).collect()
    }

    /// Mean and variance of the values whose sample and channel are chosen.
    fn moments(&self, x: &[f64], is_in: impl Fn(usize, usize) -> bool) -> (f64, f64) {
        let [_, c, plane] = self.shape;
        let chosen = x.iter().enumerate().filter(|(i, _)| is_in(i / plane / c, i / plane % c));
        let chosen: Vec<f64> = chosen.map(|(_, x)| *x).collect();
        let mean = chosen.iter().sum::<f64>() / chosen.len() as f64;
        (mean, chosen.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / chosen.len() as f64)
    }

    fn batch(&self, x: &[f64]) -> Vec<f64> {
        let moments: Vec<_> =
            (0..self.shape[1]).map(|c| self.moments(x, |_, other| other == c)).collect();
        self.normalized(x, |_, c| moments[c])
    }

    fn group(&self, x: &[f64], size: usize) -> Vec<f64> {
        let [n, c, _] = self.shape;
        let moments: Vec<_> = (0..n * c)
            .map(|i| {
                self.moments(x, |sample, channel| sample == i / c && channel / size == i % c / size)
            })
            .collect();
        self.normalized(x, |sample, channel| moments[sample * c + channel])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn norms_of_channels_are_plain_loops(
        n in 1usize..4, groups in 1usize..4, size in 1usize..4, plane in 2usize..40, which in 0usize..4,
        is_affine: bool, seed: u64,
    ) {
        let (dtype, c) = (FLOATS[which], groups * size);
        let x = noisy(&[n, c, plane], seed, dtype);
        let (w, b) = (noisy(&[c], seed ^ 1, dtype), noisy(&[c], seed ^ 2, dtype));
        let (weight, bias) = if is_affine { (values(&w), values(&b)) } else { (vec![1.0; c], vec![0.0; c]) };
        let (w, b) = if is_affine { (Some(&w), Some(&b)) } else { (None, None) };
        let case = Case { shape: [n, c, plane], weight: &weight, bias: &bias };
        let (y, stats) = as_view(&x).batch_norm(w, b, EPS).unwrap();
        check("batch_norm", &y, &case.batch(&values(&x)), 10.0);
        prop_assert_eq!(stats.count, n * plane);
        let y = as_view(&x).group_norm(groups, w, b, EPS).unwrap();
        check("group_norm", &y, &case.group(&values(&x), size), 10.0);
        let y = x.instance_norm(w, b, EPS).unwrap();
        check("instance_norm", &y, &case.group(&values(&x), 1), 10.0);
        let (mean, var) = (noise(c, seed ^ 3), noise(c, seed ^ 4).iter().map(|x| x.abs()).collect::<Vec<_>>());
        let y = x
            .batch_norm_eval(&tensor(&mean, &[c], DType::F64), &tensor(&var, &[c], DType::F64), w, b, EPS)
            .unwrap();
        check("batch_norm_eval", &y, &case.normalized(&values(&x), |_, c| (mean[c], var[c])), 10.0);
    }
}

#[test]
fn gradients_are_finite_differences() {
    let (n, c, plane) = (2, 4, 3);
    let (x, grad) = (noise(n * c * plane, 1), noise(n * c * plane, 2));
    let (weight, bias) = (noise(c, 3), noise(c, 4));
    fn case<'a>(weight: &'a [f64], bias: &'a [f64]) -> Case<'a> {
        Case { shape: [2, 4, 3], weight, bias }
    }
    let shape = [n, c, 1, plane];
    let (x_tensor, grad_tensor) =
        (tensor(&x, &shape, DType::F64), tensor(&grad, &shape, DType::F64));
    let w = tensor(&weight, &[c], DType::F64);
    let (mean, var) = (noise(c, 5), [0.5, 1.0, 2.0, 0.1]);
    let (running_mean, running_var) =
        (tensor(&mean, &[c], DType::F64), tensor(&var, &[c], DType::F64));
    let (_, stats) = x_tensor.batch_norm(Some(&w), None, EPS).unwrap();
    let batch = |case: &Case, x: &[f64]| case.batch(x);
    let group = |case: &Case, x: &[f64]| case.group(x, 2);
    let instance = |case: &Case, x: &[f64]| case.group(x, 1);
    let eval = |case: &Case, x: &[f64]| case.normalized(x, |_, c| (mean[c], var[c]));
    type Forward<'a> = &'a dyn Fn(&Case, &[f64]) -> Vec<f64>;
    let all: [(&str, Forward, _); 4] = [
        ("batch", &batch, x_tensor.batch_norm_backward(&grad_tensor, &stats, Some(&w), EPS)),
        ("group", &group, x_tensor.group_norm_backward(&grad_tensor, 2, Some(&w), EPS)),
        ("instance", &instance, x_tensor.instance_norm_backward(&grad_tensor, Some(&w), EPS)),
        (
            "eval",
            &eval,
            x_tensor.batch_norm_eval_backward(
                &grad_tensor,
                &running_mean,
                &running_var,
                Some(&w),
                EPS,
            ),
        ),
    ];
    for (name, f, grads) in all {
        let grads = grads.unwrap();
        let of_input = differences(&x, &grad, |x| f(&case(&weight, &bias), x));
        check(&format!("{name} input"), &grads.input, &of_input, 1e5);
        let of_weight = differences(&weight, &grad, |weight| f(&case(weight, &bias), &x));
        check(&format!("{name} weight"), &grads.weight, &of_weight, 1e5);
        let of_bias = differences(&bias, &grad, |bias| f(&case(&weight, bias), &x));
        check(&format!("{name} bias"), &grads.bias, &of_bias, 1e5);
        assert_eq!(grads.input.shape(), shape);
    }
}

#[test]
fn two_dims_are_samples_of_single_values() {
    let (x, grad) = (noisy(&[5, 3], 1, DType::F64), noisy(&[5, 3], 2, DType::F64));
    let deep = |x: &Tensor| x.unsqueeze(2).unwrap();
    let ((y, stats), (deep_y, deep_stats)) =
        (x.batch_norm(None, None, EPS).unwrap(), deep(&x).batch_norm(None, None, EPS).unwrap());
    check("result", &y, &values(&deep_y), 1.0);
    check("variance", &stats.var, &values(&deep_stats.var), 1.0);
    let grads = x.batch_norm_backward(&grad, &stats, None, EPS).unwrap();
    let deep_grads = deep(&x).batch_norm_backward(&deep(&grad), &stats, None, EPS).unwrap();
    check("gradient", &grads.input, &values(&deep_grads.input), 1.0);
    check("gradient of the weight", &grads.weight, &values(&deep_grads.weight), 1.0);
}

#[test]
fn running_statistics_move_by_the_momentum_with_the_unbiased_variance() {
    let x = Tensor::from_vec(vec![1.0_f32, 3.0, 0.0, 0.0], &[2, 1, 2]).unwrap();
    let (_, stats) = x.batch_norm(None, None, EPS).unwrap();
    let (mut mean, mut var) = (tensor(&[1.0], &[1], DType::F64), tensor(&[2.0], &[1], DType::Bf16));
    stats.update_running(&mut mean, &mut var, 0.25).unwrap();
    check("mean", &mean, &[1.0], 1.0);
    // The squares of 0, 2, -1, -1 over three.
    check("variance", &var, &[0.75 * 2.0 + 0.25 * 2.0], 1.0);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let (x, grad) =
        (noisy(&[7, 12, 50, 31], 1, DType::F32), noisy(&[7, 12, 50, 31], 2, DType::F32));
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for threads in [1, 3, 2] {
        set_threads(threads);
        let (y, stats) = x.batch_norm(None, None, EPS).unwrap();
        let grads = x.batch_norm_backward(&grad, &stats, None, EPS).unwrap();
        let group = x.group_norm_backward(&grad, 3, None, EPS).unwrap();
        let all = [y, stats.var, grads.input, grads.weight, group.input, group.weight];
        seen.push(all.iter().flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).collect());
    }
    assert!(seen[0] == seen[1] && seen[1] == seen[2]);
}

#[test]
fn meta_empty_and_misfitting_operands() {
    let meta = Tensor::meta(&[1 << 20, 6, 1 << 20], DType::F32).unwrap();
    let (y, stats) = meta.batch_norm(None, None, EPS).unwrap();
    assert!(y.is_meta() && stats.mean.shape() == [6]);
    assert_eq!(meta.group_norm_backward(&y, 2, None, EPS).unwrap().weight.shape(), [6]);
    let empty = Tensor::zeros(&[0, 6, 3], DType::F32).unwrap();
    assert_eq!(empty.batch_norm(None, None, EPS).unwrap().0.shape(), [0, 6, 3]);
    assert_eq!(empty.group_norm(3, None, None, EPS).unwrap().shape(), [0, 6, 3]);
    let grads = empty.group_norm_backward(&empty, 3, None, EPS).unwrap();
    assert_eq!(grads.weight.to_vec::<f32>().unwrap(), [0.0; 6]);
    let none = Tensor::zeros(&[2, 0, 3], DType::F32).unwrap();
    assert_eq!(none.group_norm(3, None, None, EPS).unwrap().numel(), 0);
    assert_eq!(none.batch_norm(None, None, EPS).unwrap().0.numel(), 0);

    let x = Tensor::zeros(&[1, 6, 1], DType::F32).unwrap();
    assert!(matches!(x.batch_norm(None, None, EPS), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(x.instance_norm(None, None, EPS), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(x.group_norm(4, None, None, EPS), Err(LocalError::BadNumber { .. })));
    assert!(matches!(x.group_norm(0, None, None, EPS), Err(LocalError::BadNumber { .. })));
    assert!(matches!(x.group_norm(2, Some(&y), None, EPS), Err(LocalError::ShapeMismatch { .. })));
    let line = Tensor::zeros(&[6], DType::F32).unwrap();
    assert!(matches!(line.batch_norm(None, None, EPS), Err(LocalError::ShapeMismatch { .. })));
}
