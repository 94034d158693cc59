//! Reductions, scans and order statistics against plain loops, over random shapes, views and dtypes.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, LocalError, Tensor, bf16, f16, set_threads};
use proptest::prelude::*;

/// A tensor as its values in order.
#[derive(Clone, Debug)]
struct List {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl List {
    fn of(x: &Tensor) -> List {
        let values = match x.dtype() {
            DType::F32 => x.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
            DType::F64 => x.to_vec::<f64>().unwrap(),
            DType::Bf16 => x.to_vec::<bf16>().unwrap().into_iter().map(f64::from).collect(),
            DType::F16 => x.to_vec::<f16>().unwrap().into_iter().map(f64::from).collect(),
            DType::I64 => x.to_vec::<i64>().unwrap().into_iter().map(|x| x as f64).collect(),
            DType::I32 => x.to_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
            DType::U8 => x.to_vec::<u8>().unwrap().into_iter().map(f64::from).collect(),
            DType::Bool => {
                x.to_vec::<bool>().unwrap().into_iter().map(|x| f64::from(u8::from(x))).collect()
            }
        };
        List { shape: x.shape().to_vec(), values }
    }

    /// What `f` makes of the values that become one.
    fn reduced(&self, dims: &[usize], keep_dims: bool, f: impl Fn(&[f64]) -> f64) -> List {
        let n_dims = self.shape.len();
        let reduced = |dim: &usize| dims.is_empty() || dims.contains(dim);
        let full: Vec<usize> =
            (0..n_dims).map(|dim| if reduced(&dim) { 1 } else { self.shape[dim] }).collect();
        let mut groups = vec![Vec::new(); full.iter().product()];
        for (position, value) in self.values.iter().enumerate() {
            let (mut rest, mut place, mut scale) = (position, 0, 1);
            for dim in (0..n_dims).rev() {
                let index = rest % self.shape[dim];
                rest /= self.shape[dim];
                place += if reduced(&dim) { 0 } else { index * scale };
                scale *= full[dim];
            }
            groups[place].push(*value);
        }
        let shape = if keep_dims {
            full
        } else {
            (0..n_dims).filter(|dim| !reduced(dim)).map(|dim| self.shape[dim]).collect()
        };
        List { shape, values: groups.iter().map(|group| f(group)).collect() }
    }

