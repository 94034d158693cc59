//! Searching, counting and quantiles against plain loops, over random shapes, views and dtypes.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, Interpolation, LocalError, Tensor, set_threads};
use proptest::prelude::*;

/// The values as f64, which holds those of the tests exactly.
fn list(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// A tensor of small integers, which repeat; every dtype holds them.
fn small(shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| ((i * 37 + seed * 11) % 23 * (i + seed) % 7) as i32).collect();
    Tensor::from_vec::<i32>(values, shape).unwrap().to_dtype(dtype).unwrap()
}

/// A tensor of the given shape; some are views: transposed, narrowed, flipped.
fn viewed(shape: &[usize], dtype: DType, seed: usize, view: usize) -> Tensor {
    let Some(last) = shape.len().checked_sub(1) else { return small(shape, dtype, seed) };
    let mut other = shape.to_vec();
    match view % 4 {
        0 => small(shape, dtype, seed),
        1 => {
            other.swap(0, last);
            small(&other, dtype, seed).transpose(0, -1).unwrap()
        }
        2 => {
            other[last] += 2;
            small(&other, dtype, seed).narrow(-1, 1, shape[last]).unwrap()
        }
        _ => small(shape, dtype, seed).flip(-1).unwrap(),
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

fn floats() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F64, DType::Bf16, DType::F16])
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![6 => 1usize..6, 1 => Just(0)], 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn searching_counts_what_is_before(
        mut shape in shapes(), width in 0usize..5, dtype in dtypes(), batched in any::<bool>(),
        right in any::<bool>(), view in 0usize..4,
    ) {
        shape.insert(0, 3);
        let last = shape.len() - 1;
        let (sorted, _) = viewed(&shape, dtype, 1, view).sort(-1, false).unwrap();
        let sorted = if batched { sorted } else { sorted.reshape(&[sorted.numel()]).unwrap().sort(0, false).unwrap().0 };
        let n = *sorted.shape().last().unwrap();
        let mut of = shape.clone();
        of[last] = width;
        let values = viewed(&of, dtype, 4, view + 1);
        let got = sorted.searchsorted(&values, right).unwrap();
        prop_assert_eq!((got.shape(), got.dtype()), (&of[..], DType::I64));
        let (line, x) = (list(&sorted), list(&values));
        let want: Vec<f64> = x.iter().enumerate().map(|(i, x)| {
            let first = if sorted.n_dims() > 1 { i / width * n } else { 0 };
            line[first..first + n].iter().filter(|y| *y < x || right && *y == x).count() as f64
        }).collect();
        prop_assert_eq!(list(&got), want);
        if sorted.n_dims() == 1 {
            prop_assert_eq!(list(&values.bucketize(&sorted, right).unwrap()), list(&got));
        }
        let is_in: Vec<f64> = x.iter().map(|x| f64::from(u8::from(line.contains(x)))).collect();
        prop_assert_eq!(list(&values.isin(&sorted).unwrap()), is_in);
        let meta = Tensor::meta(&of, dtype).unwrap();
        let shape_only = sorted.searchsorted(&meta, right).unwrap();
        prop_assert_eq!(shape_only.shape(), &of[..]);
    }

    #[test]
    fn unique_values_are_sorted_and_rebuild_the_tensor(
        shape in shapes(), dtype in dtypes(), view in 0usize..4,
    ) {
        let x = viewed(&shape, dtype, 2, view);
        let values = list(&x);
        for (unique, sorted) in [(x.unique().unwrap(), true), (x.unique_consecutive().unwrap(), false)] {
            prop_assert_eq!(unique.inverse.shape(), &shape[..]);
            let mut want = values.clone();
            if sorted {
                want.sort_by(f64::total_cmp);
            }
            want.dedup();
            prop_assert_eq!(list(&unique.values), want);
            prop_assert_eq!(unique.values.dtype(), dtype);
            let (found, inverse) = (list(&unique.values), unique.inverse.to_vec::<i64>().unwrap());
            let rebuilt: Vec<f64> = inverse.iter().map(|i| found[*i as usize]).collect();
            prop_assert_eq!(&rebuilt, &values);
            let mut counts = vec![0; found.len()];
            inverse.iter().for_each(|i| counts[*i as usize] += 1);
            prop_assert_eq!(unique.counts.to_vec::<i64>().unwrap(), counts);
        }
    }

    #[test]
    fn unique_slices_are_sorted_and_rebuild_the_tensor(
        mut shape in shapes(), dtype in dtypes(), view in 0usize..4, dim in 0usize..4,
    ) {
        shape.push(2);
        let dim = dim % shape.len();
        let x = small(&shape, DType::I32, 3).rem_scalar(2).unwrap().to_dtype(dtype).unwrap();
        let x = if view == 0 { x } else { x.flip(dim as isize).unwrap() };
        let unique = x.unique_dim(dim as isize).unwrap();
        let slice = |x: &Tensor, i: usize| list(&x.select(dim as isize, i as isize).unwrap());
        let n = unique.values.shape()[dim];
        for i in 1..n {
            prop_assert!(slice(&unique.values, i - 1) < slice(&unique.values, i));
        }
        let inverse = unique.inverse.to_vec::<i64>().unwrap();
        prop_assert_eq!(inverse.len(), shape[dim]);
        for (i, group) in inverse.iter().enumerate() {
            prop_assert_eq!(slice(&x, i), slice(&unique.values, *group as usize));
        }
        let counts = unique.counts.to_vec::<i64>().unwrap();
        prop_assert_eq!(counts.iter().sum::<i64>(), shape[dim] as i64);
    }

    #[test]
    fn quantiles_are_between_the_values_of_their_places(
        shape in shapes(), dtype in floats(), view in 0usize..4, dim in 0usize..4, keep in any::<bool>(),
        q in prop::collection::vec(0.0..=1.0, 0..3),
    ) {
        let x = viewed(&shape, dtype, 5, view);
        let whole = shape.is_empty() || dim >= shape.len();
        let (dim, n) = if whole { (None, x.numel()) } else { (Some(dim as isize), shape[dim]) };
        let result = x.quantile(&q, dim, keep, Interpolation::Lower);
        if n == 0 {
            let refused = matches!(result, Err(LocalError::NothingToReduce { op: "quantile", .. }));
            prop_assert!(refused);
            return Ok(());
        }
        let lower = result.unwrap();
        let like = match dim {
            Some(dim) => x.amax(&[dim], keep).unwrap(),
            None => x.amax(&[], keep).unwrap(),
        };
        prop_assert_eq!(lower.shape(), &[&[q.len()], like.shape()].concat()[..]);
        prop_assert_eq!(lower.dtype(), dtype);
        let higher = x.quantile(&q, dim, keep, Interpolation::Higher).unwrap();
        let linear = x.nanquantile(&q, dim, keep, Interpolation::Linear).unwrap();
        let sorted = match dim {
            Some(dim) => x.sort(dim, false).unwrap().0,
            None => x.reshape(&[n]).unwrap().sort(0, false).unwrap().0,
        };
        for (i, q) in q.iter().enumerate() {
            let rank = q * (n - 1) as f64;
            let at = |tensor: &Tensor| list(&tensor.select(0, i as isize).unwrap());
            let place = |rank: f64| list(&sorted.select(dim.unwrap_or(0), rank as isize).unwrap());
            let (low, high) = (place(rank.floor()), place(rank.ceil()));
            prop_assert_eq!(&at(&lower), &low);
            prop_assert_eq!(&at(&higher), &high);
            for ((low, high), linear) in low.iter().zip(high).zip(at(&linear)) {
                let want = low + (high - low) * (rank - rank.floor());
                prop_assert!((linear - want).abs() <= want.abs() / 128.0, "{} {}", linear, want);
            }
        }
    }

    #[test]
    fn histograms_count_what_is_between_their_edges(
        shape in shapes(), dtype in floats(), view in 0usize..4, bins in 1usize..5, low in -1i32..3, width in 1i32..7,
    ) {
        let x = viewed(&shape, dtype, 6, view);
        let (low, high) = (f64::from(low), f64::from(low + width));
        let (counts, edges) = x.histogram(bins, Some((low, high))).unwrap();
        let (found, edge) = (list(&counts), list(&edges));
        prop_assert_eq!((edge[0], edge[bins]), (low, high));
        for bin in 0..bins {
            let inside = |x: &&f64| edge[bin] <= **x && (**x < edge[bin + 1] || bin + 1 == bins && **x == high);
            prop_assert_eq!(found[bin], list(&x).iter().filter(inside).count() as f64);
        }
        prop_assert_eq!(list(&x.histogram_of_edges(&edges).unwrap()), found);
        let total = list(&x).iter().filter(|x| (low..=high).contains(*x)).count() as f64;
        prop_assert_eq!(list(&x.histc(bins, low, high).unwrap()).iter().sum::<f64>(), total);
    }

    #[test]
    fn scans_and_positions_do_not_depend_on_the_dim_they_run_along(
        shape in shapes(), long in 0usize..300, dtype in dtypes(), view in 0usize..4,
    ) {
        // Along dim 0 lines are scanned in strips; along the last one by one.
        let shape = [&shape[..], &[2, long]].concat();
        let x = viewed(&shape, dtype, 7, view);
        let turned = x.transpose(0, -1).unwrap().contiguous();
        let back = |x: Tensor| list(&x.transpose(0, -1).unwrap());
        prop_assert_eq!(list(&x.cumsum(0).unwrap()), back(turned.cumsum(-1).unwrap()));
        let ((a, b), (c, d)) = (x.cummax(0).unwrap(), turned.cummax(-1).unwrap());
        prop_assert_eq!((list(&a), list(&b)), (back(c), back(d)));
        if shape[0] > 0 {
            let got = x.argmin(Some(0), true).unwrap();
            prop_assert_eq!(list(&got), back(turned.argmin(Some(-1), true).unwrap()));
        }
    }
}

