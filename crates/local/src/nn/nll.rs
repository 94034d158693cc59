//! The loss of log-probabilities and class indices.

use super::{
    cross_entropy::{CrossEntropy, Reduction, check, classes_of, is_meta, n_classes, total},
    real::{Real, by_real, check_dtype, check_shape, rounded, widened},
};
use crate::{Result, Tensor, dims::Dims};

/// The settings of [`Tensor::nll_loss`], those of `torch.nn.functional.nll_loss`.
#[derive(Clone, Copy, Debug)]
pub struct NllLoss<'a> {
    /// One weight per class.
    pub weight: Option<&'a Tensor>,
    /// Samples with this target count for nothing.
    pub ignore_index: i64,
    /// What becomes of the losses of the samples.
    pub reduction: Reduction,
}

impl Default for NllLoss<'_> {
    fn default() -> Self {
        NllLoss { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

impl<'a> NllLoss<'a> {
    fn as_cross_entropy(&self) -> CrossEntropy<'a> {
        let NllLoss { weight, ignore_index, reduction } = *self;
        CrossEntropy { weight, ignore_index, label_smoothing: 0.0, reduction }
    }
}

impl Tensor {
    /// The loss `-weight[target] x[target]` of log-probabilities `[N, C, ...]` (or `[C]`) for targets `[N, ...]` (or
    /// one): class indices, `i64` or `i32`. The mean over no samples is NaN, as in PyTorch.
    pub fn nll_loss(&self, targets: &Tensor, settings: &NllLoss) -> Result<Tensor> {
        let (op, settings) = ("nll_loss", settings.as_cross_entropy());
        let sample_shape = check(op, self, targets, &settings, n_classes(self))?;
        let shape = result_shape(settings.reduction, &sample_shape);
        if is_meta(self, targets, &settings) {
            return Tensor::meta(shape, self.dtype());
        }
        let wide = widened(op, self)?;
        let loss = by_real!(wide, R => {
            let samples = Samples::<R>::new(op, &wide, targets, &settings)?;
            let x = wide.as_slice::<R>()?;
            let loss = |(at, weight): &(usize, R)| -*weight * x[*at];
            let losses: Vec<R> =
                samples.targets.iter().map(|target| target.as_ref().map_or(R::ZERO, loss)).collect();
            match settings.reduction {
                Reduction::None => Tensor::from_vec(losses, &sample_shape)?,
                Reduction::Sum => Tensor::scalar(R::of(total(&losses))),
                Reduction::Mean => Tensor::scalar(R::of(total(&losses) / samples.divisor())),
            }
        });
        rounded(op, loss, self.dtype())
    }

    /// The gradient of [`Tensor::nll_loss`] with respect to the log-probabilities (`self`, of which only the shape
    /// matters), given that of its result.
    pub fn nll_loss_backward(
        &self,
        targets: &Tensor,
        grad: &Tensor,
        settings: &NllLoss,
    ) -> Result<Tensor> {
        let (op, settings) = ("nll_loss_backward", settings.as_cross_entropy());
        let sample_shape = check(op, self, targets, &settings, n_classes(self))?;
        check_dtype(op, grad, self.dtype())?;
        let shape = result_shape(settings.reduction, &sample_shape);
        check_shape(op, grad, shape, "a gradient has the shape of the result")?;
        if is_meta(self, targets, &settings) || grad.is_meta() {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let wide = widened(op, grad)?;
        let out = by_real!(wide, R => {
            let samples = Samples::<R>::new(op, self, targets, &settings)?;
            let grads = wide.as_slice::<R>()?;
            let divisor = match settings.reduction {
                Reduction::Mean => R::of(samples.divisor()),
                _ => R::ONE,
            };
            let mut out = Tensor::zeros(self.shape(), wide.dtype())?;
            let values = out.as_mut_slice::<R>()?;
            for (sample, target) in samples.targets.iter().enumerate() {
                let Some((at, weight)) = target else { continue };
                let grad = if settings.reduction == Reduction::None { grads[sample] } else { grads[0] };
                values[*at] = -*weight * grad / divisor;
            }
            out
        });
        rounded(op, out, self.dtype())
    }
}

fn result_shape(reduction: Reduction, sample_shape: &Dims) -> &[usize] {
    if reduction == Reduction::None { sample_shape } else { &[] }
}

/// Where the target of every sample lies among the log-probabilities, and its weight; `None` if it is ignored.
struct Samples<R> {
    targets: Vec<Option<(usize, R)>>,
}

impl<R: Real> Samples<R> {
    fn new(
        op: &'static str,
        x: &Tensor,
        targets: &Tensor,
        settings: &CrossEntropy,
    ) -> Result<Samples<R>> {
        let (n_classes, inner) = match x.shape() {
            [_, n_classes, rest @ ..] => (*n_classes, rest.iter().product::<usize>()),
            shape => (shape.first().copied().unwrap_or(1), 1),
        };
        let weight = match settings.weight {
            Some(weight) => Some(widened(op, weight)?.to_vec::<R>()?),
            None => None,
        };
        let dim = x.n_dims().min(2) - 1;
        let classes = classes_of(op, targets, settings.ignore_index, n_classes, dim)?;
        let place = |(sample, class): (usize, Option<usize>)| {
            let class = class?;
            let at = (sample / inner * n_classes + class) * inner + sample % inner;
            Some((at, weight.as_ref().map_or(R::ONE, |weight| weight[class])))
        };
        Ok(Samples { targets: classes.into_iter().enumerate().map(place).collect() })
    }

    /// What the mean divides by.
    fn divisor(&self) -> f64 {
        self.targets.iter().flatten().map(|(_, weight)| weight.wide()).sum()
    }
}