    /// What `f` makes of every line along a dim.
    fn along(&self, dim: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> List {
        let n = self.shape[dim];
        let inner: usize = self.shape[dim + 1..].iter().product();
        let outer: usize = self.shape[..dim].iter().product();
        let line = |outer: usize, i: usize| -> Vec<f64> {
            (0..n).map(|k| self.values[(outer * n + k) * inner + i]).collect()
        };
        let lines: Vec<Vec<Vec<f64>>> =
            (0..outer).map(|o| (0..inner).map(|i| f(&line(o, i))).collect()).collect();
        let mut shape = self.shape.clone();
        shape[dim] = lines.first().and_then(|l| l.first()).map_or(n, Vec::len);
        let mut values = Vec::new();
        for block in &lines {
            for k in 0..shape[dim] {
                values.extend(block.iter().map(|line| line[k]));
            }
        }
        List { shape, values }
    }
}

#[track_caller]
fn check(got: &Tensor, dtype: DType, want: &List, tolerance: f64) {
    assert_eq!(got.dtype(), dtype);
    assert_eq!(got.shape(), want.shape);
    let got = List::of(got);
    for (i, (got, want)) in got.values.iter().zip(&want.values).enumerate() {
        let near = (got - want).abs() <= tolerance * want.abs().max(1.0);
        assert!(near || got == want || got.is_nan() && want.is_nan(), "{i}: {got}, not {want}");
    }
}

/// Values that every dtype holds exactly, with many ties.
fn tensor_of(shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| {
        ((i.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 13) as i32 - 6
    };
    macro_rules! make {
        ($f:expr) => {
            Tensor::from_vec((0..n).map(|i| $f(value(i))).collect(), shape).unwrap()
        };
    }
    match dtype {
        DType::F32 => make!(|x: i32| x as f32 / 4.0),
        DType::F64 => make!(|x: i32| f64::from(x) / 4.0),
        DType::Bf16 => make!(|x: i32| bf16::from_f32(x as f32 / 4.0)),
        DType::F16 => make!(|x: i32| f16::from_f32(x as f32 / 4.0)),
        DType::I64 => make!(i64::from),
        DType::I32 => make!(|x: i32| x),
        DType::U8 => make!(|x: i32| x.unsigned_abs() as u8),
        DType::Bool => make!(|x: i32| x > 0),
    }
}

/// A view of a tensor, made by steps that fit any shape.
fn viewed(mut x: Tensor, steps: &[(u8, usize)]) -> Tensor {
    for (kind, number) in steps {
        let n_dims = x.n_dims();
        if n_dims == 0 {
            break;
        }
        let dim = (number % n_dims) as isize;
        let size = x.shape()[dim as usize];
        x = match kind {
            0 => x.transpose(dim, -1).unwrap(),
            1 => x.flip(dim).unwrap(),
            2 if size > 1 => x.narrow(dim, 1, size - 1).unwrap(),
            3 => x.slice(dim, 0, size, 2).unwrap(),
            4 if n_dims < 4 => {
                let shape = [&[2], x.shape()].concat();
                x.expand(&shape).unwrap()
            }
            _ => x.transpose(0, dim).unwrap(),
        };
    }
    x
}

fn tensors(dtypes: &'static [DType]) -> impl Strategy<Value = Tensor> {
    let shape =
        proptest::collection::vec(prop_oneof![1 => Just(0), 1 => Just(1), 8 => 2usize..7], 0..4);
    let steps = proptest::collection::vec((0u8..6, 0usize..12), 0..3);
    (shape, proptest::sample::select(dtypes), 0usize..1000, steps)
        .prop_map(|(shape, dtype, seed, steps)| viewed(tensor_of(&shape, dtype, seed), &steps))
}

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::Bf16, DType::F16];

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::Bf16 => 1e-2,
        _ => 0.0,
    }
}

/// Different dims of a tensor, as a caller may name them, and counted from the front.
fn dims_of(n_dims: usize, mask: u8, from_the_end: bool) -> (Vec<isize>, Vec<usize>) {
    let dims: Vec<usize> = (0..n_dims).filter(|dim| mask >> dim & 1 == 1).collect();
    let named = dims.iter().rev().map(|dim| *dim as isize);
    let named = named.map(|dim| if from_the_end { dim - n_dims as isize } else { dim });
    (named.collect(), dims)
}

fn total_of(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

fn extreme(group: &[f64], better: impl Fn(f64, f64) -> bool) -> (f64, usize) {
    let mut best = (group[0], 0);
    for (i, x) in group.iter().enumerate() {
        if !best.0.is_nan() && (x.is_nan() || better(*x, best.0)) {
            best = (*x, i);
        }
    }
    best
}

fn variance(group: &[f64], correction: f64) -> f64 {
    let n = group.len() as f64;
    let mean = group.iter().sum::<f64>() / n;
    group.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - correction).max(0.0)
}

