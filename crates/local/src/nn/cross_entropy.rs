//! Cross entropy of logits and class indices, without the table of log-probabilities.

use std::ops::Range;

use super::{
    embedding::indices,
    real::{
        Real, by_real, check_dtype, check_float, check_shape, rounded, row_sum_2, rows_per_piece,
        widened,
    },
    softmax::log_sum_exp,
};
use crate::{DType, LocalError, Result, Tensor, dims::Dims, simd::vectorized, threads};

/// How the losses of the samples become the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum over the sum of the weights of their classes.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// As they are, one per sample.
    None,
}

/// The settings of [`Tensor::cross_entropy`], those of `torch.nn.functional.cross_entropy`.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// One weight per class.
    pub weight: Option<&'a Tensor>,
    /// Samples with this target count for nothing.
    pub ignore_index: i64,
    /// The part of the target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What becomes of the losses of the samples.
    pub reduction: Reduction,
}

impl Default for CrossEntropy<'_> {
    fn default() -> Self {
        let reduction = Reduction::Mean;
        CrossEntropy { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction }
    }
}

impl Tensor {
    /// The loss of logits `[N, C, ...]` (or `[C]`) for targets `[N, ...]` (or one): class indices, `i64` or
    /// `i32`. Gives the loss, and `log(sum(exp(logits)))` of every sample for
    /// [`Tensor::cross_entropy_backward`]. The mean over no samples is NaN, as in PyTorch.
    ///
    /// ```
    /// use dtensor_local::{Tensor, nn::CrossEntropy};
    ///
    /// let logits = Tensor::from_vec(vec![0.0_f32, 0.0, 0.0, 0.0], &[2, 2])?;
    /// let targets = Tensor::from_vec(vec![0_i64, 1], &[2])?;
    /// let (loss, _) = logits.cross_entropy(&targets, &CrossEntropy::default())?;
    /// assert!((loss.item::<f32>()? - 2.0_f32.ln()).abs() < 1e-6);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn cross_entropy(
        &self,
        targets: &Tensor,
        settings: &CrossEntropy,
    ) -> Result<(Tensor, Tensor)> {
        let op = "cross_entropy";
        let n_classes = n_classes(self);
        let sample_shape = check(op, self, targets, settings, n_classes)?;
        if is_meta(self, targets, settings) {
            let scalar = settings.reduction != Reduction::None;
            let loss = Tensor::meta(if scalar { &[] } else { &sample_shape }, self.dtype())?;
            return Ok((loss, Tensor::meta(&sample_shape, kept_dtype(self))?));
        }
        let wide = widened(op, &classes_last(self)?)?;
        by_real!(wide, R => {
            let classes = (0..n_classes, n_classes);
            let samples = Samples::<R>::new(op, &wide, targets, settings, classes)?;
            let log_sums = samples.log_sums(op, &sample_shape)?;
            let losses = samples.losses(log_sums.as_slice()?);
            let loss = match settings.reduction {
                Reduction::None => Tensor::from_vec(losses, &sample_shape)?,
                Reduction::Sum => Tensor::scalar(R::of(total(&losses))),
                Reduction::Mean => Tensor::scalar(R::of(total(&losses) / samples.divisor())),
            };
            Ok((rounded(op, loss, self.dtype())?, log_sums))
        })
    }

    /// The gradient of [`Tensor::cross_entropy`] with respect to the logits (`self`), given its second
    /// result and the gradient of its first.
    pub fn cross_entropy_backward(
        &self,
        targets: &Tensor,
        log_sums: &Tensor,
        grad: &Tensor,
        settings: &CrossEntropy,
    ) -> Result<Tensor> {
        let n_classes = n_classes(self);
        let classes = (0..n_classes, n_classes);
        self.cross_entropy_backward_part(targets, log_sums, grad, settings, classes)
    }

    /// As [`Tensor::cross_entropy_backward`], of logits that are those of some of the classes: a range of so many in all,
    /// of which the settings have the weights. The gradient may also be in what is computed in.
    pub fn cross_entropy_backward_part(
        &self,
        targets: &Tensor,
        log_sums: &Tensor,
        grad: &Tensor,
        settings: &CrossEntropy,
        (held, n_classes): (Range<usize>, usize),
    ) -> Result<Tensor> {
        let op = "cross_entropy_backward";
        let sample_shape = check(op, self, targets, settings, n_classes)?;
        check_dtype(op, log_sums, kept_dtype(self))?;
        check_shape(op, log_sums, &sample_shape, "it is the second result of cross_entropy")?;
        if grad.dtype() != kept_dtype(self) {
            check_dtype(op, grad, self.dtype())?;
        }
        if held.len() != self::n_classes(self) || held.end > n_classes {
            let (got, want) = (format!("{held:?} of {n_classes}"), "the classes of the logits");
            return Err(LocalError::BadNumber { op, name: "classes", got, want });
        }
        let grad_shape: &[usize] =
            if settings.reduction == Reduction::None { &sample_shape } else { &[] };
        check_shape(op, grad, grad_shape, "a gradient has the shape of the result")?;
        if is_meta(self, targets, settings) || log_sums.is_meta() || grad.is_meta() {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let wide = widened(op, &classes_last(self)?)?;
        let (grad, log_sums) = (widened(op, grad)?, log_sums.contiguous());
        let out = by_real!(wide, R => {
            let samples = Samples::<R>::new(op, &wide, targets, settings, (held, n_classes))?;
            let grads = grad.as_slice::<R>()?;
            let divisor = match settings.reduction {
                Reduction::Mean => R::of(samples.divisor()),
                _ => R::ONE,
            };
            let grad_of = |sample: usize| match settings.reduction {
                Reduction::None => grads[sample],
                _ => grads[0] / divisor,
            };
            samples.backward(op, wide.shape(), log_sums.as_slice()?, grad_of)?
        });
        let out = rounded(op, out, self.dtype())?;
        let n_dims = out.n_dims() as isize;
        // The classes go back to where they were, as a view: whoever brought them there from the end takes them back.
        let order: Dims<isize> = (0..n_dims)
            .map(|dim| {
                if dim == 0 {
                    0
                } else if dim == 1 {
                    n_dims - 1
                } else {
                    dim - 1
                }
            })
            .collect();
        if n_dims > 2 { out.permute(&order) } else { Ok(out) }
    }
}

