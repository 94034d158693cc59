//! Elementwise operations against plain loops, over random shapes, views and dtypes.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, LocalError, Scalar, Tensor, promote, set_threads};
use proptest::prelude::*;

/// Every index of a shape, the last dim varying fastest.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |done, size| {
        done.into_iter()
            .flat_map(|index| (0..*size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

/// The values as f64, which holds those of the tests exactly.
fn list(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The value that a tensor has at an index of a shape it is broadcast to.
fn at(values: &[f64], shape: &[usize], index: &[usize]) -> f64 {
    let added = index.len() - shape.len();
    let position = shape
        .iter()
        .zip(&index[added..])
        .fold(0, |position, (size, i)| position * size + if *size == 1 { 0 } else { *i });
    values[position]
}

/// A tensor of small integers: exact in every dtype, also after one operation.
fn small(shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| ((i * 7 + seed * 3) % 11) as i32).collect();
    Tensor::from_vec::<i32>(values, shape).unwrap().to_dtype(dtype).unwrap()
}

/// A tensor of the given shape that is a view of another: dims swapped, narrowed, flipped, strided.
fn viewed(shape: &[usize], dtype: DType, seed: usize, view: usize) -> Tensor {
    let n_dims = shape.len();
    if n_dims == 0 {
        return small(shape, dtype, seed);
    }
    let last = n_dims as isize - 1;
    match view % 5 {
        0 => small(shape, dtype, seed),
        1 => {
            let mut swapped = shape.to_vec();
            swapped.swap(0, n_dims - 1);
            small(&swapped, dtype, seed).transpose(0, last).unwrap()
        }
        2 => {
            let mut larger = shape.to_vec();
            larger[n_dims - 1] += 3;
            small(&larger, dtype, seed).narrow(last, 2, shape[n_dims - 1]).unwrap()
        }
        3 => small(shape, dtype, seed).flip(0).unwrap(),
        _ => {
            let mut larger = shape.to_vec();
            larger[n_dims - 1] *= 2;
            let whole = small(&larger, dtype, seed);
            whole.slice(last, 0, larger[n_dims - 1], 2).unwrap()
        }
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// A shape and two that can be broadcast to it.
fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<usize>)> {
    let sizes = prop_oneof![4 => 1usize..6, 1 => Just(0), 1 => 100usize..300];
    let shape = prop::collection::vec(sizes, 0..4);
    (shape, prop::collection::vec(any::<(bool, bool)>(), 3), 0usize..4, 0usize..4).prop_map(
        |(mut shape, ones, cut_a, cut_b)| {
            // One long dim is enough for long rows; the reference would take too long with more.
            if let Some(long) = shape.iter().position(|size| *size >= 100) {
                shape[long + 1..].iter_mut().for_each(|size| *size = (*size).min(3));
            }
            let part = |cut: usize, pick: fn(&(bool, bool)) -> bool| -> Vec<usize> {
                let sizes = shape.iter().zip(&ones);
                let sizes = sizes.map(|(size, one)| if pick(one) { 1 } else { *size });
                sizes.skip(cut.min(shape.len()) * usize::from(cut == 1)).collect()
            };
            (shape.clone(), part(cut_a, |one| one.0), part(cut_b, |one| one.1 && !one.0))
        },
    )
}

fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let size =
        |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(n).map_or(1, |d| shape[d]);
    (0..n).map(|d| if size(a, d) == 1 { size(b, d) } else { size(a, d) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn binary_operations_broadcast_and_promote_as_a_plain_loop_does(
        (_, a_shape, b_shape) in shapes(), a_dtype in dtypes(), b_dtype in dtypes(),
        a_view in 0usize..5, b_view in 0usize..5,
    ) {
        let a = viewed(&a_shape, a_dtype, 1, a_view);
        let b = viewed(&b_shape, b_dtype, 2, b_view);
        let shape = broadcast(&a_shape, &b_shape);
        let (a_list, b_list) = (list(&a), list(&b));
        let check = |out: Tensor, value: fn(f64, f64) -> f64| {
            prop_assert_eq!(out.shape(), &shape[..]);
            let want: Vec<f64> = indices(&shape).iter()
                .map(|i| value(at(&a_list, &a_shape, i), at(&b_list, &b_shape, i)))
                .collect();
            // What the dtype of the result cannot hold, it rounds.
            let want = Tensor::from_vec(want, &shape).unwrap().to_dtype(out.dtype()).unwrap();
            prop_assert_eq!(list(&out), list(&want));
            Ok(())
        };
        check(a.add(&b).unwrap(), |a, b| a + b)?;
        check(a.mul(&b).unwrap(), |a, b| a * b)?;
        check(a.maximum(&b).unwrap(), f64::max)?;
        check(a.minimum(&b).unwrap(), f64::min)?;
        check(a.lt(&b).unwrap(), |a, b| f64::from(u8::from(a < b)))?;
        check(a.eq(&b).unwrap(), |a, b| f64::from(u8::from(a == b)))?;
        check(a.logical_and(&b).unwrap(), |a, b| f64::from(u8::from(a != 0.0 && b != 0.0)))?;
        if a_shape.is_empty() == b_shape.is_empty() {
            prop_assert_eq!(a.add(&b).unwrap().dtype(), promote(a_dtype, b_dtype));
        }
        let meta = Tensor::meta(&a_shape, a_dtype).unwrap().add(&b).unwrap();
        prop_assert!(meta.is_meta());
        prop_assert_eq!((meta.shape(), meta.dtype()), (&shape[..], a.add(&b).unwrap().dtype()));
    }

    #[test]
    fn ternary_and_unary_operations_read_views_as_a_plain_loop_does(
        (_, a_shape, b_shape) in shapes(), dtype in dtypes(), view in 0usize..5,
    ) {
        let shape = broadcast(&a_shape, &b_shape);
        let a = viewed(&a_shape, dtype, 1, view);
        let b = viewed(&b_shape, dtype, 5, view + 1);
        let mask = a.lt_scalar(4).unwrap();
        let out = mask.where_self(&a, &b).unwrap();
        let (a_list, b_list) = (list(&a), list(&b));
        let want: Vec<f64> = indices(&shape).iter().map(|i| {
            let value = at(&a_list, &a_shape, i);
            if value < 4.0 { value } else { at(&b_list, &b_shape, i) }
        }).collect();
        prop_assert_eq!(out.dtype(), dtype);
        prop_assert_eq!(list(&out), want);
        let squares = list(&a.square().unwrap());
        prop_assert_eq!(squares, a_list.iter().map(|x| x * x).collect::<Vec<_>>());
        let filled = a.masked_fill(&mask, 1).unwrap();
        prop_assert_eq!(filled.dtype(), dtype);
        let want: Vec<f64> = a_list.iter().map(|x| if *x < 4.0 { 1.0 } else { *x }).collect();
        prop_assert_eq!(list(&filled), want);
    }

    #[test]
    fn in_place_operations_equal_the_plain_ones_and_leave_other_owners_alone(
        (_, a_shape, b_shape) in shapes(), a_dtype in dtypes(), b_dtype in dtypes(), view in 0usize..5,
    ) {
        let shape = broadcast(&a_shape, &b_shape);
        let mut a = viewed(&shape, a_dtype, 1, view);
        let b = viewed(&b_shape, b_dtype, 2, view + 2);
        let (before, owner) = (list(&a), a.clone());
        if a_dtype.is_float() || promote(a_dtype, b_dtype) == a_dtype {
            let want = a.add(&b).unwrap().to_dtype(a_dtype).unwrap();
            a.add_assign(&b).unwrap();
            prop_assert_eq!(list(&a), list(&want));
            prop_assert_eq!(a.dtype(), a_dtype);
        }
        prop_assert_eq!(list(&owner), before);
    }
}

#[test]
fn known_values_of_the_error_function() {
    let x = Tensor::from_vec(vec![0.5_f64, 1.0, -2.0], &[3]).unwrap();
    let close = |got: Tensor, want: [f64; 3]| {
        let got = got.to_vec::<f64>().unwrap();
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-15), "{got:?}");
    };
    close(
        x.erf().unwrap(),
        [0.520_499_877_813_046_5, 0.842_700_792_949_714_9, -0.995_322_265_018_952_7],
    );
    close(
        x.erfc().unwrap(),
        [0.479_500_122_186_953_5, 0.157_299_207_050_285_1, 1.995_322_265_018_952_7],
    );
    close(
        x.gelu().unwrap(),
        [0.345_731_230_637_006_56, 0.841_344_746_068_542_9, -0.045_500_263_896_358_39],
    );
}

#[test]
fn casts_cut_saturate_and_wrap_as_documented() {
    let x = Tensor::from_vec(vec![2.9_f64, -2.9, 1e30, -1e30, f64::NAN, 0.0], &[6]).unwrap();
    let ints: Vec<i32> = x.to_dtype(DType::I32).unwrap().to_vec().unwrap();
    assert_eq!(ints, [2, -2, i32::MAX, i32::MIN, 0, 0]);
    let bools: Vec<bool> = x.to_dtype(DType::Bool).unwrap().to_vec().unwrap();
    assert_eq!(bools, [true, true, true, true, true, false]);
    let wide = Tensor::from_vec(vec![257_i64, -1, 1 << 40], &[3]).unwrap();
    assert_eq!(wide.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [1, 255, 0]);
    assert_eq!(wide.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [257, -1, 0]);
    for from in DType::ALL {
        for to in DType::ALL {
            let there = small(&[3, 5], from, 0).transpose(0, 1).unwrap().to_dtype(to).unwrap();
            assert_eq!((there.dtype(), there.shape()), (to, &[5, 3][..]));
            let want = list(&small(&[3, 5], from, 0).transpose(0, 1).unwrap());
            let want: Vec<f64> = match to {
                DType::Bool => want.iter().map(|x| f64::from(u8::from(*x != 0.0))).collect(),
                _ => want,
            };
            assert_eq!(list(&there), want, "{from} to {to}");
        }
    }
}

#[test]
fn what_has_no_dims_counts_only_by_its_kind() {
    let ints = Tensor::zeros(&[2], DType::I32).unwrap();
    let halves = Tensor::zeros(&[2], DType::Bf16).unwrap();
    let bools = Tensor::zeros(&[2], DType::Bool).unwrap();
    let dtype = |tensor: Result<Tensor, LocalError>| tensor.unwrap().dtype();
    assert_eq!(dtype(ints.add(&Tensor::scalar(1_i64))), DType::I32);
    assert_eq!(dtype(ints.add(&Tensor::scalar(1.0_f64))), DType::F64);
    assert_eq!(dtype(halves.add(&Tensor::scalar(1.0_f64))), DType::Bf16);
    assert_eq!(dtype(halves.mul_scalar(0.1)), DType::Bf16);
    assert_eq!(dtype(ints.mul_scalar(2)), DType::I32);
    assert_eq!(dtype(ints.mul_scalar(2.0)), DType::F32);
    assert_eq!(dtype(bools.add_scalar(1)), DType::I64);
    assert_eq!(dtype(bools.add_scalar(1.5)), DType::F32);
    assert_eq!(dtype(ints.div(&ints)), DType::F32);
    assert_eq!(dtype(bools.exp()), DType::F32);
    for a in DType::ALL {
        assert_eq!(promote(a, a), a);
        for b in DType::ALL {
            assert_eq!(promote(a, b), promote(b, a));
            for c in [DType::Bool, DType::F64] {
                assert_eq!(promote(promote(a, b), c), promote(a, promote(b, c)));
            }
        }
    }
}

#[test]
fn not_a_number_passes_through() {
    let nan = f32::NAN;
    let x = Tensor::from_vec(vec![nan, 1.0, nan, -1.0], &[4]).unwrap();
    let y = Tensor::from_vec(vec![1.0, nan, nan, 2.0], &[4]).unwrap();
    let nans = |tensor: Result<Tensor, LocalError>| -> Vec<bool> {
        tensor.unwrap().isnan().unwrap().to_vec().unwrap()
    };
    assert_eq!(nans(x.maximum(&y)), [true, true, true, false]);
    assert_eq!(nans(x.minimum(&y)), [true, true, true, false]);
    assert_eq!(nans(x.clamp(Some(0.into()), Some(1.into()))), [true, false, true, false]);
    assert_eq!(nans(x.relu()), [true, false, true, false]);
    for op in [Tensor::exp, Tensor::tanh, Tensor::gelu, Tensor::silu, Tensor::erf, Tensor::sin] {
        assert_eq!(nans(op(&x)), [true, false, true, false]);
    }
    let whole = x.nan_to_num(7.0, None, None).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(whole, [7.0, 1.0, 7.0, -1.0]);
}

#[test]
fn remainders_and_quotients_have_the_signs_of_python() {
    let a = Tensor::from_vec(vec![7_i32, -7, 7, -7], &[4]).unwrap();
    let b = Tensor::from_vec(vec![2_i32, 2, -2, -2], &[4]).unwrap();
    for dtype in [DType::I32, DType::I64, DType::F32, DType::F64, DType::F16] {
        let (a, b) = (a.to_dtype(dtype).unwrap(), b.to_dtype(dtype).unwrap());
        assert_eq!(list(&a.floor_div(&b).unwrap()), [3.0, -4.0, -4.0, 3.0], "{dtype}");
        assert_eq!(list(&a.rem(&b).unwrap()), [1.0, 1.0, -1.0, -1.0], "{dtype}");
        assert_eq!(list(&a.fmod(&b).unwrap()), [1.0, -1.0, 1.0, -1.0], "{dtype}");
    }
    let lowest = Tensor::scalar(i64::MIN);
    assert_eq!(lowest.floor_div(&Tensor::scalar(-1_i64)).unwrap().item::<i64>(), Ok(i64::MIN));
    assert_eq!(lowest.abs().unwrap().item::<i64>(), Ok(i64::MIN));
    let powers = b.pow(&Tensor::from_vec(vec![3_i32, -1, 2, 0], &[4]).unwrap()).unwrap();
    assert_eq!(list(&powers), [8.0, 0.0, 4.0, 1.0]);
}

#[test]
fn what_is_not_defined_is_an_error() {
    let ints = Tensor::from_vec(vec![1_i32, 0], &[2]).unwrap();
    let bools = Tensor::zeros(&[2], DType::Bool).unwrap();
    let floats = Tensor::zeros(&[3], DType::F32).unwrap();
    assert_eq!(
        ints.rem(&ints).unwrap_err(),
        LocalError::DivisionByZero { op: "rem", dtype: DType::I32 }
    );
    assert!(ints.floor_div_scalar(0).is_err());
    assert_eq!(
        bools.neg().unwrap_err(),
        LocalError::UnsupportedDType { op: "neg", dtype: DType::Bool }
    );
    assert!(floats.bitwise_not().is_err());
    assert!(matches!(ints.add(&floats), Err(LocalError::ShapeMismatch { op: "add", .. })));
    assert!(matches!(floats.where_self(&floats, &floats), Err(LocalError::WrongDType { .. })));
    let mut small = ints.clone();
    assert!(small.add_assign(&Tensor::zeros(&[2, 2], DType::I32).unwrap()).is_err());
    assert!(small.add_assign(&Tensor::zeros(&[2], DType::F32).unwrap()).is_err());
}

#[test]
fn pow_scalar_takes_shortcuts_that_change_nothing() {
    let x = Tensor::from_vec(vec![0.5_f64, 1.5, 3.0], &[3]).unwrap();
    for exponent in [2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 2.5, 0.0] {
        let got = x.pow_scalar(exponent).unwrap().to_vec::<f64>().unwrap();
        for (got, x) in got.iter().zip([0.5_f64, 1.5, 3.0]) {
            assert!((got - x.powf(exponent)).abs() < 1e-14, "{x} to the {exponent}");
        }
    }
    let ints = Tensor::from_vec(vec![-3_i64, 2], &[2]).unwrap();
    assert_eq!(ints.pow_scalar(3).unwrap().to_vec::<i64>().unwrap(), [-27, 8]);
    assert_eq!(ints.pow_scalar(Scalar::Float(2.0)).unwrap().dtype(), DType::F32);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let values: Vec<f32> = (0..300 * 1001).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let x = Tensor::from_vec(values, &[300, 1001]).unwrap();
    let row = x.narrow(0, 3, 1).unwrap();
    let column = x.narrow(1, 5, 1).unwrap();
    let results = || {
        let sum = x.add(&row).unwrap().mul(&column).unwrap();
        let half = x.to_dtype(DType::Bf16).unwrap().mul(&column).unwrap();
        let turned = x.transpose(0, 1).unwrap().sin().unwrap();
        let mut placed = x.clone();
        placed.add_assign(&row).unwrap();
        [sum.gelu().unwrap(), half, turned, placed]
            .map(|t| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap())
    };
    set_threads(1);
    let alone = results();
    set_threads(3);
    assert!(alone == results());
}