fn log_sum_exp(group: &[f64]) -> f64 {
    group.iter().map(|x| x.exp()).sum::<f64>().ln()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sums_products_and_counts_are_those_of_plain_loops(x in tensors(&DType::ALL), mask in 0u8..16, keep: bool, end: bool) {
        let (named, dims) = dims_of(x.n_dims(), mask, end);
        let list = List::of(&x);
        let dtype = x.dtype();
        let sum = list.reduced(&dims, keep, |g| g.iter().sum());
        check(&x.sum(&named, keep).unwrap(), total_of(dtype), &sum, tolerance(dtype));
        let any = list.reduced(&dims, keep, |g| f64::from(u8::from(g.iter().any(|x| *x != 0.0))));
        check(&x.any(&named, keep).unwrap(), DType::Bool, &any, 0.0);
        let all = list.reduced(&dims, keep, |g| f64::from(u8::from(g.iter().all(|x| *x != 0.0))));
        check(&x.all(&named, keep).unwrap(), DType::Bool, &all, 0.0);
        let count = list.reduced(&dims, keep, |g| g.iter().filter(|x| **x != 0.0).count() as f64);
        check(&x.count_nonzero(&named, keep).unwrap(), DType::I64, &count, 0.0);
        let product = list.reduced(&dims, keep, |g| g.iter().product());
        // Beyond these, small floats overflow and integers wrap.
        if product.values.iter().all(|x| x.abs() < 6e4) {
            check(&x.prod(&named, keep).unwrap(), total_of(dtype), &product, tolerance(dtype));
        }
    }

    #[test]
    fn means_variances_and_norms_are_those_of_plain_loops(x in tensors(FLOATS), mask in 0u8..16, keep: bool, correction in 0usize..3) {
        let (named, dims) = dims_of(x.n_dims(), mask, false);
        let list = List::of(&x);
        let (dtype, near) = (x.dtype(), tolerance(x.dtype()));
        let mean = list.reduced(&dims, keep, |g| g.iter().sum::<f64>() / g.len() as f64);
        check(&x.mean(&named, keep).unwrap(), dtype, &mean, near);
        let var = list.reduced(&dims, keep, |g| variance(g, correction as f64));
        check(&x.var(&named, correction, keep).unwrap(), dtype, &var, near);
        let std = list.reduced(&dims, keep, |g| variance(g, correction as f64).sqrt());
        check(&x.std(&named, correction, keep).unwrap(), dtype, &std, near);
        let log = list.reduced(&dims, keep, log_sum_exp);
        check(&x.logsumexp(&named, keep).unwrap(), dtype, &log, near);
        for p in [0.0, 1.0, 2.0, 3.0] {
            let norm = list.reduced(&dims, keep, |g| match p {
                0.0 => g.iter().filter(|x| **x != 0.0).count() as f64,
                _ => g.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p),
            });
            check(&x.norm(p, &named, keep).unwrap(), dtype, &norm, near);
        }
        if x.numel() > 0 {
            let largest = list.reduced(&dims, keep, |g| g.iter().fold(0.0, |a, b| b.abs().max(a)));
            check(&x.norm(f64::INFINITY, &named, keep).unwrap(), dtype, &largest, 0.0);
            let smallest = list.reduced(&dims, keep, |g| g.iter().fold(f64::INFINITY, |a, b| b.abs().min(a)));
            check(&x.norm(f64::NEG_INFINITY, &named, keep).unwrap(), dtype, &smallest, 0.0);
        }
    }

    #[test]
    fn extremes_and_their_first_indices_are_those_of_plain_loops(x in tensors(&DType::ALL), mask in 0u8..16, dim in 0usize..4, keep: bool) {
        let (named, dims) = dims_of(x.n_dims(), mask, false);
        let list = List::of(&x);
        if x.numel() == 0 {
            return Ok(());
        }
        let largest = list.reduced(&dims, keep, |g| extreme(g, |a, b| a > b).0);
        check(&x.amax(&named, keep).unwrap(), x.dtype(), &largest, 0.0);
        let smallest = list.reduced(&dims, keep, |g| extreme(g, |a, b| a < b).0);
        check(&x.amin(&named, keep).unwrap(), x.dtype(), &smallest, 0.0);
        let flat = extreme(&list.values, |a, b| a > b).1 as i64;
        prop_assert_eq!(x.argmax(None, false).unwrap().item::<i64>().unwrap(), flat);
        if x.n_dims() > 0 {
            let dim = dim % x.n_dims();
            let (values, indices) = x.max(dim as isize, keep).unwrap();
            check(&values, x.dtype(), &list.reduced(&[dim], keep, |g| extreme(g, |a, b| a > b).0), 0.0);
            let first = list.reduced(&[dim], keep, |g| extreme(g, |a, b| a > b).1 as f64);
            check(&indices, DType::I64, &first, 0.0);
            let first = list.reduced(&[dim], keep, |g| extreme(g, |a, b| a < b).1 as f64);
            check(&x.argmin(Some(dim as isize), keep).unwrap(), DType::I64, &first, 0.0);
        }
    }

    #[test]
    fn scans_are_those_of_plain_loops(x in tensors(&DType::ALL), dim in 0usize..4) {
        if x.n_dims() == 0 {
            return Ok(());
        }
        let dim = dim % x.n_dims();
        let list = List::of(&x);
        let (dtype, near) = (x.dtype(), tolerance(x.dtype()));
        let upto = |f: fn(&[f64]) -> f64| list.along(dim, |line| (1..=line.len()).map(|n| f(&line[..n])).collect());
        check(&x.cumsum(dim as isize).unwrap(), total_of(dtype), &upto(|l| l.iter().sum()), near);
        check(&x.cumprod(dim as isize).unwrap(), total_of(dtype), &upto(|l| l.iter().product()), near);
        let (values, indices) = x.cummax(dim as isize).unwrap();
        check(&values, dtype, &upto(|l| extreme(l, |a, b| a >= b).0), 0.0);
        check(&indices, DType::I64, &upto(|l| extreme(l, |a, b| a >= b).1 as f64), 0.0);
        let (values, indices) = x.cummin(dim as isize).unwrap();
        check(&values, dtype, &upto(|l| extreme(l, |a, b| a <= b).0), 0.0);
        check(&indices, DType::I64, &upto(|l| extreme(l, |a, b| a <= b).1 as f64), 0.0);
        if dtype.is_float() {
            check(&x.logcumsumexp(dim as isize).unwrap(), dtype, &upto(log_sum_exp), near);
        }
    }

    #[test]
    fn sorting_is_stable_and_the_rest_agrees_with_it(x in tensors(&DType::ALL), dim in 0usize..4, descending: bool, k in 0usize..8) {
        if x.n_dims() == 0 {
            return Ok(());
        }
        let dim = dim % x.n_dims();
        let (list, n, named) = (List::of(&x), x.shape()[dim], dim as isize);
        let order = |line: &[f64]| {
            let mut order: Vec<usize> = (0..line.len()).collect();
            order.sort_by(|a, b| {
                let order = line[*a].partial_cmp(&line[*b]).unwrap();
                if descending { order.reverse() } else { order }
            });
            order
        };
        let (values, indices) = x.sort(named, descending).unwrap();
        check(&values, x.dtype(), &list.along(dim, |l| order(l).iter().map(|i| l[*i]).collect()), 0.0);
        let want = list.along(dim, |l| order(l).iter().map(|i| *i as f64).collect());
        check(&indices, DType::I64, &want, 0.0);
        check(&x.argsort(named, descending).unwrap(), DType::I64, &want, 0.0);
        if k > n {
            prop_assert!(x.topk(k, named, descending).is_err());
            prop_assert!(x.kthvalue(k, named, true).is_err());
        } else {
            let (top, at) = x.topk(k, named, descending).unwrap();
            check(&top, x.dtype(), &List::of(&values.narrow(named, 0, k).unwrap()), 0.0);
            check(&at, DType::I64, &List::of(&indices.narrow(named, 0, k).unwrap()), 0.0);
            if k > 0 && !descending {
                let (value, _) = x.kthvalue(k, named, true).unwrap();
                check(&value, x.dtype(), &List::of(&values.narrow(named, k - 1, 1).unwrap()), 0.0);
                let (median, _) = x.median(named, true).unwrap();
                check(&median, x.dtype(), &List::of(&values.narrow(named, (n - 1) / 2, 1).unwrap()), 0.0);
            }
        }
    }

    #[test]
    fn a_meta_tensor_gives_the_shape_and_dtype_of_the_result(x in tensors(&DType::ALL), mask in 0u8..16, keep: bool) {
        let (named, _) = dims_of(x.n_dims(), mask, false);
        let meta = Tensor::meta(x.shape(), x.dtype()).unwrap();
        type Op = fn(&Tensor, &[isize], bool) -> Result<Tensor, LocalError>;
        let ops: &[Op] = &[
            |x, d, k| x.sum(d, k), |x, d, k| x.prod(d, k), |x, d, k| x.mean(d, k), |x, d, k| x.amax(d, k),
            |x, d, k| x.any(d, k), |x, d, k| x.count_nonzero(d, k), |x, d, k| x.var(d, 1, k),
            |x, d, k| x.logsumexp(d, k), |x, d, k| x.norm(2.0, d, k), |x, _, k| x.max(0, k).map(|m| m.1),
            |x, _, k| x.argmax(None, k), |x, _, _| x.cumsum(0), |x, _, _| x.cummax(-1).map(|m| m.0),
            |x, _, _| x.sort(0, true).map(|m| m.1), |x, _, k| x.median(-1, k).map(|m| m.0),
        ];
        for op in ops {
            match (op(&x, &named, keep), op(&meta, &named, keep)) {
                (Ok(real), Ok(meta)) => {
                    prop_assert!(meta.is_meta());
                    prop_assert_eq!((real.shape(), real.dtype()), (meta.shape(), meta.dtype()));
                }
                (real, meta) => prop_assert_eq!(real.err(), meta.err()),
            }
        }
    }
}

fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    std::iter::repeat_with(next).take(n).collect()
}

#[test]
fn large_reductions_are_accurate_in_every_direction() {
    // Longer than a piece of a row, and more rows than a block of columns.
    for shape in [[3, 100_003], [1031, 517], [100_003, 3], [300, 5000]] {
        let x = Tensor::from_vec(noise(shape[0] * shape[1]), &shape).unwrap();
        let list = List::of(&x);
        for dims in [vec![0usize], vec![1], vec![]] {
            let named: Vec<isize> = dims.iter().map(|dim| *dim as isize).collect();
            let sum = list.reduced(&dims, false, |g| g.iter().sum());
            check(&x.sum(&named, false).unwrap(), DType::F32, &sum, 3e-7);
            let var = list.reduced(&dims, false, |g| variance(g, 1.0));
            check(&x.var(&named, 1, false).unwrap(), DType::F32, &var, 3e-7);
            let log = list.reduced(&dims, false, log_sum_exp);
            check(&x.logsumexp(&named, false).unwrap(), DType::F32, &log, 3e-7);
            let max = list.reduced(&dims, false, |g| extreme(g, |a, b| a > b).0);
            check(&x.amax(&named, false).unwrap(), DType::F32, &max, 0.0);
        }
        let first = list.reduced(&[1], false, |g| extreme(g, |a, b| a > b).1 as f64);
        check(&x.argmax(Some(1), false).unwrap(), DType::I64, &first, 0.0);
        let first = list.reduced(&[0], false, |g| extreme(g, |a, b| a < b).1 as f64);
        check(&x.argmin(Some(0), false).unwrap(), DType::I64, &first, 0.0);
    }
}

