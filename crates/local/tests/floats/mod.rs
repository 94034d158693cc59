//! What tests of floating-point kernels share: values, tensors of them in any dtype, and comparisons.
#![allow(dead_code)] // Every test file uses a part of it.

use dtensor_local::{DType, Tensor, bf16, f16};

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];

/// Values that look random and are the same every time.
pub fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64 * 4.0 - 2.0
        })
        .collect()
}

pub fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_vec(values.iter().map(|x| *x as f32).collect(), shape),
        DType::Bf16 => Tensor::from_vec(values.iter().map(|x| bf16::from_f64(*x)).collect(), shape),
        DType::F16 => Tensor::from_vec(values.iter().map(|x| f16::from_f64(*x)).collect(), shape),
        _ => Tensor::from_vec(values.to_vec(), shape),
    }
    .unwrap()
}

/// A tensor of [`noise`].
pub fn noisy(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    tensor(&noise(shape.iter().product(), seed), shape, dtype)
}

pub fn values(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        DType::Bf16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(f64::from).collect(),
        DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(f64::from).collect(),
        _ => tensor.to_vec::<f64>().unwrap(),
    }
}

/// The same values as a view whose last two dims lie in memory the other way round.
pub fn as_view(tensor: &Tensor) -> Tensor {
    if tensor.n_dims() < 2 {
        return tensor.clone();
    }
    tensor.transpose(-1, -2).unwrap().contiguous().transpose(-1, -2).unwrap()
}

/// How far off a dtype may be, relative to the larger of the value and one.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1e-2,
    }
}

/// Refuses values that are not those wanted, but for `slack` times what the dtype rounds.
#[track_caller]
pub fn check(what: &str, got: &Tensor, want: &[f64], slack: f64) {
    let tolerance = tolerance(got.dtype()) * slack;
    let got = values(got);
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
        assert!(
            close || got == want || (got.is_nan() && want.is_nan()),
            "{what}: {got} is not {want} at {i}"
        );
    }
}

/// The gradient of `sum(f(x) * weight)` by central differences.
pub fn differences(x: &[f64], weight: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let loss = |x: &[f64]| dot(&f(x), weight);
    let moved = |i: usize, by: f64| {
        let mut x = x.to_vec();
        x[i] += by;
        loss(&x)
    };
    (0..x.len()).map(|i| (moved(i, STEP) - moved(i, -STEP)) / (2.0 * STEP)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
