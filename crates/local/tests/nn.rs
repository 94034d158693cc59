//! Fused kernels against plain loops in `f64`, and gradients against finite differences.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Tensor,
    nn::{AdamW, Attention, CrossEntropy, Reduction, Sgd},
};
use floats::{differences, noise, tensor, values};
use proptest::prelude::*;

/// How far off these kernels may be, which is less than most, relative to the larger of the value and one.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 5e-6,
        DType::F16 => 2e-3,
        _ => 1e-2,
    }
}

#[track_caller]
fn check(what: &str, got: &Tensor, want: &[f64]) {
    check_within(what, &values(got), want, tolerance(got.dtype()));
}

#[track_caller]
fn check_within(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
        assert!(close || (got.is_nan() && want.is_nan()), "{what}: {got} is not {want} at {i}");
    }
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
    row.iter().map(|x| (x - largest).exp() / sum).collect()
}

fn by_rows(x: &[f64], len: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    x.chunks(len.max(1)).flat_map(f).collect()
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn softmax_is_that_of_plain_loops(
        rows in 0usize..5, len in 0usize..80, scale in 0.1..20.0, seed: u64, which in 0usize..4,
    ) {
        let dtype = FLOATS[which];
        let x: Vec<f64> = noise(rows * len, seed).iter().map(|x| x * scale).collect();
        let x = tensor(&x, &[rows, len], dtype);
        let want = by_rows(&values(&x), len, softmax);
        check("softmax", &x.softmax(-1).unwrap(), &want);
        // Over the other dim of the transposed view.
        let turned = x.transpose(0, 1).unwrap().softmax(0).unwrap();
        check("softmax of a view", &turned.transpose(0, 1).unwrap(), &want);
        let logs: Vec<f64> = by_rows(&values(&x), len, |row| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() + largest;
            row.iter().map(|x| x - sum).collect()
        });
        check("log_softmax", &x.log_softmax(1).unwrap(), &logs);
    }

    #[test]
    fn norms_are_those_of_plain_loops(
        rows in 0usize..5, len in 1usize..80, seed: u64, which in 0usize..4, affine: bool,
    ) {
        let dtype = FLOATS[which];
        let x = tensor(&noise(rows * len, seed), &[rows, 1, len], dtype);
        let (w, b) = (tensor(&noise(len, seed ^ 1), &[len], dtype), tensor(&noise(len, seed ^ 2), &[len], dtype));
        let (weights, biases) = if affine { (values(&w), values(&b)) } else { (vec![1.0; len], vec![0.0; len]) };
        let (w, b) = if affine { (Some(&w), Some(&b)) } else { (None, None) };
        let want = by_rows(&values(&x), len, |row| layer_norm(row, &weights, &biases));
        check("layer_norm", &x.layer_norm(&[len], w, b, EPS).unwrap(), &want);
        let want = by_rows(&values(&x), len, |row| rms_norm(row, &weights));
        check("rms_norm", &x.rms_norm(&[1, len], w.map(|w| w.unsqueeze(0).unwrap()).as_ref(), EPS).unwrap(), &want);
    }

    #[test]
    fn embeddings_take_rows_and_their_gradients_add_up(
        rows in 1usize..9, width in 0usize..9, n in 0usize..20, seed: u64, which in 0usize..4,
    ) {
        let table = tensor(&noise(rows * width, seed), &[rows, width], FLOATS[which]);
        let ids: Vec<i64> = noise(n, seed ^ 1).iter().map(|x| ((x + 2.0) / 4.0 * rows as f64) as i64).collect();
        let id_tensor = Tensor::from_vec(ids.clone(), &[n, 1]).unwrap();
        let out = table.embedding(&id_tensor).unwrap();
        prop_assert_eq!(out.shape(), [n, 1, width]);
        let of = |row: usize| values(&table)[row * width..][..width].to_vec();
        let want: Vec<f64> = ids.iter().flat_map(|id| of(*id as usize)).collect();
        prop_assert_eq!(values(&out), want.clone());
        let mut sums = vec![0.0; rows * width];
        for (id, grad) in ids.iter().zip(want.chunks(width.max(1))) {
            for (i, grad) in grad.iter().enumerate() {
                sums[*id as usize * width + i] += grad;
            }
        }
        check("embedding_backward", &out.embedding_backward(&id_tensor, rows).unwrap(), &sums);
    }

    #[test]
    fn cross_entropy_is_that_of_plain_loops(
        n in 1usize..6, classes in 1usize..50, inner in 1usize..4, seed: u64, which in 0usize..4,
        weighted: bool, smoothing in prop_oneof![Just(0.0), 0.0..1.0],
    ) {
        let dtype = FLOATS[which];
        let x = tensor(&noise(n * classes * inner, seed), &[n, classes, inner], dtype);
        let weight: Vec<f64> = noise(classes, seed ^ 1).iter().map(|x| x.abs() + 0.1).collect();
        let weight = tensor(&weight, &[classes], dtype);
        let mut ids: Vec<i64> =
            noise(n * inner, seed ^ 2).iter().map(|x| ((x + 2.0) / 4.0 * classes as f64) as i64).collect();
        // The last sample is ignored, if there is more than one.
        if n * inner > 1 { ids[n * inner - 1] = -100 }
        let targets = Tensor::from_vec(ids.clone(), &[n, inner]).unwrap();
        let weights = if weighted { values(&weight) } else { vec![1.0; classes] };
        let rows = values(&x.transpose(1, 2).unwrap());
        let losses = losses(&rows, &ids, &weights, smoothing);
        let divisor: f64 = ids.iter().filter(|id| **id >= 0).map(|id| weights[*id as usize]).sum();
        let sum: f64 = losses.iter().sum();
        for (reduction, want) in [
            (Reduction::None, losses.clone()),
            (Reduction::Sum, vec![sum]),
            (Reduction::Mean, vec![sum / divisor]),
        ] {
            let settings = CrossEntropy {
                weight: weighted.then_some(&weight), label_smoothing: smoothing, reduction, ..CrossEntropy::default()
            };
            let (loss, log_sums) = x.cross_entropy(&targets, &settings).unwrap();
            prop_assert_eq!(log_sums.shape(), [n, inner]);
            check("cross_entropy", &loss, &want);
        }
    }
}

