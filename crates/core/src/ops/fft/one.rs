//! Transforms over one dim. All other dims may be cut; a cut of this one is moved to another.

use dtensor_layout::rule::Rule;
use dtensor_local::{
    LocalError, Tensor,
    fft::{self, Norm},
};

use super::kind::{Kind, adjoint, transform_rule};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// A transform over one dim, cropped or filled up to `n` values if given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct One {
    pub(super) kind: Kind,
    pub(super) n: Option<usize>,
    pub(super) dim: isize,
    pub(super) norm: Norm,
}

impl Op for One {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Forward => "fft",
            Kind::Inverse => "ifft",
            Kind::Real => "rfft",
            Kind::InverseReal => "irfft",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let dims = self.kind.dims(self.name(), &operands[0], &[self.dim])?;
        transform_rule(self.name(), self.kind, &operands[0], &dims)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let One { n, dim, norm, .. } = *self;
        one(match self.kind {
            Kind::Forward => fft::fft(x[0], n, dim, norm),
            Kind::Inverse => fft::ifft(x[0], n, dim, norm),
            Kind::Real => fft::rfft(x[0], n, dim, norm),
            Kind::InverseReal => fft::irfft(x[0], n, dim, norm),
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let dims = self.kind.dims(self.name(), &backward.meta(0), &[self.dim])?;
        adjoint(backward, self.kind, &dims, self.n, self.norm)
    }
}

impl DTensor {
    /// The Fourier transform of a complex tensor over a dim, cropped or filled up with zeros to `n` values if
    /// given.
    ///
    /// There is no complex dtype: a complex tensor has a last dim of size 2, the real and the imaginary part,
    /// and dims are counted without that one.
    pub fn fft(&self, n: Option<usize>, dim: isize, norm: Norm) -> Result<DTensor> {
        call_one(&One { kind: Kind::Forward, n, dim, norm }, &[self])
    }

    /// The inverse of [`fft`](DTensor::fft).
    pub fn ifft(&self, n: Option<usize>, dim: isize, norm: Norm) -> Result<DTensor> {
        call_one(&One { kind: Kind::Inverse, n, dim, norm }, &[self])
    }

    /// The Fourier transform of a real tensor over a dim: complex, the first `n / 2 + 1` values.
    pub fn rfft(&self, n: Option<usize>, dim: isize, norm: Norm) -> Result<DTensor> {
        call_one(&One { kind: Kind::Real, n, dim, norm }, &[self])
    }

    /// The inverse of [`rfft`](DTensor::rfft): `n` real values, by default an even number.
    pub fn irfft(&self, n: Option<usize>, dim: isize, norm: Norm) -> Result<DTensor> {
        call_one(&One { kind: Kind::InverseReal, n, dim, norm }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "fft", samples: || complex(Kind::Forward) },
    OpRecord { name: "ifft", samples: || complex(Kind::Inverse) },
    OpRecord { name: "rfft", samples: || real(Kind::Real) },
    OpRecord { name: "irfft", samples: || complex(Kind::InverseReal) },
];

fn complex(kind: Kind) -> Vec<Sample> {
    vec![
        Sample::new(One { kind, n: None, dim: 1, norm: Norm::Backward }, &[&[3, 4, 2]]),
        Sample::new(One { kind, n: Some(3), dim: -2, norm: Norm::Ortho }, &[&[5, 3, 2]]),
        Sample::new(One { kind, n: None, dim: -1, norm: Norm::Forward }, &[&[5, 2]]),
    ]
}

fn real(kind: Kind) -> Vec<Sample> {
    vec![
        Sample::new(One { kind, n: None, dim: 1, norm: Norm::Backward }, &[&[3, 4]]),
        Sample::new(One { kind, n: Some(3), dim: -2, norm: Norm::Ortho }, &[&[5, 3]]),
        Sample::new(One { kind, n: None, dim: -1, norm: Norm::Forward }, &[&[5]]),
    ]
}
