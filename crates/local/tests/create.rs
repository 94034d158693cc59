//! Tensors made from a few numbers.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod plain;

use dtensor_local::{DType, Scalar, Tensor};
use plain::{any_dtype, check, is_meta, laid, numbers, refuses, some_tensor};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_arange_of_integers_stops_before_its_end(
        (start, distance, step) in (-50i64..50, 0i64..60, 1i64..9),
        down: bool,
        dtype in any_dtype(),
    ) {
        let sign = if down { -1 } else { 1 };
        let (end, step) = (start + sign * distance, sign * step);
        let result = Tensor::arange(start, end, step, dtype);
        if dtype == DType::Bool {
            prop_assert!(result.is_err());
            return Ok(());
        }
        let mut want = Vec::new();
        let mut next = start;
        while (next < end) != down && next != end {
            want.push(next as f64);
            next += step;
        }
        check(&result.unwrap(), dtype, &[want.len()], &want);
    }

    #[test]
    fn the_numbers_of_a_linspace_are_evenly_spaced_and_end_exactly(
        (start, end) in (-9.0f64..9.0, -9.0f64..9.0),
        steps in 0usize..40,
    ) {
        let line = Tensor::linspace(start, end, steps, DType::F64).unwrap().to_vec::<f64>().unwrap();
        prop_assert_eq!(line.len(), steps);
        for (i, value) in line.iter().enumerate() {
            let want = start + (end - start) * i as f64 / (steps.max(2) - 1) as f64;
            prop_assert!((value - want).abs() < 1e-13, "{} {}", value, want);
        }
        if steps > 0 {
            prop_assert_eq!(line[0], start);
        }
        if steps > 1 {
            prop_assert_eq!(line[steps - 1], end);
        }
        let powers = Tensor::logspace(start, end, steps, 2.0, DType::F64).unwrap();
        for (power, value) in powers.to_vec::<f64>().unwrap().iter().zip(line) {
            prop_assert!((power / value.exp2() - 1.0).abs() < 1e-13);
        }
    }

    #[test]
    fn constant_tensors_are_constant(
        shape in prop::collection::vec(0usize..5, 0..4),
        (rows, columns) in (0usize..6, 0usize..6),
        dtype in any_dtype(),
        kind in 0usize..5,
    ) {
        let n = shape.iter().product();
        let (x, _) = some_tensor(dtype, &shape, 1);
        let x = laid(&x, kind);
        check(&Tensor::ones(&shape, dtype).unwrap(), dtype, &shape, &vec![1.0; n]);
        check(&x.ones_like().unwrap(), dtype, &shape, &vec![1.0; n]);
        check(&x.zeros_like().unwrap(), dtype, &shape, &vec![0.0; n]);
        check(&x.full_like(3).unwrap(), dtype, &shape, &vec![3.0; n]);
        let empty = x.empty_like().unwrap();
        prop_assert_eq!((empty.shape(), empty.dtype(), empty.is_contiguous()), (&shape[..], dtype, true));
        prop_assert_eq!(numbers(&empty).len(), n);
        let eye: Vec<f64> =
            (0..rows * columns).map(|i| f64::from(i / columns == i % columns)).collect();
        check(&Tensor::eye(rows, columns, dtype).unwrap(), dtype, &[rows, columns], &eye);
    }
}