const EPS: f64 = 1e-3;

fn layer_norm(row: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (0..row.len()).map(|i| (row[i] - mean) / (var + EPS).sqrt() * weight[i] + bias[i]).collect()
}

fn rms_norm(row: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    (0..row.len()).map(|i| row[i] / (mean + EPS).sqrt() * weight[i]).collect()
}

/// One loss per row of logits; zero where the target is ignored.
fn losses(rows: &[f64], ids: &[i64], weights: &[f64], smoothing: f64) -> Vec<f64> {
    let n = weights.len();
    let loss = |(row, id): (&[f64], &i64)| {
        if *id < 0 {
            return 0.0;
        }
        let logs: Vec<f64> = softmax(row).iter().map(|p| p.ln()).collect();
        let sharp = -weights[*id as usize] * logs[*id as usize];
        let spread: f64 = -logs.iter().zip(weights).map(|(log, w)| log * w).sum::<f64>();
        (1.0 - smoothing) * sharp + smoothing / n as f64 * spread
    };
    rows.chunks(n).zip(ids).map(loss).collect()
}

#[test]
fn gradients_of_softmax_are_finite_differences() {
    let (rows, len) = (3, 37);
    let (x, grad) = (noise(rows * len, 1), noise(rows * len, 2));
    for dtype in [DType::F64, DType::F32] {
        let (input, grad_tensor) =
            (tensor(&x, &[rows, len], dtype), tensor(&grad, &[rows, len], dtype));
        let want = differences(&x, &grad, |x| by_rows(x, len, softmax));
        let got = input.softmax(1).unwrap().softmax_backward(&grad_tensor, 1).unwrap();
        check_within("softmax", &values(&got), &want, 1e-5);
        let want = differences(&x, &grad, |x| {
            by_rows(x, len, |row| softmax(row).iter().map(|p| p.ln()).collect())
        });
        let got = input.log_softmax(1).unwrap().log_softmax_backward(&grad_tensor, 1).unwrap();
        check_within("log_softmax", &values(&got), &want, 1e-5);
    }
}