/// Logits in rows of classes, with what the settings make of their targets.
struct Samples<'a, R> {
    logits: &'a [R],
    /// The classes of the rows.
    held: Range<usize>,
    /// Of how many classes in all.
    n_classes: usize,
    /// `None` for a sample that is ignored.
    targets: Vec<Option<usize>>,
    weight: Option<Vec<R>>,
    weight_sum: f64,
    smoothing: f64,
}

impl<'a, R: Real> Samples<'a, R> {
    fn new(
        op: &'static str,
        logits: &'a Tensor,
        targets: &Tensor,
        settings: &CrossEntropy,
        (held, n_classes): (Range<usize>, usize),
    ) -> Result<Samples<'a, R>> {
        let dim = logits.n_dims().min(2) - 1;
        let targets = classes_of(op, targets, settings.ignore_index, n_classes, dim)?;
        let weight = match settings.weight {
            Some(weight) => Some(widened(op, weight)?.to_vec::<R>()?),
            None => None,
        };
        let weight_sum = weight.as_ref().map_or(n_classes as f64, |weight| total(weight));
        let (logits, smoothing) = (logits.as_slice::<R>()?, settings.label_smoothing);
        Ok(Samples { logits, held, n_classes, targets, weight, weight_sum, smoothing })
    }

    fn row(&self, sample: usize) -> &'a [R] {
        &self.logits[sample * self.held.len()..][..self.held.len()]
    }

    fn weight_of(&self, class: usize) -> f64 {
        self.weight.as_ref().map_or(1.0, |weight| weight[class].wide())
    }

    /// What the mean divides by.
    fn divisor(&self) -> f64 {
        self.targets.iter().flatten().map(|class| self.weight_of(*class)).sum()
    }

    fn log_sums(&self, op: &'static str, shape: &[usize]) -> Result<Tensor> {
        Tensor::write(op, shape, |out: &mut [R]| {
            threads::for_pieces_of(out, 1, rows_per_piece(self.n_classes), |piece, out| {
                for (sample, out) in piece.zip(out) {
                    *out = log_sum_exp(self.row(sample));
                }
            });
        })
    }

    /// The loss of every sample: the target's share, and what is spread over all classes.
    fn losses(&self, log_sums: &[R]) -> Vec<R> {
        let mut losses = vec![R::ZERO; self.targets.len()];
        let grain = if self.smoothing > 0.0 { rows_per_piece(self.n_classes) } else { 32 * 1024 };
        threads::for_pieces_of(&mut losses, 1, grain, |piece, losses| {
            for (sample, loss) in piece.zip(losses) {
                let Some(class) = self.targets[sample] else { continue };
                let (row, log_sum) = (self.row(sample), log_sums[sample]);
                let sharp = self.weight_of(class) * (log_sum - row[class]).wide();
                if self.smoothing > 0.0 {
                    let spread = match &self.weight {
                        Some(weight) => weighted_distance(row, weight, log_sum),
                        None => distance(row, log_sum),
                    };
                    let spread = self.smoothing / self.n_classes as f64 * spread.wide();
                    *loss = R::of((1.0 - self.smoothing) * sharp + spread);
                } else {
                    *loss = R::of(sharp);
                }
            }
        });
        losses
    }

    /// With `p` the softmax: `grad (all p - even weight - sharp at the target)`.
    fn backward(
        &self,
        op: &'static str,
        shape: &[usize],
        log_sums: &[R],
        grad_of: impl Fn(usize) -> R + Sync,
    ) -> Result<Tensor> {
        let even = self.smoothing / self.n_classes as f64;
        Tensor::write(op, shape, |out: &mut [R]| {
            let n = self.held.len();
            if n == 0 {
                return;
            }
            threads::for_pieces_of(out, n, rows_per_piece(n), |piece, out| {
                for (sample, out) in piece.zip(out.chunks_exact_mut(n)) {
                    let Some(class) = self.targets[sample] else {
                        out.fill(R::ZERO);
                        continue;
                    };
                    let grad = grad_of(sample);
                    let sharp = (1.0 - self.smoothing) * self.weight_of(class);
                    let all = grad * R::of(sharp + even * self.weight_sum);
                    scaled_softmax(self.row(sample), log_sums[sample], all, out);
                    if even > 0.0 {
                        let even = grad * R::of(even);
                        for (class, out) in self.held.clone().zip(out.iter_mut()) {
                            *out = *out - even * R::of(self.weight_of(class));
                        }
                    }
                    if self.held.contains(&class) {
                        let out = &mut out[class - self.held.start];
                        *out = *out - grad * R::of(sharp);
                    }
                }
            });
        })
    }
}

