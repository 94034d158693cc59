//! Losses large enough for `f16`.

use dtensor::{DTensor, DType, DeviceMesh, Gradients};

use super::{Optimizer, clip};
use crate::{Error, Parameter, Result, StateDict, init, state_dict};

/// Multiplies a loss so that small gradients do not vanish in `f16`, and divides the gradients afterwards. A step whose
/// gradients are not all finite is left out, and the factor is halved; after a number of good steps it is doubled. As
/// `torch.amp.GradScaler`.
///
/// Parameters are `f32` or wider, and computed with in `f16`, as [`FullyShardOptions::mixed_precision`] does: a gradient in
/// `f16` would vanish when it is divided.
///
/// [`FullyShardOptions::mixed_precision`]: crate::FullyShardOptions::mixed_precision
#[derive(Clone, Debug, PartialEq)]
pub struct GradScaler {
    factor: f64,
    growth_interval: u64,
    good_steps: u64,
    /// Whether the gradients of the present step are divided already, and then whether all are finite.
    unscaled: Option<bool>,
}

impl Default for GradScaler {
    fn default() -> GradScaler {
        GradScaler { factor: 65_536.0, growth_interval: 2_000, good_steps: 0, unscaled: None }
    }
}

impl GradScaler {
    /// With a factor to begin with, doubled after so many good steps.
    pub fn new(factor: f64, growth_interval: u64) -> GradScaler {
        GradScaler { factor, growth_interval, ..GradScaler::default() }
    }

    /// The factor at present.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The loss to walk back from.
    pub fn scale(&self, loss: &DTensor) -> Result<DTensor> {
        Ok(loss.mul(self.factor)?)
    }

    /// Divides the gradients, to look at them or to [clip](crate::clip_grad_norm) them before the
    /// [step](GradScaler::step): says whether all are finite, otherwise the step will be left out. Once per step.
    pub fn unscale(&mut self, parameters: &[Parameter], gradients: &mut Gradients) -> Result<bool> {
        if self.unscaled.is_some() {
            let want = "unscale once per step, and then call step";
            return Err(Error::bad("the gradient", "divided already", want));
        }
        for parameter in parameters {
            let value = parameter.value();
            if value.dtype() == DType::F16 && gradients.get(&value).is_some() {
                let want =
                    "keep parameters in f32 and compute with them in f16: see mixed_precision";
                return Err(Error::bad("the dtype of a gradient", value.dtype(), want));
            }
        }
        let is_finite = clip::grad_norm(parameters, gradients, 2.0)?.is_finite();
        for parameter in parameters {
            let leaf = parameter.value();
            if let Some(gradient) = gradients.remove(&leaf) {
                gradients.insert(&leaf, gradient.mul(1.0 / self.factor)?);
            }
        }
        self.unscaled = Some(is_finite);
        Ok(is_finite)
    }

    /// Divides the gradients, unless that [is done](GradScaler::unscale), and makes a step, unless some are not finite: says
    /// whether it did. All ranks decide alike.
    pub fn step(
        &mut self,
        parameters: &[Parameter],
        mut gradients: Gradients,
        optimizer: &mut dyn Optimizer,
    ) -> Result<bool> {
        let is_finite = match self.unscaled {
            Some(is_finite) => is_finite,
            None => self.unscale(parameters, &mut gradients)?,
        };
        self.unscaled = None;
        if !is_finite {
            self.factor /= 2.0;
            self.good_steps = 0;
            return Ok(false);
        }
        optimizer.step(&gradients)?;
        self.good_steps += 1;
        if self.good_steps >= self.growth_interval {
            (self.factor, self.good_steps) = (self.factor * 2.0, 0);
        }
        Ok(true)
    }

    /// The factor, as `scale`, and the good steps since it changed, as `growth_tracker`: numbers on a mesh, to be saved beside
    /// what an optimizer remembers.
    pub fn state_dict(&self, mesh: &DeviceMesh) -> Result<StateDict> {
        let copies = init::copies(mesh);
        let steps = i64::try_from(self.good_steps).unwrap_or(i64::MAX);
        let scale = dtensor::full(&[], self.factor, mesh, &copies)?;
        let tracker = dtensor::full(&[], steps, mesh, &copies)?;
        Ok([(SCALE.to_owned(), scale), (TRACKER.to_owned(), tracker)].into())
    }

    /// Goes on from what [`state_dict`](GradScaler::state_dict) gave. Nothing is changed if there is an error.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        if let Some(name) = state.keys().find(|name| ![SCALE, TRACKER].contains(&name.as_str())) {
            return Err(Error::Unexpected { name: name.clone() });
        }
        let number = |name: &str, dtype: DType| {
            let value = state.get(name).ok_or_else(|| state_dict::missing(name, state.keys()))?;
            if value.numel() != 1 {
                let (got, want) = (value.shape().to_vec(), Vec::new());
                return Err(Error::Misshapen { name: name.to_owned(), got, want });
            }
            Ok(value.to_dtype(dtype)?)
        };
        let factor = number(SCALE, DType::F64)?.item::<f64>()?;
        let steps = number(TRACKER, DType::I64)?.item::<i64>()?;
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::bad("the scale", factor, "give a number above 0"));
        }
        let Ok(steps) = u64::try_from(steps) else {
            return Err(Error::bad("the number of good steps", steps, "count from 0"));
        };
        (self.factor, self.good_steps, self.unscaled) = (factor, steps, None);
        Ok(())
    }
}

const SCALE: &str = "scale";
const TRACKER: &str = "growth_tracker";
