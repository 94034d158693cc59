//! Fourier transforms against the sum that defines them.

#![allow(clippy::unwrap_used)]

use std::f64::consts::TAU;

use dtensor_local::{
    DType, LocalError, Tensor, bf16,
    fft::{self, Elements, Norm},
    set_threads,
};

const DTYPES: [DType; 2] = [DType::F32, DType::F64];
const NORMS: [Norm; 3] = [Norm::Backward, Norm::Ortho, Norm::Forward];

#[test]
fn transforms_over_a_dim_equal_the_sum_for_every_length_padding_and_view() {
    let mut random = Random(1);
    for shape in [&[1][..], &[5], &[8], &[3, 4], &[4, 7, 3], &[2, 13, 2], &[0, 3], &[97]] {
        for dtype in DTYPES {
            for n in [None, Some(1), Some(4), Some(11)] {
                let x = view(&mut random, &[shape, &[2]].concat(), dtype);
                let norm = NORMS[random.below(3)];
                for dim in 0..shape.len() {
                    if shape[dim] == 0 && n.is_none() {
                        continue;
                    }
                    let back = dim as isize - shape.len() as isize;
                    let got = fft::fft(&x, n, back, norm).unwrap();
                    check(&got, &sums(&x, n, dim, -1.0, norm), dtype);
                    let got = fft::ifft(&x, n, dim as isize, norm).unwrap();
                    check(&got, &sums(&x, n, dim, 1.0, norm), dtype);
                }
            }
        }
    }
}

#[test]
fn real_transforms_are_the_first_half_of_complex_ones_and_go_back() {
    let mut random = Random(2);
    for shape in [&[1][..], &[2], &[5], &[8], &[3, 4], &[4, 7, 3], &[3, 0]] {
        for dtype in DTYPES {
            for n in [None, Some(1), Some(6), Some(9)] {
                let x = view(&mut random, shape, dtype);
                let norm = NORMS[random.below(3)];
                for dim in 0..shape.len() {
                    if shape[dim] == 0 && n.is_none() {
                        continue;
                    }
                    let zeros = Tensor::zeros(shape, dtype).unwrap();
                    let complex = Tensor::stack(&[&x, &zeros], -1).unwrap();
                    let at = dim as isize;
                    let length = n.unwrap_or(shape[dim]);
                    let all = fft::fft(&complex, n, at, norm).unwrap();
                    let half = fft::rfft(&x, n, at, norm).unwrap();
                    check(&half, &all.narrow(at, 0, length / 2 + 1).unwrap(), dtype);
                    if length >= shape[dim] {
                        let back = fft::irfft(&half, Some(length), at, norm).unwrap();
                        assert_eq!(back.shape()[dim], length);
                        check(&back.narrow(at, 0, shape[dim]).unwrap().contiguous(), &x, dtype);
                    }
                }
            }
        }
    }
}

#[test]
fn an_inverse_real_transform_crops_fills_up_and_ignores_what_cannot_be() {
    // From PyTorch: torch.fft.irfft of [1+5j, 2-1j, 3+7j].
    let half = Tensor::from_vec(vec![1.0_f64, 5.0, 2.0, -1.0, 3.0, 7.0], &[3, 2]).unwrap();
    let irfft = |n| fft::irfft(&half, n, -1, Norm::Backward).unwrap().to_vec::<f64>().unwrap();
    let close = |got: Vec<f64>, want: &[f64]| {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-14), "{got:?}");
    };
    close(irfft(None), &[2.0, 0.0, 0.0, -1.0]);
    close(irfft(Some(2)), &[1.5, -0.5]);
    close(irfft(Some(1)), &[1.0]);
    close(irfft(Some(3)), &[1.6666666666666665, 0.24401693585629242, -0.910683602522959]);
    let want = [
        1.8333333333333335,
        -1.7320508075688772,
        1.642734410091836,
        0.5000000000000001,
        -2.9760677434251694,
        1.7320508075688767,
    ];
    close(irfft(Some(6)), &want);
}