vectorized! {
    fn scaled_softmax<R: Real>(row: &[R], log_sum: R, scale: R, out: &mut [R]) {
        for (out, x) in out.iter_mut().zip(row) {
            *out = (*x - log_sum).exp::<FMA>() * scale;
        }
    }
}

vectorized! {
    fn distance<R: Real>(row: &[R], log_sum: R) -> R {
        row_sum_2(row, row, |x, _| log_sum - x)
    }
}

vectorized! {
    fn weighted_distance<R: Real>(row: &[R], weight: &[R], log_sum: R) -> R {
        row_sum_2(row, weight, |x, weight| weight * (log_sum - x))
    }
}

/// The classes of targets, `None` for those that are ignored; `dim` is that of the classes.
pub(super) fn classes_of(
    op: &'static str,
    targets: &Tensor,
    ignore_index: i64,
    n_classes: usize,
    dim: usize,
) -> Result<Vec<Option<usize>>> {
    let class = |target: i64| {
        if target == ignore_index {
            return Ok(None);
        }
        let class = usize::try_from(target).ok().filter(|class| *class < n_classes);
        let (index, size) = (target as isize, n_classes);
        class.map(Some).ok_or(LocalError::IndexOutOfRange { op, index, dim, size })
    };
    indices(op, targets)?.into_iter().map(class).collect()
}

/// A sum that does not lose digits over many samples.
pub(super) fn total<R: Real>(values: &[R]) -> f64 {
    values.iter().map(|value| value.wide()).sum()
}

/// The classes of `[N, C, ...]` or `[C]`.
pub(super) fn n_classes(logits: &Tensor) -> usize {
    logits.shape().get(logits.n_dims().min(2).wrapping_sub(1)).copied().unwrap_or(0)
}

/// The dtype of the second result: what the kernel computes in.
fn kept_dtype(logits: &Tensor) -> DType {
    if logits.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Refuses what does not fit; gives the shape of the targets.
pub(super) fn check(
    op: &'static str,
    logits: &Tensor,
    targets: &Tensor,
    settings: &CrossEntropy,
    n_classes: usize,
) -> Result<Dims> {
    check_float(op, logits)?;
    let shape = logits.shape();
    let sample_shape: Dims = match shape {
        [] => {
            let (from, why) = (shape.to_vec(), "logits need a dim of classes");
            return Err(LocalError::ShapeMismatch { op, from, to: vec![1], why });
        }
        [_] => Dims::new(),
        [n, _, rest @ ..] => [&[*n], rest].concat().into(),
    };
    check_shape(
        op,
        targets,
        &sample_shape,
        "targets have the shape of the logits without the classes",
    )?;
    if !matches!(targets.dtype(), DType::I64 | DType::I32) {
        return Err(LocalError::WrongDType { op, got: targets.dtype(), want: DType::I64 });
    }
    if let Some(weight) = settings.weight {
        check_dtype(op, weight, logits.dtype())?;
        check_shape(op, weight, &[n_classes], "there is one weight per class")?;
    }
    if !(0.0..=1.0).contains(&settings.label_smoothing) {
        return Err(LocalError::BadNumber {
            op,
            name: "label_smoothing",
            got: settings.label_smoothing.to_string(),
            want: "a number from 0 to 1",
        });
    }
    Ok(sample_shape)
}

pub(super) fn is_meta(logits: &Tensor, targets: &Tensor, settings: &CrossEntropy) -> bool {
    logits.is_meta() || targets.is_meta() || settings.weight.is_some_and(Tensor::is_meta)
}

/// `[N, C, ...]` as `[N, ..., C]`.
fn classes_last(logits: &Tensor) -> Result<Tensor> {
    let n_dims = logits.n_dims() as isize;
    if n_dims <= 2 {
        return Ok(logits.clone());
    }
    let order: Dims<isize> = std::iter::once(0).chain(2..n_dims).chain([1]).collect();
    logits.permute(&order)
}
