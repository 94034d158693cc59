//! Steps of optimizers in one pass over memory, in place.

use super::real::{Real, check_dtype, check_float, check_shape};
use crate::{
    DType, Element, LocalError, Result, Tensor, bf16, disjoint::Disjoint, f16, simd::vectorized,
    threads,
};

/// Settings of [`AdamW::step`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of the gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub eps: f64,
    /// The part of itself, times the learning rate, that a parameter loses per step.
    pub weight_decay: f64,
    /// Whether the decay is apart from the gradient (AdamW) or added to it (Adam).
    pub decoupled: bool,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2, decoupled: true }
    }
}

impl AdamW {
    /// One step of a parameter and of its two means, all of one shape and dtype. `step` counts from 1. As
    /// `torch.optim.AdamW` (or `Adam`). Nothing is changed if there is an error.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor, nn::AdamW};
    ///
    /// let mut x = Tensor::full(&[2], 1.0_f64)?;
    /// let (mut mean, mut square) = (Tensor::zeros(&[2], DType::F64)?, Tensor::zeros(&[2], DType::F64)?);
    /// let grad = Tensor::full(&[2], 0.5_f64)?;
    /// AdamW { lr: 0.1, ..AdamW::default() }.step(&mut x, &grad, &mut mean, &mut square, 1)?;
    /// assert!((x.to_vec::<f64>()?[0] - (1.0 * (1.0 - 0.1 * 1e-2) - 0.1)).abs() < 1e-8);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn step(
        &self,
        parameter: &mut Tensor,
        grad: &Tensor,
        mean: &mut Tensor,
        square: &mut Tensor,
        step: u64,
    ) -> Result<()> {
        let op = "adamw_step";
        check_alike(op, parameter, &[grad, mean, square])?;
        if step == 0 {
            let (name, want) = ("step", "a count from 1");
            return Err(LocalError::BadNumber { op, name, got: step.to_string(), want });
        }
        if [&*parameter, grad, mean, square].iter().any(|tensor| tensor.is_meta()) {
            return Ok(());
        }
        let grad = grad.contiguous();
        macro_rules! run {
            ($T:ty) => {{
                let factors = Factors::<<$T as Stored>::Real>::new(self, step);
                let grad = grad.as_slice::<$T>()?;
                let parameter = Disjoint::new(parameter.as_mut_slice::<$T>()?);
                let mean = Disjoint::new(mean.as_mut_slice::<$T>()?);
                let square = Disjoint::new(square.as_mut_slice::<$T>()?);
                threads::for_pieces(grad.len(), GRAIN, &|piece| {
                    // SAFETY: Pieces do not overlap.
                    let (parameter, mean, square) = unsafe {
                        (
                            parameter.part(piece.clone()),
                            mean.part(piece.clone()),
                            square.part(piece.clone()),
                        )
                    };
                    adam(&factors, &grad[piece], parameter, mean, square);
                });
            }};
        }
        by_stored!(parameter, run);
        Ok(())
    }
}