#[test]
fn gradients_of_norms_are_finite_differences() {
    // Rows enough for more than one part of the sums over rows.
    let (rows, len) = (5, 41);
    let (x, grad) = (noise(rows * len, 3), noise(rows * len, 4));
    let (w, b) = (noise(len, 5), noise(len, 6));
    for dtype in [DType::F64, DType::F32] {
        let [input, grad_tensor] = [&x, &grad].map(|v| tensor(v, &[rows, len], dtype));
        let weight = tensor(&w, &[len], dtype);
        let got = input.layer_norm_backward(&grad_tensor, &[len], Some(&weight), EPS).unwrap();
        let dx = differences(&x, &grad, |x| by_rows(x, len, |row| layer_norm(row, &w, &b)));
        let dw = differences(&w, &grad, |w| by_rows(&x, len, |row| layer_norm(row, w, &b)));
        let db = differences(&b, &grad, |b| by_rows(&x, len, |row| layer_norm(row, &w, b)));
        check_within("layer_norm dx", &values(&got.input), &dx, 1e-5);
        check_within("layer_norm dw", &values(&got.weight), &dw, 1e-5);
        check_within("layer_norm db", &values(&got.bias.unwrap()), &db, 1e-5);
        let got = input.rms_norm_backward(&grad_tensor, &[len], Some(&weight), EPS).unwrap();
        let dx = differences(&x, &grad, |x| by_rows(x, len, |row| rms_norm(row, &w)));
        let dw = differences(&w, &grad, |w| by_rows(&x, len, |row| rms_norm(row, w)));
        check_within("rms_norm dx", &values(&got.input), &dx, 1e-5);
        check_within("rms_norm dw", &values(&got.weight), &dw, 1e-5);
        assert!(got.bias.is_none());
    }
}

#[test]
fn the_gradient_of_a_norm_sums_over_many_parts_of_rows() {
    // 300 rows of 1000: several parts, the last one short.
    let (rows, len) = (300, 1000);
    let (x, grad) = (noise(rows * len, 7), noise(rows * len, 8));
    let got = tensor(&x, &[rows, len], DType::F64)
        .layer_norm_backward(&tensor(&grad, &[rows, len], DType::F64), &[len], None, EPS)
        .unwrap();
    let column = |i: usize| grad.iter().skip(i).step_by(len).sum::<f64>();
    check("db", &got.bias.unwrap(), &(0..len).map(column).collect::<Vec<_>>());
    let normal = by_rows(&x, len, |row| layer_norm(row, &vec![1.0; len], &vec![0.0; len]));
    let column =
        |i: usize| (0..rows).map(|row| normal[row * len + i] * grad[row * len + i]).sum::<f64>();
    check_within("dw", &values(&got.weight), &(0..len).map(column).collect::<Vec<_>>(), 1e-9);
}

#[test]
fn the_gradient_of_cross_entropy_for_some_of_the_classes_is_that_part_of_it() {
    for shape in [&[4, 7][..], &[3, 7, 2], &[7]] {
        let x = tensor(&noise(shape.iter().product(), 12), shape, DType::F32);
        let dim = shape.len().min(2) - 1;
        let samples = [&shape[..dim], &shape[dim + 1..]].concat();
        let n_samples: usize = samples.iter().product();
        let targets = (0..n_samples).map(|at| [0, 3, 6, 2, -100][at % 5]).collect::<Vec<i64>>();
        let targets = Tensor::from_vec(targets, &samples).unwrap();
        let weight =
            Tensor::from_vec((1..8).map(|at| at as f32).collect::<Vec<_>>(), &[7]).unwrap();
        for weight in [None, Some(&weight)] {
            for reduction in [Reduction::Mean, Reduction::Sum] {
                let settings =
                    CrossEntropy { weight, label_smoothing: 0.2, reduction, ..Default::default() };
                let (_, log_sums) = x.cross_entropy(&targets, &settings).unwrap();
                let grad = Tensor::scalar(0.5_f32);
                let whole = x.cross_entropy_backward(&targets, &log_sums, &grad, &settings);
                let whole = whole.unwrap();
                for held in [0..3, 3..7, 7..7, 0..7] {
                    let part = |of: &Tensor| of.narrow(dim as isize, held.start, held.len());
                    let part = |of: &Tensor| part(of).unwrap();
                    let got = part(&x).cross_entropy_backward_part(
                        &targets,
                        &log_sums,
                        &grad,
                        &settings,
                        (held.clone(), 7),
                    );
                    assert!(got.unwrap().equal(&part(&whole)).unwrap(), "{shape:?} {held:?}");
                }
                let wrong = (0..3, 7);
                assert!(
                    x.cross_entropy_backward_part(&targets, &log_sums, &grad, &settings, wrong)
                        .is_err()
                );
            }
        }
    }
}

