//! Resizing of spatial dims, which are whole.

use dtensor_layout::rule::{Law, Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

pub use dtensor_local::nn::{Interpolate, InterpolateMode, InterpolateSize};

use super::{pooling::plane_letters, steps::rule};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
};

/// The settings as attributes, and for a gradient the spatial sizes of the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Resize {
    size: Size,
    mode: InterpolateMode,
    align_corners: bool,
    input_size: Option<SmallVec<[usize; 3]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Size {
    To(SmallVec<[usize; 3]>),
    Times(SmallVec<[Number; 3]>),
}

impl Resize {
    fn new(settings: &Interpolate, input_size: Option<&[usize]>) -> Resize {
        let size = match settings.size {
            InterpolateSize::To(sizes) => Size::To(sizes.into()),
            InterpolateSize::Times(factors) => {
                Size::Times(factors.iter().map(|factor| Number(*factor)).collect())
            }
        };
        let Interpolate { mode, align_corners, .. } = *settings;
        Resize { size, mode, align_corners, input_size: input_size.map(SmallVec::from) }
    }
}

impl Op for Resize {
    fn name(&self) -> &'static str {
        if self.input_size.is_some() { "interpolate_backward" } else { "interpolate" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let [x, out] = plane_letters(n_dims, n_dims.saturating_sub(2));
        rule(self.name(), &format!("{x} -> {out}"), &[Law::Linear])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let factors: SmallVec<[f64; 3]> = match &self.size {
            Size::To(_) => SmallVec::new(),
            Size::Times(factors) => factors.iter().map(|factor| factor.0).collect(),
        };
        let size = match &self.size {
            Size::To(sizes) => InterpolateSize::To(sizes),
            Size::Times(_) => InterpolateSize::Times(&factors),
        };
        let settings = Interpolate { size, mode: self.mode, align_corners: self.align_corners };
        one(match &self.input_size {
            None => x[0].interpolate(&settings),
            Some(input_size) => x[0].interpolate_backward(input_size, &settings),
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        // Each is the transpose of the other.
        let input_size = match &self.input_size {
            None => backward.shape(0).get(2..).map(SmallVec::from),
            Some(_) => None,
        };
        backward.first(|| call_one(&Resize { input_size, ..self.clone() }, &[&backward.grad()?]))
    }
}

impl DTensor {
    /// `[N, C, spatial...]` in another spatial size, for one to three spatial dims. Batches and channels may be cut. As
    /// `torch.nn.functional.interpolate`.
    pub fn interpolate(&self, settings: &Interpolate) -> Result<DTensor> {
        call_one(&Resize::new(settings, None), &[self])
    }

    /// The gradient of [`interpolate`](DTensor::interpolate) with respect to its input with these spatial sizes, where
    /// `self` is the gradient of the result.
    pub fn interpolate_backward(
        &self,
        input_size: &[usize],
        settings: &Interpolate,
    ) -> Result<DTensor> {
        call_one(&Resize::new(settings, Some(input_size)), &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "interpolate",
        samples: || {
            let resize =
                |size, mode| Resize::new(&Interpolate { size, mode, align_corners: false }, None);
            let (to, times) = (InterpolateSize::To(&[5, 3]), InterpolateSize::Times(&[1.5]));
            vec![
                Sample::new(resize(to, InterpolateMode::Linear), &[&[2, 3, 4, 2]]),
                Sample::new(resize(times, InterpolateMode::Nearest), &[&[3, 2, 4]]),
            ]
        },
    },
    OpRecord {
        name: "interpolate_backward",
        samples: || {
            let (size, mode) = (InterpolateSize::To(&[5]), InterpolateMode::Linear);
            let settings = Interpolate { size, mode, align_corners: true };
            vec![Sample::new(Resize::new(&settings, Some(&[3])), &[&[2, 3, 5]])]
        },
    },
];