/// Settings of [`Sgd::step`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// How much of the last direction stays.
    pub momentum: f64,
    /// How much of the gradient does not enter the direction.
    pub dampening: f64,
    /// The part of the parameter that is added to its gradient.
    pub weight_decay: f64,
    /// Whether to look ahead along the direction.
    pub nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Sgd {
        Sgd { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl Sgd {
    /// One step of a parameter and, with momentum, of its direction, both of one shape and dtype. `step`
    /// counts from 1; in the first one the direction becomes the gradient, as in `torch.optim.SGD`.
    /// Without momentum the direction is neither read nor written. Nothing is changed if there is an error.
    pub fn step(
        &self,
        parameter: &mut Tensor,
        grad: &Tensor,
        direction: Option<&mut Tensor>,
        step: u64,
    ) -> Result<()> {
        let op = "sgd_step";
        check_alike(op, parameter, &[grad])?;
        let mut direction = direction.filter(|_| self.momentum != 0.0);
        if let Some(direction) = &direction {
            check_alike(op, parameter, &[direction])?;
        } else if self.momentum != 0.0 {
            let (name, want) = ("momentum", "0, or a tensor for the direction");
            return Err(LocalError::BadNumber { op, name, got: self.momentum.to_string(), want });
        }
        let no_values = direction.as_ref().is_some_and(|direction| direction.is_meta());
        if parameter.is_meta() || grad.is_meta() || no_values {
            return Ok(());
        }
        let grad = grad.contiguous();
        macro_rules! run {
            ($T:ty) => {{
                let grad = grad.as_slice::<$T>()?;
                let direction = match &mut direction {
                    Some(direction) => direction.as_mut_slice::<$T>()?,
                    None => &mut [],
                };
                let has_direction = !direction.is_empty();
                let direction = Disjoint::new(direction);
                let parameter = Disjoint::new(parameter.as_mut_slice::<$T>()?);
                threads::for_pieces(grad.len(), GRAIN, &|piece| {
                    // SAFETY: Pieces do not overlap.
                    let (parameter, direction) = unsafe {
                        let directions = if has_direction { piece.clone() } else { 0..0 };
                        (parameter.part(piece.clone()), direction.part(directions))
                    };
                    sgd(self, step <= 1, &grad[piece], parameter, direction);
                });
            }};
        }
        by_stored!(parameter, run);
        Ok(())
    }
}

/// Elements per hand-over to a thread.
const GRAIN: usize = 32 * 1024;

/// A type that parameters are stored in, and the one it is computed in.
trait Stored: Element {
    type Real: Real;
    fn load(self) -> Self::Real;
    fn store(value: Self::Real) -> Self;
}

macro_rules! stored {
    ($($T:ty, $R:ty, $load:expr, $store:expr;)*) => {$(
        impl Stored for $T {
            type Real = $R;
            #[inline(always)]
            fn load(self) -> $R {
                $load(self)
            }
            #[inline(always)]
            fn store(value: $R) -> $T {
                $store(value)
            }
        }
    )*};
}

stored! {
    f32, f32, |x| x, |x| x;
    f64, f64, |x| x, |x| x;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    f16, f32, f16::to_f32, f16::from_f32;
}

/// Runs a macro with the floating-point type of a tensor that [`check_alike`] has let pass.
macro_rules! by_stored {
    ($tensor:expr, $run:ident) => {
        match $tensor.dtype() {
            DType::F64 => $run!(f64),
            DType::Bf16 => $run!(bf16),
            DType::F16 => $run!(f16),
            _ => $run!(f32),
        }
    };
}
use by_stored;

/// The settings of a step as the loop needs them.
struct Factors<R> {
    beta1: R,
    rest1: R,
    beta2: R,
    rest2: R,
    eps: R,
    /// What stays of the parameter.
    keep: R,
    /// What of the parameter is added to the gradient.
    coupled: R,
    rate: R,
    /// One over the root of the correction of the squares.
    root: R,
}

impl<R: Real> Factors<R> {
    fn new(settings: &AdamW, step: u64) -> Factors<R> {
        let AdamW { lr, beta1, beta2, eps, weight_decay, decoupled } = *settings;
        Factors {
            beta1: R::of(beta1),
            rest1: R::of(1.0 - beta1),
            beta2: R::of(beta2),
            rest2: R::of(1.0 - beta2),
            eps: R::of(eps),
            keep: R::of(if decoupled { 1.0 - lr * weight_decay } else { 1.0 }),
            coupled: R::of(if decoupled { 0.0 } else { weight_decay }),
            rate: R::of(lr / (1.0 - beta1.powf(step as f64))),
            root: R::of(1.0 / (1.0 - beta2.powf(step as f64)).sqrt()),
        }
    }
}

vectorized! {
    fn adam<T: Stored>(
        factors: &Factors<T::Real>,
        grad: &[T],
        parameter: &mut [T],
        mean: &mut [T],
        square: &mut [T],
    ) {
        let of = factors;
        for (((parameter, mean), square), grad) in parameter.iter_mut().zip(mean).zip(square).zip(grad) {
            let value = parameter.load();
            let grad = of.coupled.mul_add::<FMA>(value, grad.load());
            let new_mean = mean.load().mul_add::<FMA>(of.beta1, grad * of.rest1);
            let new_square = square.load().mul_add::<FMA>(of.beta2, grad * grad * of.rest2);
            *mean = T::store(new_mean);
            *square = T::store(new_square);
            let divisor = new_square.sqrt().mul_add::<FMA>(of.root, of.eps);
            *parameter = T::store(value * of.keep - of.rate * new_mean / divisor);
        }
    }
}

vectorized! {
    fn sgd<T: Stored>(
        settings: &Sgd,
        is_first: bool,
        grad: &[T],
        parameter: &mut [T],
        direction: &mut [T],
    ) {
        let [rate, decay, momentum] =
            [settings.lr, settings.weight_decay, settings.momentum].map(<T::Real as Real>::of);
        let entering = <T::Real as Real>::of(1.0 - settings.dampening);
        if direction.is_empty() {
            for (parameter, grad) in parameter.iter_mut().zip(grad) {
                let value = parameter.load();
                *parameter = T::store(value - rate * decay.mul_add::<FMA>(value, grad.load()));
            }
            return;
        }
        for ((parameter, direction), grad) in parameter.iter_mut().zip(direction).zip(grad) {
            let value = parameter.load();
            let grad = decay.mul_add::<FMA>(value, grad.load());
            let turned = if is_first { grad } else { direction.load() * momentum + grad * entering };
            *direction = T::store(turned);
            let along = if settings.nesterov { grad + momentum * turned } else { turned };
            *parameter = T::store(value - rate * along);
        }
    }
}

/// Refuses operands that are not floating point, or not of the parameter's shape and dtype.
fn check_alike(op: &'static str, parameter: &Tensor, others: &[&Tensor]) -> Result<()> {
    check_float(op, parameter)?;
    for tensor in others {
        check_dtype(op, tensor, parameter.dtype())?;
        check_shape(op, tensor, parameter.shape(), "all have the shape of the parameter")?;
    }
    Ok(())
}
