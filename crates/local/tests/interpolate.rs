//! Interpolation against plain loops, and its gradient by the identity of adjoints.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Tensor,
    nn::{Interpolate, InterpolateMode, InterpolateSize},
};
use floats::{FLOATS, as_view, check, dot, noisy, tensor, values};
use proptest::prelude::*;

/// The elements that an output of one dim is made of, and how much of each.
fn sources(
    [n_in, n_out]: [usize; 2],
    factor: Option<f64>,
    settings: &Interpolate,
    output: usize,
) -> Vec<(usize, f64)> {
    let scale = factor.map_or(n_in as f64 / n_out as f64, |factor| 1.0 / factor);
    let output = output as f64;
    let place = match (settings.mode, settings.align_corners) {
        (InterpolateMode::Nearest, _) => {
            return vec![(((output * scale) as usize).min(n_in - 1), 1.0)];
        }
        (InterpolateMode::NearestExact, _) => {
            return vec![((((output + 0.5) * scale) as usize).min(n_in - 1), 1.0)];
        }
        (InterpolateMode::Linear, true) if n_out == 1 => 0.0,
        (InterpolateMode::Linear, true) => output * (n_in - 1) as f64 / (n_out - 1) as f64,
        (InterpolateMode::Linear, false) => (scale * (output + 0.5) - 0.5).max(0.0),
    };
    let place = place.min((n_in - 1) as f64);
    let first = place.floor();
    vec![
        (first as usize, 1.0 - (place - first)),
        ((first as usize + 1).min(n_in - 1), place - first),
    ]
}

/// Dim by dim, in plain loops over the flat values.
fn reference(
    x: &[f64],
    planes: usize,
    input: &[usize],
    output: &[usize],
    factors: &[Option<f64>],
    settings: &Interpolate,
) -> Vec<f64> {
    let mut sizes = input.to_vec();
    let mut x = x.to_vec();
    for dim in 0..input.len() {
        let outer = planes * sizes[..dim].iter().product::<usize>();
        let inner: usize = sizes[dim + 1..].iter().product();
        let mut out = Vec::new();
        for o in 0..outer {
            for i in 0..output[dim] {
                let from = sources([input[dim], output[dim]], factors[dim], settings, i);
                for j in 0..inner {
                    let term =
                        |(at, share): &(usize, f64)| share * x[(o * input[dim] + at) * inner + j];
                    out.push(from.iter().map(term).sum());
                }
            }
        }
        sizes[dim] = output[dim];
        x = out;
    }
    x
}

const MODES: [(InterpolateMode, bool); 4] = [
    (InterpolateMode::Nearest, false),
    (InterpolateMode::NearestExact, false),
    (InterpolateMode::Linear, false),
    (InterpolateMode::Linear, true),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn interpolation_is_plain_loops(
        planes in (0usize..3, 1usize..3), dims in prop::collection::vec((1usize..6, 1usize..9), 1..4),
        which in 0usize..4, mode in 0usize..4, by_factor: bool, seed: u64,
    ) {
        let (input, output): (Vec<usize>, Vec<usize>) = dims.into_iter().unzip();
        // Quarters, so that places are exact in every precision.
        let factors: Vec<f64> = output.iter().map(|size| *size as f64 / 4.0 + 1.0).collect();
        let shape: Vec<usize> = [planes.0, planes.1].into_iter().chain(input.iter().copied()).collect();
        let x = noisy(&shape, seed, FLOATS[which]);
        let (mode, align_corners) = MODES[mode];
        let size = if by_factor { InterpolateSize::Times(&factors) } else { InterpolateSize::To(&output) };
        let settings = Interpolate { size, mode, align_corners };
        let y = x.interpolate(&settings).unwrap();
        let (output, factors): (Vec<usize>, Vec<Option<f64>>) = if by_factor {
            let size = |(size, factor): (&usize, &f64)| ((*size as f64 * factor) as usize, Some(*factor));
            input.iter().zip(&factors).map(size).unzip()
        } else {
            (output.clone(), vec![None; input.len()])
        };
        prop_assert_eq!(&y.shape()[2..], output.as_slice());
        let want = reference(&values(&x), planes.0 * planes.1, &input, &output, &factors, &settings);
        check("values", &y, &want, 4.0);
        check("of a view", &as_view(&x).interpolate(&settings).unwrap(), &want, 4.0);

        // It is linear: the gradient is the adjoint.
        let (x, grad) = (noisy(&shape, seed, DType::F64), noisy(y.shape(), seed ^ 1, DType::F64));
        let y = x.interpolate(&settings).unwrap();
        let back = grad.interpolate_backward(&input, &settings).unwrap();
        prop_assert_eq!(back.shape(), x.shape());
        let (one, other) = (dot(&values(&y), &values(&grad)), dot(&values(&x), &values(&back)));
        prop_assert!((one - other).abs() < 1e-9, "{} {}", one, other);
    }
}

#[test]
fn places_are_rounded_as_pytorch_rounds_them() {
    // Output 69 lies at 69 / 2.3 = 30, or a little below where that is not exact. What PyTorch 2.15 gives:
    let size = InterpolateSize::Times(&[2.3]);
    let settings = Interpolate { size, mode: InterpolateMode::Nearest, align_corners: false };
    for (dtype, want) in [(DType::F32, 29.0), (DType::F64, 30.0)] {
        let x = tensor(&(0..40).map(f64::from).collect::<Vec<_>>(), &[1, 1, 40], dtype);
        assert_eq!(values(&x.interpolate(&settings).unwrap())[69], want);
    }
}

#[test]
fn meta_operands_give_shapes_and_misfits_are_errors() {
    let x = Tensor::meta(&[2, 3, 1 << 30, 5], DType::F16).unwrap();
    let of = |size, mode, align_corners| Interpolate { size, mode, align_corners };
    let (nearest, linear) = (InterpolateMode::Nearest, InterpolateMode::Linear);
    let twice = of(InterpolateSize::Times(&[2.0]), linear, true);
    let y = x.interpolate(&twice).unwrap();
    assert_eq!(y.shape(), [2, 3, 1 << 31, 10]);
    assert_eq!(y.interpolate_backward(&[1 << 30, 5], &twice).unwrap().shape(), x.shape());
    for bad in [
        of(InterpolateSize::To(&[0]), nearest, false),
        of(InterpolateSize::To(&[1, 2, 3]), nearest, false),
        of(InterpolateSize::To(&[]), nearest, false),
        of(InterpolateSize::To(&[2]), nearest, true),
        of(InterpolateSize::Times(&[f64::NAN]), linear, false),
        of(InterpolateSize::Times(&[0.1]), linear, false),
        of(InterpolateSize::Times(&[1.0, f64::INFINITY]), linear, false),
        of(InterpolateSize::Times(&[]), linear, false),
    ] {
        assert!(matches!(x.interpolate(&bad), Err(LocalError::BadNumber { .. })), "{bad:?}");
    }
    let size = of(InterpolateSize::To(&[2]), nearest, false);
    for shape in [&[2, 3][..], &[2, 3, 0], &[], &[1, 1, 1, 1, 1, 1]] {
        let x = Tensor::zeros(shape, DType::F32).unwrap();
        assert!(matches!(x.interpolate(&size), Err(LocalError::ShapeMismatch { .. })), "{shape:?}");
    }
    assert!(matches!(
        y.interpolate_backward(&[7, 7], &twice),
        Err(LocalError::ShapeMismatch { .. })
    ));
}
