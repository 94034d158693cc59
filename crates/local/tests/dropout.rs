//! Dropout by mask, and the loss of log-probabilities.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Tensor,
    nn::{CrossEntropy, NllLoss, Reduction},
};
use floats::{FLOATS, as_view, check, differences, noise, noisy, tensor, values};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn dropout_scales_what_stays(shape in prop::collection::vec(0usize..9, 0..4), p in 0.0..1.0, which in 0usize..4, seed: u64) {
        let x = noisy(&shape, seed, FLOATS[which]);
        let kept: Vec<bool> = noise(x.numel(), seed ^ 1).iter().map(|x| *x > 0.3).collect();
        let mask = Tensor::from_vec(kept.clone(), &shape).unwrap();
        let want: Vec<f64> =
            values(&x).iter().zip(kept).map(|(x, keeps)| if keeps { x / (1.0 - p) } else { 0.0 }).collect();
        check("dropout", &as_view(&x).dropout(&as_view(&mask), p).unwrap(), &want, 1.0);
    }

    #[test]
    fn nll_loss_is_cross_entropy_after_log_softmax(
        n in 1usize..5, c in 1usize..6, inner in prop::collection::vec(1usize..4, 0..3), weighted: bool,
        reduction in 0usize..3, which in 0usize..2, seed: u64,
    ) {
        let dtype = FLOATS[which];
        let shape: Vec<usize> = [n, c].into_iter().chain(inner.iter().copied()).collect();
        let samples: Vec<usize> = [n].into_iter().chain(inner).collect();
        let n_samples = samples.iter().product();
        let logits = noisy(&shape, seed, dtype);
        // The last class of all is ignored.
        let class = |x: &f64| (((x + 2.0) / 4.0 * (c + 1) as f64) as i64).min(c as i64);
        let targets = Tensor::from_vec(noise(n_samples, seed ^ 1).iter().map(class).collect(), &samples).unwrap();
        let weight = tensor(&noise(c, seed ^ 2).iter().map(|x| x.abs() + 0.1).collect::<Vec<_>>(), &[c], dtype);
        let weight = weighted.then_some(&weight);
        let reduction = [Reduction::Mean, Reduction::Sum, Reduction::None][reduction];
        let ignore_index = c as i64;
        let settings = NllLoss { weight, ignore_index, reduction };
        let logs = logits.log_softmax(1).unwrap();
        let loss = as_view(&logs).nll_loss(&targets, &settings).unwrap();
        let whole = CrossEntropy { weight, ignore_index, reduction, label_smoothing: 0.0 };
        let (want, log_sums) = logits.cross_entropy(&targets, &whole).unwrap();
        prop_assert_eq!(loss.shape(), want.shape());
        check("loss", &loss, &values(&want), 2.0);
        let grad = noisy(loss.shape(), seed ^ 3, dtype);
        let got = logs.nll_loss_backward(&targets, &grad, &settings).unwrap();
        let want = logits.cross_entropy_backward(&targets, &log_sums, &grad, &whole).unwrap();
        let through = logs.log_softmax_backward(&got, 1).unwrap();
        check("gradient", &through, &values(&want), 4.0);
    }
}

#[test]
fn gradients_of_nll_loss_are_finite_differences() {
    let (x, weight) = (noise(2 * 3 * 2, 1), [0.5, 2.0, 1.0]);
    let targets = Tensor::from_vec(vec![0_i32, 2, -1, 1], &[2, 2]).unwrap();
    let weight = tensor(&weight, &[3], DType::F64);
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        let settings = NllLoss { weight: Some(&weight), ignore_index: -1, reduction };
        let of = |x: &[f64]| tensor(x, &[2, 3, 2], DType::F64);
        let loss = of(&x).nll_loss(&targets, &settings).unwrap();
        let grad = noisy(loss.shape(), 2, DType::F64);
        let want = differences(&x, &values(&grad), |x| {
            values(&of(x).nll_loss(&targets, &settings).unwrap())
        });
        let got = of(&x).nll_loss_backward(&targets, &grad, &settings).unwrap();
        check("gradient", &got, &want, 1e4);
    }
}

#[test]
fn edges_of_dropout_and_losses() {
    let x = Tensor::from_vec(vec![1.0_f32, f32::NAN], &[2]).unwrap();
    let mask = Tensor::from_vec(vec![true, false], &[2]).unwrap();
    // All are dropped, and NaN times zero is NaN, as in PyTorch.
    check("p = 1", &x.dropout(&mask, 1.0).unwrap(), &[0.0, f64::NAN], 1.0);
    for p in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(x.dropout(&mask, p), Err(LocalError::BadNumber { .. })));
    }
    assert!(matches!(x.dropout(&x, 0.5), Err(LocalError::WrongDType { .. })));
    assert!(matches!(
        x.dropout(&mask.unsqueeze(0).unwrap(), 0.5),
        Err(LocalError::ShapeMismatch { .. })
    ));
    let meta = Tensor::meta(&[2], DType::F32).unwrap();
    assert!(meta.dropout(&mask, 0.5).unwrap().is_meta());

    let logs = Tensor::from_vec(vec![-1.0_f32, -2.0], &[2]).unwrap();
    let one = |class: i64| Tensor::scalar(class);
    let loss = |class: i64| logs.nll_loss(&one(class), &NllLoss::default());
    assert_eq!(loss(1).unwrap().item::<f32>().unwrap(), 2.0);
    assert!(loss(-100).unwrap().item::<f32>().unwrap().is_nan());
    assert!(matches!(loss(2), Err(LocalError::IndexOutOfRange { .. })));
    assert!(meta.nll_loss(&one(0), &NllLoss::default()).unwrap().is_meta());
}