#[test]
fn bincount_sums_weights_by_number() {
    let x = Tensor::from_vec(vec![2_u8, 0, 2], &[3]).unwrap();
    assert_eq!(x.bincount(None, 0).unwrap().to_vec::<i64>().unwrap(), [1, 0, 2]);
    let weights = Tensor::from_vec(vec![0.5_f32, 1.0, 2.0], &[3]).unwrap();
    let sums = x.bincount(Some(&weights), 5).unwrap();
    assert_eq!(sums.to_vec::<f32>().unwrap(), [1.0, 0.0, 2.5, 0.0, 0.0]);
    let nothing = Tensor::zeros(&[0], DType::I32).unwrap();
    assert_eq!(nothing.bincount(None, 0).unwrap().shape(), [0]);
}

#[test]
fn closeness_and_equality_of_whole_tensors() {
    let a = Tensor::from_vec(vec![1.0_f64, f64::NAN], &[2]).unwrap();
    let b = Tensor::from_vec(vec![1.0_f64 + 1e-9, f64::NAN], &[2]).unwrap();
    assert!(a.allclose(&b, 1e-5, 1e-8, true).unwrap());
    assert!(!a.allclose(&b, 1e-5, 1e-8, false).unwrap());
    assert!(!a.equal(&a).unwrap());
    let ints = Tensor::from_vec(vec![1_i32, 2], &[2]).unwrap();
    assert!(ints.equal(&ints.to_dtype(DType::F16).unwrap()).unwrap());
    assert!(!ints.equal(&ints.reshape(&[2, 1]).unwrap()).unwrap());
    let nothing = Tensor::zeros(&[0, 3], DType::Bool).unwrap();
    assert!(
        nothing.equal(&nothing).unwrap() && nothing.allclose(&nothing, 0.0, 0.0, false).unwrap()
    );
    assert!(matches!(ints.isclose(&ints, -1.0, 0.0, false), Err(LocalError::BadNumber { .. })));
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let floats = Tensor::zeros(&[3], DType::F32).unwrap();
    let ints = Tensor::from_vec(vec![1_i64, -1, 2], &[3]).unwrap();
    let table = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    assert!(matches!(floats.searchsorted(&ints, false), Err(LocalError::WrongDType { .. })));
    assert!(matches!(table.searchsorted(&floats, false), Err(LocalError::ShapeMismatch { .. })));
    let scalar = Tensor::scalar(1.0_f32);
    assert!(matches!(scalar.searchsorted(&floats, false), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(floats.bucketize(&table, false), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(ints.bincount(None, 0), Err(LocalError::BadNumber { .. })));
    assert!(matches!(floats.bincount(None, 0), Err(LocalError::UnsupportedDType { .. })));
    assert!(matches!(ints.histc(3, 0.0, 1.0), Err(LocalError::NotFloat { .. })));
    assert!(matches!(floats.histc(0, 0.0, 1.0), Err(LocalError::BadNumber { .. })));
    assert!(matches!(floats.histc(3, 1.0, 0.0), Err(LocalError::BadNumber { .. })));
    assert!(matches!(floats.histogram_of_edges(&scalar), Err(LocalError::ShapeMismatch { .. })));
    let q = |q: f64| floats.quantile(&[q], None, false, Interpolation::Linear);
    assert!(matches!(q(1.1), Err(LocalError::BadNumber { .. })));
    assert!(matches!(q(f64::NAN), Err(LocalError::BadNumber { .. })));
    let meta = Tensor::meta(&[3], DType::I64).unwrap();
    assert!(matches!(meta.unique(), Err(LocalError::Meta { op: "unique", .. })));
    assert!(matches!(meta.unique_dim(0), Err(LocalError::Meta { .. })));
    assert!(matches!(meta.bincount(None, 0), Err(LocalError::Meta { .. })));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let values: Vec<f32> = (0..90 * 3001).map(|i| ((i * 7919) % 1009) as f32).collect();
    let x = Tensor::from_vec(values, &[90, 3001]).unwrap();
    let results = || {
        let (best, at) = x.cummax(0).unwrap();
        [x.cumsum(0).unwrap(), best, at, x.argmax(Some(0), false).unwrap()].map(|x| list(&x))
    };
    set_threads(1);
    let alone = results();
    set_threads(3);
    assert!(alone == results());
}
