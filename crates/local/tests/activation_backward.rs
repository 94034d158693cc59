//! Gradients of activation functions: against their formulas in `f64`, against differences, at edges.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{DType, LocalError, Tensor};
use floats::{FLOATS, check, differences, noise, tensor, values};

type Unary = fn(&Tensor) -> Result<Tensor, LocalError>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor, LocalError>;

/// A name, the function, its gradient, and whether that is one of the result instead of the operand.
const CASES: [(&str, Unary, Binary, bool); 6] = [
    ("relu", Tensor::relu, Tensor::relu_backward, true),
    ("tanh", Tensor::tanh, Tensor::tanh_backward, true),
    ("sigmoid", Tensor::sigmoid, Tensor::sigmoid_backward, true),
    ("silu", Tensor::silu, Tensor::silu_backward, false),
    ("gelu", Tensor::gelu, Tensor::gelu_backward, false),
    ("gelu_tanh", Tensor::gelu_tanh, Tensor::gelu_tanh_backward, false),
];

fn of_result(function: Unary, backward: Binary, x: &Tensor, grad: &Tensor, result: bool) -> Tensor {
    let first = if result { function(x).unwrap() } else { x.clone() };
    backward(&first, grad).unwrap()
}

#[test]
fn gradients_are_those_of_differences() {
    let x: Vec<f64> = noise(60, 5).iter().map(|x| x * 3.0).collect();
    let grad = noise(60, 6);
    for (name, function, backward, result) in CASES {
        let forward = |x: &[f64]| values(&function(&tensor(x, &[60], DType::F64)).unwrap());
        let want = differences(&x, &grad, forward);
        let (x, grad) = (tensor(&x, &[60], DType::F64), tensor(&grad, &[60], DType::F64));
        let got = of_result(function, backward, &x, &grad, result);
        // Differences are less exact than what is compared.
        check(name, &got, &want, 1e3);
    }
}

#[test]
fn every_dtype_is_that_of_f64_rounded() {
    // More than one block, with a part left over, of which the second operand is a row.
    let shape = [7, 301];
    let x: Vec<f64> = noise(7 * 301, 1).iter().map(|x| x * 4.0).collect();
    let grad = noise(301, 2);
    for (name, _, backward, _) in CASES {
        for dtype in FLOATS {
            let (x, grad) = (tensor(&x, &shape, dtype), tensor(&grad, &[301], dtype));
            let got = backward(&x, &grad).unwrap();
            assert_eq!((got.dtype(), got.shape()), (dtype, &shape[..]), "{name}");
            let exact = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
            let want = values(&backward(&exact(&x), &exact(&grad)).unwrap());
            check(name, &got, &want, 1.0);
            let turned = x.transpose(0, 1).unwrap().contiguous().transpose(0, 1).unwrap();
            assert_eq!(values(&backward(&turned, &grad).unwrap()), values(&got), "{name}");
        }
    }
}

/// Numbers of every exponent and both signs, and fine grids of those below 110 and 1.
fn spread() -> Vec<f32> {
    let mut values: Vec<f32> = (0..=u32::MAX).step_by(20011).map(f32::from_bits).collect();
    values.extend((-200_000..=200_000).map(|i| i as f32 * (110.0 / 200_000.0)));
    values.extend((-200_000..=200_000).map(|i| i as f32 * (1.0 / 200_000.0)));
    values.retain(|x| x.is_finite());
    values
}

#[test]
fn slopes_are_within_a_few_units_of_the_last_place() {
    let x = spread();
    let eps = f64::from(f32::EPSILON);
    let check = |name, backward: Binary, x: &[f32], bound: &dyn Fn(f64, f64) -> f64| {
        let (x, ones) = (Tensor::from_slice(x, &[x.len()]).unwrap(), vec![1.0_f32; x.len()]);
        let ones = Tensor::from_slice(&ones, x.shape()).unwrap();
        let exact = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
        let got = values(&backward(&x, &ones).unwrap());
        let want = values(&backward(&exact(&x), &exact(&ones)).unwrap());
        for ((x, got), want) in values(&x).iter().zip(got).zip(want) {
            assert!(
                (got - want).abs() <= bound(*x, want),
                "{name}: {got:e} is not {want:e} at {x:e}"
            );
        }
    };
    // Of 1, as the functions themselves are of their argument.
    check("gelu", Tensor::gelu_backward, &x, &|_, _| 3.0 * eps);
    check("gelu_tanh", Tensor::gelu_tanh_backward, &x, &|_, _| 3.0 * eps);
    // Of the larger of two terms, which cancel near -1.28. An exponential that is subnormal has fewer digits, and is
    // multiplied by the argument.
    check("silu", Tensor::silu_backward, &x, &|x, _| {
        let x = x.clamp(-200.0, 200.0);
        let logistic = if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) };
        5.0 * eps * logistic * (x.abs() * (1.0 - logistic)).max(1.0) + 2e-43
    });
    // Of the result, also where it is nearly 0 because the function is nearly 1.
    let unit: Vec<f32> = x.into_iter().filter(|y| y.abs() <= 1.0).collect();
    let relative = |_: f64, want: f64| 1.5 * eps * want.abs() + 1e-45;
    check("tanh", Tensor::tanh_backward, &unit, &relative);
    check("sigmoid", Tensor::sigmoid_backward, &unit, &relative);
}

#[test]
fn edges_are_those_of_pytorch_and_infinities_are_limits() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in FLOATS {
        let at = |backward: Binary, x: &[f64]| {
            let grad = tensor(&vec![2.0; x.len()], &[x.len()], dtype);
            values(&backward(&tensor(x, &[x.len()], dtype), &grad).unwrap())
        };
        assert_eq!(
            at(Tensor::relu_backward, &[-1.0, 0.0, -0.0, 1.0, inf]),
            [0.0, 0.0, 0.0, 2.0, 2.0]
        );
        assert_eq!(at(Tensor::relu_backward, &[nan]), [2.0]);
        assert_eq!(at(Tensor::tanh_backward, &[-1.0, 0.0, 1.0]), [0.0, 2.0, 0.0]);
        assert_eq!(at(Tensor::sigmoid_backward, &[0.0, 0.5, 1.0]), [0.0, 0.5, 0.0]);
        for backward in [Tensor::silu_backward, Tensor::gelu_backward, Tensor::gelu_tanh_backward] {
            assert_eq!(at(backward, &[0.0]), [1.0]);
            let far = at(backward, &[-inf, inf, 60_000.0]);
            assert!(far[0].abs() < 1e-30 && far[1] == 2.0 && far[2] == 2.0, "{dtype}: {far:?}");
            assert!(at(backward, &[nan])[0].is_nan());
        }
        let infinite = tensor(&[inf], &[1], dtype);
        let closed = tensor(&[-1.0], &[1], dtype);
        assert_eq!(values(&closed.relu_backward(&infinite).unwrap()), [0.0]);
    }
}
