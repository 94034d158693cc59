//! Numerics of the transcendental functions: the distance from `f64`, in units of the last place of `f32`, over
//! all exponents and the special values. The bounds are those that `elementwise/math32` documents.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, LocalError, Tensor};

type Unary = fn(&Tensor) -> Result<Tensor, LocalError>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor, LocalError>;

/// Distance in units of the last place of `want`, as an f32. A zero of the wrong sign is infinitely wrong.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if got.to_bits() == nearest.to_bits() || got.is_nan() && nearest.is_nan() {
        return 0.0;
    }
    if got.is_nan() || nearest.is_nan() || got == 0.0 && nearest == 0.0 {
        return f64::INFINITY;
    }
    // An infinity counts as the number that would come after the largest.
    let beyond = 2.0_f64.powi(128);
    let (got, want) = (f64::from(got).clamp(-beyond, beyond), want.clamp(-beyond, beyond));
    // That of the largest number is the one below it.
    let magnitude = nearest.abs().clamp(f32::MIN_POSITIVE, f32::MAX.next_down());
    let unit = f64::from(magnitude.next_up()) - f64::from(magnitude);
    (got - want).abs() / unit
}

/// Numbers of every exponent and both signs, a fine grid of those below 110, and the special ones.
fn spread() -> Vec<f32> {
    let mut values: Vec<f32> = (0..=u32::MAX).step_by(20011).map(f32::from_bits).collect();
    values.extend((-200_000..=200_000).map(|i| i as f32 * (110.0 / 200_000.0)));
    values.extend((-200_000..=200_000).map(|i| i as f32 * (1.0 / 200_000.0)));
    values.extend(SPECIAL);
    values
}

const SPECIAL: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.0,
    3.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    16_777_217.0,
];

#[track_caller]
fn check_unary(name: &str, op: Unary, bound: f64) {
    let values = spread();
    let x = Tensor::from_slice(&values, &[values.len()]).unwrap();
    let got = op(&x).unwrap().to_vec::<f32>().unwrap();
    let want = op(&x.to_dtype(DType::F64).unwrap()).unwrap().to_vec::<f64>().unwrap();
    let errors =
        values.iter().zip(got.iter().zip(&want)).map(|(x, (got, want))| (ulps(*got, *want), *x));
    let (worst, x) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert!(worst <= bound, "{name}: {worst} units of the last place at {x:e}");
}

#[test]
fn functions_of_one_operand_are_within_their_bounds() {
    let bounds: [(&str, Unary, f64); 27] = [
        ("exp", Tensor::exp, 1.5),
        ("exp2", Tensor::exp2, 1.5),
        ("expm1", Tensor::expm1, 2.0),
        ("log", Tensor::log, 1.0),
        ("log2", Tensor::log2, 1.5),
        ("log10", Tensor::log10, 2.0),
        ("log1p", Tensor::log1p, 2.0),
        ("sin", Tensor::sin, 2.0),
        ("cos", Tensor::cos, 2.0),
        ("tan", Tensor::tan, 3.0),
        ("asin", Tensor::asin, 2.0),
        ("acos", Tensor::acos, 1.5),
        ("atan", Tensor::atan, 3.0),
        ("sinh", Tensor::sinh, 2.0),
        ("cosh", Tensor::cosh, 2.0),
        ("tanh", Tensor::tanh, 3.0),
        ("asinh", Tensor::asinh, 1.0),
        ("acosh", Tensor::acosh, 1.0),
        ("atanh", Tensor::atanh, 1.0),
        ("erf", Tensor::erf, 1.5),
        ("erfc", Tensor::erfc, 1.0),
        ("sigmoid", Tensor::sigmoid, 3.0),
        ("silu", Tensor::silu, 4.0),
        ("softplus", Tensor::softplus, 2.0),
        ("mish", Tensor::mish, 4.0),
        ("sqrt", Tensor::sqrt, 0.5),
        ("rsqrt", Tensor::rsqrt, 1.5),
    ];
    for (name, op, bound) in bounds {
        check_unary(name, op, bound);
    }
    check_unary("elu", |x| x.elu(1.0), 2.0);
}

/// Pairs of special values, of any bits, and of moderate numbers.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let mut pairs: Vec<(f32, f32)> =
        SPECIAL.iter().flat_map(|x| SPECIAL.map(|y| (*x, y))).collect();
    let mut state = 99_u64;
    let mut bits = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    for _ in 0..200_000 {
        pairs.push((f32::from_bits(bits()), f32::from_bits(bits())));
        let mut unit = || bits() as f32 / 4_294_967_296.0;
        pairs.push(((unit() - 0.5) * 20.0, (unit() - 0.5) * 40.0));
        pairs.push((unit() * 3.0, (unit() - 0.5) * 200.0));
    }
    pairs.into_iter().unzip()
}

fn errors(op: Binary, unit_of: impl Fn(f32, f32, f64) -> f64) -> (f64, f32, f32) {
    let (x, y) = pairs();
    let n = x.len();
    let (a, b) = (Tensor::from_slice(&x, &[n]).unwrap(), Tensor::from_slice(&y, &[n]).unwrap());
    let got = op(&a, &b).unwrap().to_vec::<f32>().unwrap();
    let (a, b) = (a.to_dtype(DType::F64).unwrap(), b.to_dtype(DType::F64).unwrap());
    let want = op(&a, &b).unwrap().to_vec::<f64>().unwrap();
    let errors = (0..n).map(|i| (ulps(got[i], want[i]) * unit_of(x[i], y[i], want[i]), x[i], y[i]));
    errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn functions_of_two_operands_are_within_their_bounds() {
    let bounds: [(&str, Binary, f64); 3] =
        [("pow", Tensor::pow, 1.0), ("atan2", Tensor::atan2, 3.0), ("hypot", Tensor::hypot, 1.0)];
    for (name, op, bound) in bounds {
        let (worst, x, y) = errors(op, |_, _, _| 1.0);
        assert!(worst <= bound, "{name}: {worst} units of the last place at {x:e}, {y:e}");
    }
    // The difference of the operands is rounded: where it matters, the error is one of the larger of them.
    let (worst, x, y) = errors(Tensor::logaddexp, |x, y, want| {
        let operand = f64::from(x.abs().max(y.abs()));
        let matters = (f64::from(x) - f64::from(y)).abs() < 104.0;
        if matters && operand > want.abs() { want.abs() / operand } else { 1.0 }
    });
    assert!(worst <= 2.0, "logaddexp: {worst} units of the last place at {x:e}, {y:e}");
}

#[test]
fn gelu_is_within_a_few_units_of_the_last_place_of_its_argument() {
    for op in [Tensor::gelu, Tensor::gelu_tanh] {
        let values: Vec<f32> = spread().into_iter().filter(|x| x.abs() <= 30.0).collect();
        let x = Tensor::from_slice(&values, &[values.len()]).unwrap();
        let got = op(&x).unwrap().to_vec::<f32>().unwrap();
        let want = op(&x.to_dtype(DType::F64).unwrap()).unwrap().to_vec::<f64>().unwrap();
        for ((x, got), want) in values.iter().zip(got).zip(want) {
            let error = (f64::from(got) - want).abs();
            assert!(
                error <= 3.0 * f64::from(f32::EPSILON * x.abs()) + 1e-44,
                "{x:e}: {got:e} {want:e}"
            );
        }
    }
}