#[test]
fn a_variance_beside_a_large_mean_is_accurate() {
    let values: Vec<f32> =
        noise(50_000).iter().map(|x| 1000.0 + (x * 64.0).floor() / 64.0).collect();
    for shape in [[50_000, 1], [1, 50_000], [500, 100]] {
        let x = Tensor::from_vec(values.clone(), &shape).unwrap();
        for dims in [vec![0usize], vec![1], vec![]] {
            let named: Vec<isize> = dims.iter().map(|dim| *dim as isize).collect();
            let var = List::of(&x).reduced(&dims, false, |g| variance(g, 0.0));
            check(&x.var(&named, 0, false).unwrap(), DType::F32, &var, 1e-6);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let x = Tensor::from_vec(noise(700 * 1500), &[700, 1500]).unwrap();
    let all = || -> Vec<Vec<f32>> {
        let mut results = Vec::new();
        for dims in [&[0isize][..], &[1], &[]] {
            results.push(x.sum(dims, false).unwrap().to_vec().unwrap());
            results.push(x.var(dims, 1, false).unwrap().to_vec().unwrap());
            results.push(x.logsumexp(dims, false).unwrap().to_vec().unwrap());
        }
        results.push(x.cumsum(1).unwrap().to_vec().unwrap());
        results.push(x.sort(0, false).unwrap().0.to_vec().unwrap());
        results
    };
    set_threads(1);
    let one = all();
    for threads in [2, 3, 8] {
        set_threads(threads);
        assert_eq!(all(), one, "{threads} threads");
    }
}

#[test]
fn nan_is_the_extreme_and_sorts_last() {
    let x = [1.0, f32::NAN, 3.0, f32::NAN, -1.0];
    for n in [5, 200] {
        let values: Vec<f32> = x.iter().copied().chain(noise(n - 5)).collect();
        let x = Tensor::from_vec(values, &[n]).unwrap();
        for y in [x.clone(), x.reshape(&[n, 1]).unwrap().expand(&[n, 2]).unwrap()] {
            for (value, index) in [y.max(0, false).unwrap(), y.min(0, false).unwrap()] {
                assert!(value.to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()));
                assert!(index.to_vec::<i64>().unwrap().iter().all(|i| *i == 1));
            }
            assert!(y.amax(&[], false).unwrap().item::<f32>().unwrap().is_nan());
            assert!(y.logsumexp(&[], false).unwrap().item::<f32>().unwrap().is_nan());
        }
        assert!(x.median(0, false).unwrap().0.item::<f32>().unwrap().is_nan());
        let order = x.argsort(0, false).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(order[n - 2..], [1, 3]);
        assert_eq!(x.argsort(0, true).unwrap().to_vec::<i64>().unwrap()[..2], [1, 3]);
    }
    let x = Tensor::from_vec(x.to_vec(), &[5]).unwrap();
    let (values, indices) = x.cummax(0).unwrap();
    assert_eq!(indices.to_vec::<i64>().unwrap(), [0, 1, 1, 3, 3]);
    assert!(values.to_vec::<f32>().unwrap()[1..].iter().all(|x| x.is_nan()));
}

#[test]
fn a_logarithm_of_exponentials_neither_overflows_nor_invents_numbers() {
    let log = |x: &[f32]| {
        let x = Tensor::from_slice(x, &[x.len()]).unwrap();
        let last = x.logcumsumexp(0).unwrap().select(0, -1).unwrap().item::<f32>().unwrap();
        let all = x.logsumexp(&[0], false).unwrap().item::<f32>().unwrap();
        assert!((last - all).abs() < 1e-4 || last == all, "{last} {all}");
        all
    };
    const INFINITY: f32 = f32::INFINITY;
    assert_eq!(log(&[1000.0, 1000.0]), 1000.0 + 2f32.ln());
    assert_eq!(log(&[-1000.0]), -1000.0);
    assert_eq!(log(&[-INFINITY, -INFINITY]), -INFINITY);
    assert_eq!(log(&[-INFINITY, 2.0]), 2.0);
    assert_eq!(log(&[INFINITY, 2.0, -INFINITY]), INFINITY);
    assert_eq!(log(&[INFINITY, INFINITY]), INFINITY);
}

#[test]
fn reducing_nothing_gives_the_identity_or_an_error() {
    let x = Tensor::zeros(&[2, 0], DType::F32).unwrap();
    assert_eq!(x.sum(&[1], false).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert_eq!(x.prod(&[1], false).unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
    assert!(x.mean(&[], false).unwrap().item::<f32>().unwrap().is_nan());
    assert!(x.var(&[], 1, false).unwrap().item::<f32>().unwrap().is_nan());
    assert_eq!(x.logsumexp(&[], false).unwrap().item::<f32>().unwrap(), f32::NEG_INFINITY);
    assert_eq!(x.sum(&[0], true).unwrap().shape(), [1, 0]);
    let none = |op| LocalError::NothingToReduce { op, shape: vec![2, 0] };
    assert_eq!(x.amax(&[1], false).err(), Some(none("amax")));
    assert_eq!(x.max(1, false).err(), Some(none("max")));
    assert_eq!(x.argmin(None, false).err().map(|e| e.to_string().contains("argmin")), Some(true));
    assert_eq!(x.median(1, false).err(), Some(none("median")));
    assert_eq!(x.norm(f64::INFINITY, &[1], false).err(), Some(none("norm")));
    // Nothing is missing where there is no result either.
    assert_eq!(x.amax(&[0], false).unwrap().shape(), [0]);
    assert_eq!(x.max(0, false).unwrap().1.shape(), [0]);
}

#[test]
fn mistakes_are_typed_errors() {
    let x = Tensor::zeros(&[2, 3], DType::I32).unwrap();
    assert_eq!(
        x.mean(&[0], false).err(),
        Some(LocalError::NotFloat { op: "mean", got: DType::I32 })
    );
    assert_eq!(
        x.var(&[0], 1, false).err(),
        Some(LocalError::NotFloat { op: "var", got: DType::I32 })
    );
    let error = x.sum(&[0, -2], false).err();
    assert_eq!(error, Some(LocalError::RepeatedDim { op: "sum", dim: -2, dims: vec![0, -2] }));
    assert!(matches!(x.sum(&[2], false), Err(LocalError::DimOutOfRange { op: "sum", dim: 2, .. })));
    assert!(matches!(x.cumsum(-3), Err(LocalError::DimOutOfRange { .. })));
    assert!(matches!(x.kthvalue(0, 0, false), Err(LocalError::BadNumber { .. })));
    assert!(matches!(x.topk(4, 1, true), Err(LocalError::BadNumber { .. })));
}

#[test]
fn one_value_without_dims_is_a_line_of_one() {
    let x = Tensor::scalar(3.0_f32);
    for dim in [0, -1] {
        assert_eq!(x.sum(&[dim], true).unwrap().shape(), [0usize; 0]);
        assert_eq!(x.max(dim, false).unwrap().1.item::<i64>().unwrap(), 0);
        assert_eq!(x.cumsum(dim).unwrap().item::<f32>().unwrap(), 3.0);
        assert_eq!(x.sort(dim, true).unwrap().0.item::<f32>().unwrap(), 3.0);
        assert_eq!(x.median(dim, false).unwrap().0.item::<f32>().unwrap(), 3.0);
    }
    assert!(x.sum(&[1], false).is_err());
}

#[test]
fn integers_wrap_and_small_floats_are_added_without_rounding_between() {
    let x = Tensor::from_vec(vec![i64::MAX, 1], &[2]).unwrap();
    assert_eq!(x.sum(&[], false).unwrap().item::<i64>().unwrap(), i64::MIN);
    assert_eq!(x.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN]);
    // In bf16 itself the sum would stop at 256.
    let ones = Tensor::full(&[3000], bf16::from_f32(1.0)).unwrap();
    assert_eq!(ones.sum(&[], false).unwrap().item::<bf16>().unwrap().to_f32(), 3008.0);
    let bytes = Tensor::full(&[1000], 255_u8).unwrap();
    assert_eq!(bytes.sum(&[0], false).unwrap().item::<i64>().unwrap(), 255_000);
}