#[test]
fn transforms_over_several_dims_are_those_over_each_and_invert() {
    let mut random = Random(3);
    for dtype in DTYPES {
        for norm in NORMS {
            let x = view(&mut random, &[3, 4, 5, 2], dtype);
            let each =
                [0, 1, 2].iter().fold(x.clone(), |x, dim| fft::fft(&x, None, *dim, norm).unwrap());
            check(&fft::fftn(&x, None, None, norm).unwrap(), &each, dtype);
            let back = fft::ifftn(&each, None, Some(&[2, 0, 1]), norm).unwrap();
            check(&back, &x, dtype);

            let two = fft::fft(&fft::fft(&x, Some(6), 1, norm).unwrap(), Some(2), 2, norm).unwrap();
            check(&fft::fftn(&x, Some(&[6, 2]), None, norm).unwrap(), &two, dtype);
            check(&fft::fft2(&x, Some([6, 2]), [-2, -1], norm).unwrap(), &two, dtype);
            let inverse = fft::ifft2(&x, None, [0, 1], norm).unwrap();
            check(&inverse, &fft::ifftn(&x, None, Some(&[0, 1]), norm).unwrap(), dtype);

            let real = view(&mut random, &[3, 4, 5], dtype);
            let zeros = Tensor::zeros(&[3, 4, 5], dtype).unwrap();
            let complex = Tensor::stack(&[&real, &zeros], -1).unwrap();
            let all = fft::fftn(&complex, None, None, norm).unwrap();
            let half = fft::rfftn(&real, None, None, norm).unwrap();
            check(&half, &all.narrow(2, 0, 3).unwrap(), dtype);
            check(&fft::irfftn(&half, Some(&[3, 4, 5]), None, norm).unwrap(), &real, dtype);
            let half = fft::rfft2(&real, None, [0, 1], norm).unwrap();
            assert_eq!(half.shape(), [3, 3, 5, 2]);
            check(&fft::irfft2(&half, None, [0, 1], norm).unwrap(), &real, dtype);
        }
    }
}

#[test]
fn frequencies_and_shifts_are_those_of_torch() {
    let freq = |n, d| fft::fftfreq(n, d, DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(freq(5, 0.2), [0.0, 1.0, 2.0, -2.0, -1.0]);
    assert_eq!(freq(4, 1.0), [0.0, 0.25, -0.5, -0.25]);
    assert_eq!(freq(0, 1.0), [0.0; 0]);
    let half = fft::rfftfreq(5, 0.2, DType::F32).unwrap();
    assert_eq!(half.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0]);

    let x = Tensor::from_vec((0..15_i64).collect(), &[3, 5]).unwrap();
    let shifted = fft::fftshift(&x, Elements::Real, None).unwrap();
    let want = [13, 14, 10, 11, 12, 3, 4, 0, 1, 2, 8, 9, 5, 6, 7];
    assert_eq!(shifted.to_vec::<i64>().unwrap(), want);
    let back = fft::ifftshift(&shifted, Elements::Real, None).unwrap();
    assert_eq!(back.to_vec::<i64>().unwrap(), (0..15).collect::<Vec<i64>>());
    let pairs = Tensor::from_vec((0..6_i64).collect(), &[3, 2]).unwrap();
    for dims in [None, Some(&[-1][..])] {
        let shifted = fft::fftshift(&pairs, Elements::Complex, dims).unwrap();
        assert_eq!(shifted.to_vec::<i64>().unwrap(), [4, 5, 0, 1, 2, 3]);
    }
}

#[test]
fn what_cannot_be_transformed_is_an_error() {
    let norm = Norm::Backward;
    let half = Tensor::full(&[4, 2], bf16::ONE).unwrap();
    let error = fft::fft(&half, None, -1, norm).unwrap_err();
    assert_eq!(error, LocalError::NotFullPrecision { op: "fft", got: DType::Bf16 });
    let error = fft::rfft(&half, None, -1, norm).unwrap_err();
    assert_eq!(error, LocalError::NotFullPrecision { op: "rfft", got: DType::Bf16 });
    let x = Tensor::zeros(&[4, 3], DType::F32).unwrap();
    let error = fft::fft(&x, None, -1, norm).unwrap_err();
    assert!(matches!(error, LocalError::BadShape { op: "fft", .. }), "{error}");
    let scalar = Tensor::scalar(1.0_f32);
    assert!(matches!(fft::rfft(&scalar, None, -1, norm), Err(LocalError::DimOutOfRange { .. })));
    assert!(matches!(fft::rfftn(&scalar, None, None, norm), Err(LocalError::BadShape { .. })));
    let complex = Tensor::zeros(&[4, 3, 2], DType::F32).unwrap();
    for error in [
        fft::fft(&complex, Some(0), -1, norm).unwrap_err(),
        fft::irfft(&complex.narrow(1, 0, 1).unwrap(), None, -1, norm).unwrap_err(),
        fft::ifft(&complex.narrow(1, 0, 0).unwrap(), None, -1, norm).unwrap_err(),
    ] {
        assert!(matches!(error, LocalError::BadNumber { name: "n", .. }), "{error}");
    }
    let error = fft::fft(&complex, None, 2, norm).unwrap_err();
    assert_eq!(error, LocalError::DimOutOfRange { op: "fft", dim: 2, shape: vec![4, 3] });
    let error = fft::fftn(&complex, None, Some(&[0, -2]), norm).unwrap_err();
    assert!(matches!(error, LocalError::RepeatedDim { op: "fftn", dim: -2, .. }), "{error}");
    let error = fft::fftn(&complex, Some(&[1, 2, 3]), None, norm).unwrap_err();
    assert!(matches!(error, LocalError::ShapeMismatch { op: "fftn", .. }), "{error}");
}