#[test]
fn gradients_of_cross_entropy_are_finite_differences() {
    let (n, classes, inner) = (3, 7, 2);
    let x = noise(n * classes * inner, 9);
    let weights: Vec<f64> = noise(classes, 10).iter().map(|x| x.abs() + 0.1).collect();
    let ids = vec![0_i64, 6, -100, 3, 3, 1];
    let targets = Tensor::from_vec(ids.clone(), &[n, inner]).unwrap();
    for dtype in [DType::F64, DType::F32] {
        let input = tensor(&x, &[n, classes, inner], dtype);
        let weight = tensor(&weights, &[classes], dtype);
        for (reduction, smoothing, weighted) in [
            (Reduction::Mean, 0.0, false),
            (Reduction::Mean, 0.3, true),
            (Reduction::Sum, 0.3, false),
            (Reduction::None, 0.1, true),
        ] {
            let settings = CrossEntropy {
                weight: weighted.then_some(&weight),
                label_smoothing: smoothing,
                reduction,
                ..CrossEntropy::default()
            };
            let w = if weighted { weights.clone() } else { vec![1.0; classes] };
            let divisor: f64 = ids.iter().filter(|id| **id >= 0).map(|id| w[*id as usize]).sum();
            let grads = match reduction {
                Reduction::None => noise(n * inner, 11),
                _ => vec![1.5],
            };
            let want = differences(&x, &grads, |x| {
                let turned = tensor(x, &[n, classes, inner], DType::F64).transpose(1, 2).unwrap();
                let losses = losses(&values(&turned), &ids, &w, smoothing);
                match reduction {
                    Reduction::None => losses,
                    Reduction::Sum => vec![losses.iter().sum()],
                    Reduction::Mean => vec![losses.iter().sum::<f64>() / divisor],
                }
            });
            let (loss, log_sums) = input.cross_entropy(&targets, &settings).unwrap();
            let grad = tensor(&grads, loss.shape(), dtype);
            let got = input.cross_entropy_backward(&targets, &log_sums, &grad, &settings).unwrap();
            assert_eq!(got.shape(), input.shape());
            check_within("cross_entropy", &values(&got), &want, 1e-5);
        }
    }
}

#[test]
fn masked_and_broken_rows_of_softmax_are_those_of_pytorch() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let row = |values: Vec<f32>| {
        let n = values.len();
        Tensor::from_vec(values, &[n]).unwrap().softmax(0).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(row(vec![0.0, -inf, 0.0]), [0.5, 0.0, 0.5]);
    assert_eq!(row(vec![0.0, -1e30]), [1.0, 0.0]);
    for broken in [vec![-inf, -inf], vec![inf, 0.0], vec![0.0, nan], vec![nan; 40]] {
        assert!(row(broken.clone()).iter().any(|x| x.is_nan()), "{broken:?}");
    }
    assert!(row(vec![0.0, nan]).iter().all(|x| x.is_nan()));
    let one = Tensor::scalar(3.0_f64).softmax(-1).unwrap();
    assert_eq!((one.shape(), one.item::<f64>().unwrap()), (&[][..], 1.0));
}