#[test]
fn ranges_are_those_of_pytorch() {
    let ints = |start: Scalar, end: Scalar, step: Scalar, dtype| {
        let range = Tensor::arange(start, end, step, dtype).unwrap();
        range.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap()
    };
    use Scalar::{Float, Int};
    // The length from all of the numbers, the values without their fractions.
    assert_eq!(ints(Int(0), Float(2.5), Float(0.5), DType::I32), [0, 0, 0, 0, 0]);
    assert_eq!(ints(Float(0.5), Float(3.7), Int(1), DType::I64), [0, 1, 2, 3]);
    assert_eq!(ints(Int(254), Int(258), Int(1), DType::U8), [254, 255, 0, 1]);
    assert_eq!(ints(Int(2), Int(2), Int(-1), DType::I64), [] as [i64; 0]);
    assert_eq!(
        ints(Int(i64::MIN), Int(i64::MAX), Int(i64::MAX), DType::I64),
        [i64::MIN, -1, i64::MAX - 1]
    );
    // Exact where an f64 is not.
    assert_eq!(
        ints(Int((1 << 60) + 1), Int((1 << 60) + 3), Int(1), DType::I64),
        [(1 << 60) + 1, (1 << 60) + 2]
    );
    // Not 0.1 added up: each value is rounded once.
    let tenths = Tensor::arange(0.0, 100.0, 0.1, DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(tenths.len(), 1000);
    assert!(tenths.iter().enumerate().all(|(i, x)| *x == (i as f64 * 0.1) as f32));
    let line = |start: f64, end: f64, steps, dtype| {
        numbers(&Tensor::linspace(start, end, steps, dtype).unwrap())
    };
    assert_eq!(line(0.0, 10.0, 4, DType::I32), [0.0, 3.0, 6.0, 10.0]);
    assert_eq!(line(-1.9, 10.9, 4, DType::I32), [-1.0, 2.0, 6.0, 10.0]);
    assert_eq!(line(3.0, 10.0, 1, DType::F32), [3.0]);
    let powers = |base, dtype| numbers(&Tensor::logspace(0, 3, 4, base, dtype).unwrap());
    assert_eq!(powers(10.0, DType::I32), [1.0, 10.0, 100.0, 1000.0]);
    assert_eq!(powers(-2.0, DType::F32), [1.0, -2.0, 4.0, -8.0]);
    assert_eq!(powers(2.5, DType::I64), [1.0, 2.0, 6.0, 15.0]);
}

#[test]
fn a_value_is_cast_to_the_dtype() {
    let x = Tensor::zeros(&[2], DType::I32).unwrap();
    assert_eq!(x.full_like(2.9).unwrap().to_vec::<i32>().unwrap(), [2, 2]);
    let large = Tensor::zeros(&[100_000], DType::F16).unwrap();
    assert!(numbers(&large.full_like(0.5).unwrap()).iter().all(|value| *value == 0.5));
}

#[test]
fn like_a_meta_tensor_is_a_meta_tensor() {
    let meta = Tensor::meta(&[1 << 40, 3], DType::Bf16).unwrap();
    for result in [meta.zeros_like(), meta.ones_like(), meta.empty_like(), meta.full_like(1.5)] {
        is_meta(result, DType::Bf16, &[1 << 40, 3]);
    }
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let range = |start: f64, end: f64, step: f64| Tensor::arange(start, end, step, DType::F32);
    refuses(range(0.0, 1.0, 0.0), "arange: the step is 0; give another number");
    refuses(
        range(0.0, 1.0, -1.0),
        "arange: the sign of the step is -1; give the other sign, from start to end",
    );
    refuses(
        Tensor::arange(3, 0, 1, DType::I64),
        "arange: the sign of the step is 1; give the other sign, from start to end",
    );
    refuses(
        range(0.0, f64::INFINITY, 1.0),
        "arange: the range is 0.0 to inf by 1.0; give finite numbers",
    );
    refuses(
        range(0.0, 1.0, f64::NAN),
        "arange: the range is 0.0 to 1.0 by NaN; give finite numbers",
    );
    refuses(
        Tensor::linspace(0, 1, 3, DType::Bool),
        "linspace: is not defined on bool; cast to another dtype first",
    );
    assert!(range(0.0, 1e300, 1e-3).is_err());
    assert!(Tensor::linspace(0, 1, usize::MAX, DType::F32).is_err());
    assert!(Tensor::eye(usize::MAX, usize::MAX, DType::F32).is_err());
    assert!(Tensor::ones(&[usize::MAX], DType::F32).is_err());
    assert_eq!(Tensor::eye(usize::MAX, 0, DType::F32).unwrap().numel(), 0);
}