#[test]
fn meta_tensors_give_shapes_and_empty_batches_are_ordinary() {
    let norm = Norm::Ortho;
    let meta = Tensor::meta(&[1 << 40, 9, 2], DType::F32).unwrap();
    let spectrum = fft::fft(&meta, Some(12), 1, norm).unwrap();
    assert_eq!((spectrum.shape(), spectrum.is_meta()), (&[1 << 40, 12, 2][..], true));
    let half = fft::rfftn(&meta, None, None, norm).unwrap();
    assert_eq!(half.shape(), [1 << 40, 9, 2, 2]);
    assert_eq!(fft::irfft(&meta, None, 1, norm).unwrap().shape(), [1 << 40, 16]);
    let empty = Tensor::zeros(&[0, 4, 2], DType::F64).unwrap();
    assert_eq!(fft::fft(&empty, Some(5), 1, norm).unwrap().shape(), [0, 5, 2]);
    assert_eq!(fft::rfft(&empty, None, 1, norm).unwrap().shape(), [0, 3, 2, 2]);
    assert_eq!(fft::irfft(&empty, None, 1, norm).unwrap().shape(), [0, 6]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let x = view(&mut Random(4), &[300, 96, 2], DType::F32);
    let mut seen = Vec::new();
    for threads in [1, 2, 5] {
        set_threads(threads);
        let complex = fft::fftn(&x, None, None, Norm::Ortho).unwrap();
        let real = fft::rfft(&x, None, 0, Norm::Ortho).unwrap();
        seen.push([complex, real].map(|tensor| tensor.to_vec::<f32>().unwrap()));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

/// The definition, by plain loops, in `f64`.
fn sums(x: &Tensor, n: Option<usize>, dim: usize, sign: f64, norm: Norm) -> Tensor {
    let shape = x.shape().to_vec();
    let have = shape[dim];
    let length = n.unwrap_or(have);
    let inner: usize = shape[dim + 1..shape.len() - 1].iter().product();
    let outer: usize = shape[..dim].iter().product();
    let values = x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let factor = match (norm, sign < 0.0) {
        (Norm::Ortho, _) => (length as f64).sqrt().recip(),
        (Norm::Backward, false) | (Norm::Forward, true) => (length as f64).recip(),
        _ => 1.0,
    };
    let mut result = shape;
    result[dim] = length;
    let mut out = vec![0.0; result.iter().product()];
    for at in 0..outer * length * inner {
        let (o, k, i) = (at / (length * inner), at / inner % length, at % inner);
        for j in 0..have.min(length) {
            let (sin, cos) = (sign * TAU * ((j * k) % length) as f64 / length as f64).sin_cos();
            let from = ((o * have + j) * inner + i) * 2;
            let (re, im) = (values[from], values[from + 1]);
            out[at * 2] += factor * (re * cos - im * sin);
            out[at * 2 + 1] += factor * (re * sin + im * cos);
        }
    }
    Tensor::from_vec(out, &result).unwrap()
}

#[track_caller]
fn check(got: &Tensor, want: &Tensor, dtype: DType) {
    assert_eq!(
        (got.shape(), got.dtype(), got.is_contiguous()),
        (want.shape(), dtype, true),
        "shape"
    );
    let values = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let bound = if dtype == DType::F32 { 2e-5 } else { 1e-12 };
    for (got, want) in values(got).iter().zip(&values(want)) {
        assert!((got - want).abs() <= bound * (1.0 + want.abs()), "{dtype}: {got} for {want}");
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// Random values in a random view: transposed, reversed, or a part of something larger.
fn view(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let last = shape.len() - 1;
    let kind = random.below(5);
    let mut stored = shape.to_vec();
    match kind {
        0 => stored.swap(0, last),
        1 => stored[0] *= 2,
        2 => stored[last] += 3,
        _ => {}
    }
    let n = stored.iter().product();
    let values = (0..n).map(|_| random.below(2001) as f64 / 1000.0 - 1.0).collect::<Vec<f64>>();
    let tensor = Tensor::from_vec(values, &stored).unwrap().to_dtype(dtype).unwrap();
    match kind {
        0 => tensor.transpose(0, -1).unwrap(),
        1 => tensor.slice(0, 0, shape[0] * 2, 2).unwrap(),
        2 => tensor.narrow(-1, 2, shape[last]).unwrap(),
        3 => tensor.flip(0).unwrap(),
        _ => tensor,
    }
}