#[test]
fn adamw_and_sgd_follow_their_formulas() {
    let n = 70;
    for decoupled in [true, false] {
        let settings = AdamW { lr: 0.01, weight_decay: 0.1, decoupled, ..AdamW::default() };
        for dtype in FLOATS {
            let mut p = tensor(&noise(n, 12), &[n], dtype);
            let (mut m, mut v) =
                (Tensor::zeros(&[n], dtype).unwrap(), Tensor::zeros(&[n], dtype).unwrap());
            let (mut want, mut means, mut squares) = (values(&p), vec![0.0; n], vec![0.0; n]);
            for step in 1..4u64 {
                let grad = tensor(&noise(n, 13 + step), &[n], dtype);
                settings.step(&mut p, &grad, &mut m, &mut v, step).unwrap();
                let (c1, c2) = (1.0 - 0.9f64.powi(step as i32), 1.0 - 0.999f64.powi(step as i32));
                for (i, grad) in values(&grad).iter().enumerate() {
                    let grad = if decoupled { *grad } else { grad + 0.1 * want[i] };
                    means[i] = 0.9 * means[i] + 0.1 * grad;
                    squares[i] = 0.999 * squares[i] + 0.001 * grad * grad;
                    let keep = if decoupled { 1.0 - 0.01 * 0.1 } else { 1.0 };
                    want[i] =
                        want[i] * keep - 0.01 * (means[i] / c1) / ((squares[i] / c2).sqrt() + 1e-8);
                }
            }
            check("adamw", &p, &want);
        }
    }
    for nesterov in [true, false] {
        let settings = Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.01, nesterov };
        let mut p = tensor(&noise(n, 20), &[n], DType::F32);
        let mut direction = Tensor::full(&[n], f32::NAN).unwrap();
        let (mut want, mut along) = (values(&p), vec![0.0; n]);
        for step in 1..4u64 {
            let grad = tensor(&noise(n, 21 + step), &[n], DType::F32);
            settings.step(&mut p, &grad, Some(&mut direction), step).unwrap();
            for (i, grad) in values(&grad).iter().enumerate() {
                let grad = grad + 0.01 * want[i];
                along[i] = if step == 1 { grad } else { 0.9 * along[i] + grad };
                want[i] -= 0.1 * if nesterov { grad + 0.9 * along[i] } else { along[i] };
            }
        }
        check("sgd", &p, &want);
        let plain = Sgd { momentum: 0.0, ..settings };
        let before = values(&p);
        plain.step(&mut p, &tensor(&vec![1.0; n], &[n], DType::F32), None, 1).unwrap();
        check("sgd", &p, &before.iter().map(|p| p - 0.1 * (1.0 + 0.01 * p)).collect::<Vec<_>>());
        assert!(settings.step(&mut p, &tensor(&vec![1.0; n], &[n], DType::F32), None, 1).is_err());
    }
}

#[test]
fn a_step_does_not_change_a_tensor_that_shares_memory() {
    let mut p = Tensor::full(&[3], 1.0_f32).unwrap();
    let before = p.clone();
    Sgd::default().step(&mut p, &before, None, 1).unwrap();
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0; 3]);
    assert_ne!(p.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn an_index_out_of_range_is_an_error_and_not_a_read() {
    let table = Tensor::zeros(&[4, 2], DType::F32).unwrap();
    for id in [4_i64, -1, i64::MIN, i64::MAX] {
        let ids = Tensor::from_vec(vec![0, id], &[2]).unwrap();
        let error = table.embedding(&ids).unwrap_err();
        assert!(matches!(error, LocalError::IndexOutOfRange { size: 4, .. }), "{error}");
        let grad = Tensor::zeros(&[2, 2], DType::F32).unwrap();
        assert!(matches!(
            grad.embedding_backward(&ids, 4),
            Err(LocalError::IndexOutOfRange { .. })
        ));
        let logits = Tensor::zeros(&[2, 4], DType::F32).unwrap();
        let error = logits.cross_entropy(&ids, &CrossEntropy::default()).unwrap_err();
        assert!(matches!(error, LocalError::IndexOutOfRange { dim: 1, size: 4, .. }), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let x = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let ints = Tensor::zeros(&[2, 3], DType::I32).unwrap();
    assert!(matches!(x.softmax(2), Err(LocalError::DimOutOfRange { .. })));
    assert!(matches!(ints.softmax(0), Err(LocalError::NotFloat { .. })));
    assert!(matches!(x.layer_norm(&[2], None, None, 0.0), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(x.layer_norm(&[], None, None, 0.0), Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(x.embedding(&x), Err(LocalError::WrongDType { .. })));
    let targets = Tensor::zeros(&[2], DType::I64).unwrap();
    let settings = CrossEntropy { label_smoothing: 2.0, ..CrossEntropy::default() };
    assert!(matches!(x.cross_entropy(&targets, &settings), Err(LocalError::BadNumber { .. })));
    assert!(matches!(x.cross_entropy(&x, &settings), Err(LocalError::ShapeMismatch { .. })));
}

#[test]
fn meta_tensors_give_shapes() {
    let x = Tensor::meta(&[1 << 20, 3, 1 << 20], DType::Bf16).unwrap();
    assert!(x.softmax(1).unwrap().is_meta());
    assert_eq!(x.layer_norm_backward(&x, &[1 << 20], None, EPS).unwrap().weight.shape(), [1 << 20]);
    let targets = Tensor::meta(&[1 << 20, 1 << 20], DType::I64).unwrap();
    let (loss, log_sums) = x.cross_entropy(&targets, &CrossEntropy::default()).unwrap();
    assert_eq!((loss.shape(), log_sums.shape()), (&[][..], targets.shape()));
    let table = Tensor::meta(&[7, 5], DType::F32).unwrap();
    assert_eq!(table.embedding(&targets).unwrap().shape(), [1 << 20, 1 << 20, 5]);
}

#[test]
fn empty_tensors_are_ordinary() {
    let x = Tensor::zeros(&[0, 3], DType::F32).unwrap();
    let targets = Tensor::zeros(&[0], DType::I64).unwrap();
    let (loss, log_sums) = x.cross_entropy(&targets, &CrossEntropy::default()).unwrap();
    assert!(loss.item::<f32>().unwrap().is_nan());
    let grad =
        x.cross_entropy_backward(&targets, &log_sums, &loss, &CrossEntropy::default()).unwrap();
    assert_eq!(grad.shape(), [0, 3]);
    let grads = x.layer_norm_backward(&x, &[3], None, EPS).unwrap();
    assert_eq!(grads.weight.to_vec::<f32>().unwrap(), [0.0; 3]);
    let none = Tensor::zeros(&[3, 0], DType::F32).unwrap();
    assert_eq!(none.softmax(1).unwrap().shape(), [3, 0]);
    assert_eq!(none.layer_norm(&[0], None, None, EPS).unwrap().shape(), [3, 0]);
    assert_eq!(none.layer_norm_backward(&none, &[0], None, EPS).unwrap().weight.shape(), [0]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let (rows, len) = (300, 512);
    let x = tensor(&noise(rows * len, 40), &[rows, len], DType::F32);
    let ids: Vec<i64> = (0..rows as i64).map(|i| i * 7 % 40).collect();
    let ids = Tensor::from_vec(ids, &[rows]).unwrap();
    let heads = x.reshape(&[2, 4, 300, 64]).unwrap();
    let run = |threads| {
        dtensor_local::set_threads(threads);
        let norms = x.layer_norm_backward(&x, &[len], None, EPS).unwrap();
        let (loss, log_sums) = x.cross_entropy(&ids, &CrossEntropy::default()).unwrap();
        let settings = Attention { causal: true, scale: None };
        let (out, sums) = heads.attention(&heads, &heads, &settings).unwrap();
        let grads =
            heads.attention_backward(&heads, &heads, (&out, &sums), &out, &settings).unwrap();
        [
            x.softmax(1).unwrap(),
            norms.input,
            norms.weight,
            loss,
            log_sums,
            x.embedding_backward(&ids, 40).unwrap(),
            out,
            grads.queries,
            grads.keys,
            grads.values,
        ]
        .map(|tensor| tensor.to_vec::<f32>().unwrap())
    };
    assert_eq!(run(1), run(3));
}
